"""What the numbers say and how sure they are: accuracies with intervals, pass@k, votes, plots, what ails a run."""

from ponder.measure.diagnose import Finding, diagnose
from ponder.measure.intervals import Accuracy, Difference, Mean, mean_of, paired_difference, wilson
from ponder.measure.passk import mean_pass_at_k, pass_at_k
from ponder.measure.plots import reward_curve
from ponder.measure.sparkline import sparkline
from ponder.measure.votes import best, majority, majority_accuracy, weighted

__all__ = [
    "Accuracy",
    "Difference",
    "Finding",
    "Mean",
    "best",
    "diagnose",
    "majority",
    "majority_accuracy",
    "mean_of",
    "mean_pass_at_k",
    "paired_difference",
    "pass_at_k",
    "reward_curve",
    "sparkline",
    "weighted",
    "wilson",
]
