"""What the numbers say and how sure they are, and what to do about it.

Chances of samples: pass@k, G-Pass@k, votes, best-of-k. How sure: intervals, paired tests, power, calibration. Laws that
go on beyond the data. What it cost: FLOPs, prices, frontiers. Decisions: allocation, options, routing, train or think.
"""

from ponder.measure.allocation import Replay, allocate, believed_coverage, known_coverage, replay, replayed_coverage
from ponder.measure.bestofk import best_at_k
from ponder.measure.budgeted import control, performance, scaling
from ponder.measure.calibration import Reliability, brier, ece, fit_temperature, reliability
from ponder.measure.clustered import Clustered, bootstrap, clustered_mean
from ponder.measure.coverage import coverage_curve
from ponder.measure.curves import Curve, curve_of
from ponder.measure.diagnose import Finding, diagnose
from ponder.measure.economics import TrainOrThink, cost_at, train_or_think
from ponder.measure.flops import Shape, group_flops, trace_flops
from ponder.measure.gpassk import g_pass_at_k, mean_g_pass_at_k, pass_hat_k
from ponder.measure.intervals import Accuracy, Difference, Mean, mean_of, paired_difference, wilson
from ponder.measure.log_linear import LogLinear, Shift, fit_log_linear, horizontal_shift
from ponder.measure.loss_law import LossLaw, fit_loss_law
from ponder.measure.options import Choice, Option, choose
from ponder.measure.paired import PairedMean, paired_means, sign_flip
from ponder.measure.pareto import Place, frontier, frontier_with_intervals
from ponder.measure.passk import mean_pass_at_k, pass_at_k
from ponder.measure.plots import reward_curve
from ponder.measure.plurality import plurality_accuracy, plurality_limit
from ponder.measure.power import difference_seen, problems_for_means, problems_needed
from ponder.measure.power_law import CoverageLaw, Extrapolation, coverage_law, extrapolate, fit_coverage_law
from ponder.measure.price import Price, read_prices, seconds_for
from ponder.measure.ranking import Auroc, auroc
from ponder.measure.ratings import Rating, elo
from ponder.measure.routing import RoutingCurve, routing_curve
from ponder.measure.selection import selection_curve
from ponder.measure.sparkline import sparkline
from ponder.measure.votes import best, majority, majority_accuracy, weighted

__all__ = [
    "Accuracy",
    "Auroc",
    "Choice",
    "Clustered",
    "CoverageLaw",
    "Curve",
    "Difference",
    "Extrapolation",
    "Finding",
    "LogLinear",
    "LossLaw",
    "Mean",
    "Option",
    "PairedMean",
    "Place",
    "Price",
    "Rating",
    "Reliability",
    "Replay",
    "RoutingCurve",
    "Shape",
    "Shift",
    "TrainOrThink",
    "allocate",
    "auroc",
    "believed_coverage",
    "best",
    "best_at_k",
    "bootstrap",
    "brier",
    "choose",
    "clustered_mean",
    "control",
    "cost_at",
    "coverage_curve",
    "coverage_law",
    "curve_of",
    "diagnose",
    "difference_seen",
    "ece",
    "elo",
    "extrapolate",
    "fit_coverage_law",
    "fit_log_linear",
    "fit_loss_law",
    "fit_temperature",
    "frontier",
    "frontier_with_intervals",
    "g_pass_at_k",
    "group_flops",
    "horizontal_shift",
    "known_coverage",
    "majority",
    "majority_accuracy",
    "mean_g_pass_at_k",
    "mean_of",
    "mean_pass_at_k",
    "paired_difference",
    "paired_means",
    "pass_at_k",
    "pass_hat_k",
    "performance",
    "plurality_accuracy",
    "plurality_limit",
    "problems_for_means",
    "problems_needed",
    "read_prices",
    "reliability",
    "replay",
    "replayed_coverage",
    "reward_curve",
    "routing_curve",
    "scaling",
    "seconds_for",
    "selection_curve",
    "sign_flip",
    "sparkline",
    "trace_flops",
    "train_or_think",
    "weighted",
    "wilson",
]
