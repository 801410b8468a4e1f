"""What the numbers say and how sure they are, and what to do about it.

Chances of samples: pass@k, G-Pass@k, votes, best-of-k. How sure: intervals, paired tests, power, calibration. Laws that
go on beyond the data. What it cost: FLOPs, prices, frontiers. Decisions: allocation, options, routing, train or think.
"""

from ponder.measure.allocation import AllocationReplay, allocate_samples, believed_coverage, known_coverage, replay_allocation, replayed_coverage
from ponder.measure.bestofk import best_at_k
from ponder.measure.budgeted import budget_control, budget_performance, budget_scaling
from ponder.measure.calibration import Reliability, brier, ece, fit_temperature, reliability
from ponder.measure.clustered import Clustered, hierarchical_bootstrap, clustered_mean
from ponder.measure.coverage import coverage_curve
from ponder.measure.curves import Curve, curve_of
from ponder.measure.diagnose import TrainingFinding, diagnose
from ponder.measure.economics import TrainOrThink, cost_at, train_or_think
from ponder.measure.flops import ModelShape, group_flops, trace_flops
from ponder.measure.gpassk import g_pass_at_k, mean_g_pass_at_k, pass_hat_k
from ponder.measure.intervals import Accuracy, Difference, MeanInterval, bootstrap_mean, paired_difference, wilson
from ponder.measure.log_linear import LogLinear, Shift, fit_log_linear, horizontal_shift
from ponder.measure.loss_law import LossLaw, fit_loss_law
from ponder.measure.options import StrategyChoice, StrategyOption, choose_strategies
from ponder.measure.paired import PairedMean, paired_means, sign_flip
from ponder.measure.pareto import FrontierPoint, pareto_frontier, frontier_with_intervals
from ponder.measure.passk import mean_pass_at_k, pass_at_k
from ponder.measure.plots import reward_curve
from ponder.measure.plurality import plurality_accuracy, plurality_limit
from ponder.measure.power import difference_seen, problems_for_means, problems_needed
from ponder.measure.power_law import CoverageLaw, Extrapolation, coverage_law, extrapolate_coverage, fit_coverage_law
from ponder.measure.price import Price, read_prices, seconds_for
from ponder.measure.ranking import Auroc, auroc
from ponder.measure.ratings import Rating, elo_ratings
from ponder.measure.routing import RoutingCurve, routing_curve
from ponder.measure.selection import selection_curve
from ponder.measure.sparkline import sparkline
from ponder.measure.votes import best_answer, majority_answer, majority_accuracy, weighted_answer

__all__ = [
    "Accuracy",
    "Auroc",
    "StrategyChoice",
    "Clustered",
    "CoverageLaw",
    "Curve",
    "Difference",
    "Extrapolation",
    "TrainingFinding",
    "LogLinear",
    "LossLaw",
    "MeanInterval",
    "StrategyOption",
    "PairedMean",
    "FrontierPoint",
    "Price",
    "Rating",
    "Reliability",
    "AllocationReplay",
    "RoutingCurve",
    "ModelShape",
    "Shift",
    "TrainOrThink",
    "allocate_samples",
    "auroc",
    "believed_coverage",
    "best_answer",
    "best_at_k",
    "hierarchical_bootstrap",
    "brier",
    "choose_strategies",
    "clustered_mean",
    "budget_control",
    "cost_at",
    "coverage_curve",
    "coverage_law",
    "curve_of",
    "diagnose",
    "difference_seen",
    "ece",
    "elo_ratings",
    "extrapolate_coverage",
    "fit_coverage_law",
    "fit_log_linear",
    "fit_loss_law",
    "fit_temperature",
    "pareto_frontier",
    "frontier_with_intervals",
    "g_pass_at_k",
    "group_flops",
    "horizontal_shift",
    "known_coverage",
    "majority_answer",
    "majority_accuracy",
    "mean_g_pass_at_k",
    "bootstrap_mean",
    "mean_pass_at_k",
    "paired_difference",
    "paired_means",
    "pass_at_k",
    "pass_hat_k",
    "budget_performance",
    "plurality_accuracy",
    "plurality_limit",
    "problems_for_means",
    "problems_needed",
    "read_prices",
    "reliability",
    "replay_allocation",
    "replayed_coverage",
    "reward_curve",
    "routing_curve",
    "budget_scaling",
    "seconds_for",
    "selection_curve",
    "sign_flip",
    "sparkline",
    "trace_flops",
    "train_or_think",
    "weighted_answer",
    "wilson",
]
