"""What the numbers say and how sure they are, and what to do about it.

Chances of samples: pass@k, G-Pass@k, votes, best-of-k. How sure: intervals, paired tests, power, calibration. Laws that
go on beyond the data. What it cost: FLOPs, prices, frontiers. Decisions: allocation, options, routing, train or think.
"""

from ponder.measure.diagnostics.training_health import TrainingFinding, diagnose
from ponder.measure.figures.sparkline import sparkline
from ponder.measure.figures.theme import plot_reward_curve
from ponder.measure.scaling.break_even import TrainOrThink, cost_for_quality, train_or_think
from ponder.measure.scaling.budget_metrics import budget_control, budget_performance, budget_scaling
from ponder.measure.scaling.chinchilla_law import ChinchillaLaw, fit_chinchilla_law
from ponder.measure.scaling.coverage_power_law import (
    CoverageExtrapolation,
    CoverageLaw,
    extrapolate_coverage,
    fit_coverage_law,
    fit_coverage_law_to_counts,
)
from ponder.measure.scaling.flops import ModelShape, group_flops, trace_flops
from ponder.measure.scaling.gpu_time import Price, gpu_seconds, read_prices
from ponder.measure.scaling.log_linear import ComputeShift, LogLinearFit, compute_shift, fit_log_linear
from ponder.measure.scaling.pareto import FrontierPoint, pareto_frontier, pareto_frontier_with_intervals
from ponder.measure.scaling.routing import RoutingCurve, routing_curve
from ponder.measure.scaling.sample_allocation import (
    AllocationReplay,
    allocate_samples,
    coverage_from_beta,
    coverage_from_counts,
    coverage_from_rates,
    replay_allocation,
)
from ponder.measure.scaling.strategy_choice import StrategyChoice, StrategyOption, choose_strategies
from ponder.measure.statistics.answer_selection import selection_curve
from ponder.measure.statistics.best_of_k import best_at_k
from ponder.measure.statistics.calibration import ReliabilityCurve, brier, ece, fit_temperature, reliability
from ponder.measure.statistics.clustered_means import ClusteredMean, clustered_mean, hierarchical_bootstrap
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.elo_ratings import EloRating, elo_ratings
from ponder.measure.statistics.gpassk import g_pass_at_k, mean_g_pass_at_k, pass_hat_k
from ponder.measure.statistics.intervals import (
    Accuracy,
    MeanInterval,
    PairedDifference,
    bootstrap_mean,
    paired_difference,
    wilson,
)
from ponder.measure.statistics.majority_vote import best_answer, majority_accuracy, majority_answer, weighted_answer
from ponder.measure.statistics.paired_tests import PairedMean, paired_means, sign_flip_test
from ponder.measure.statistics.passk import mean_pass_at_k, pass_at_k
from ponder.measure.statistics.plurality_vote import plurality_accuracy, plurality_limit
from ponder.measure.statistics.power_analysis import (
    minimum_detectable_difference,
    problems_for_accuracies,
    problems_for_means,
)
from ponder.measure.statistics.roc import AurocInterval, auroc
from ponder.measure.statistics.sample_curve import SampleCurve, sample_curve

__all__ = [
    "Accuracy",
    "AllocationReplay",
    "AurocInterval",
    "ChinchillaLaw",
    "ClusteredMean",
    "ComputeShift",
    "CoverageExtrapolation",
    "CoverageLaw",
    "EloRating",
    "FrontierPoint",
    "LogLinearFit",
    "MeanInterval",
    "ModelShape",
    "PairedDifference",
    "PairedMean",
    "Price",
    "ReliabilityCurve",
    "RoutingCurve",
    "SampleCurve",
    "StrategyChoice",
    "StrategyOption",
    "TrainOrThink",
    "TrainingFinding",
    "allocate_samples",
    "auroc",
    "best_answer",
    "best_at_k",
    "bootstrap_mean",
    "brier",
    "budget_control",
    "budget_performance",
    "budget_scaling",
    "choose_strategies",
    "clustered_mean",
    "compute_shift",
    "cost_for_quality",
    "coverage_curve",
    "coverage_from_beta",
    "coverage_from_counts",
    "coverage_from_rates",
    "diagnose",
    "ece",
    "elo_ratings",
    "extrapolate_coverage",
    "fit_chinchilla_law",
    "fit_coverage_law",
    "fit_coverage_law_to_counts",
    "fit_log_linear",
    "fit_temperature",
    "g_pass_at_k",
    "gpu_seconds",
    "group_flops",
    "hierarchical_bootstrap",
    "majority_accuracy",
    "majority_answer",
    "mean_g_pass_at_k",
    "mean_pass_at_k",
    "minimum_detectable_difference",
    "paired_difference",
    "paired_means",
    "pareto_frontier",
    "pareto_frontier_with_intervals",
    "pass_at_k",
    "pass_hat_k",
    "plot_reward_curve",
    "plurality_accuracy",
    "plurality_limit",
    "problems_for_accuracies",
    "problems_for_means",
    "read_prices",
    "reliability",
    "replay_allocation",
    "routing_curve",
    "sample_curve",
    "selection_curve",
    "sign_flip_test",
    "sparkline",
    "trace_flops",
    "train_or_think",
    "weighted_answer",
    "wilson",
]
