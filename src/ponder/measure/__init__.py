"""Statistics of evaluations, scaling laws and costs, diagnostics, and figures.

`statistics`: intervals, paired tests, power, pass@k, votes, best-of-k, calibration. `scaling`: laws that extrapolate,
FLOPs, Pareto frontiers, and decisions (sample allocation, routing, train or think). `diagnostics`: training health,
contamination, reflection. `readers` read logs of any tool; `figures` draw them.
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
from ponder.measure.scaling.flops import ModelShape, gpu_seconds, group_flops, trace_flops
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
from ponder.measure.statistics.calibration import (
    PlattScaling,
    ReliabilityCurve,
    brier,
    ece,
    fit_platt,
    fit_temperature,
    reliability,
)
from ponder.measure.statistics.clustered_means import ClusteredMean, clustered_mean, hierarchical_bootstrap
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.elo_ratings import EloRating, elo_ratings
from ponder.measure.statistics.intervals import (
    Accuracy,
    MeanInterval,
    PairedDifference,
    bootstrap_mean,
    paired_difference,
    wilson,
)
from ponder.measure.statistics.paired_tests import PairedMean, paired_means, sign_flip_test
from ponder.measure.statistics.passk import g_pass_at_k, mean_g_pass_at_k, mean_pass_at_k, pass_at_k, pass_hat_k
from ponder.measure.statistics.plurality_vote import majority_accuracy, plurality_accuracy, plurality_limit
from ponder.measure.statistics.power_analysis import (
    minimum_detectable_difference,
    problems_for_accuracies,
    problems_for_means,
    problems_for_width,
)
from ponder.measure.statistics.roc import AurocInterval, WithinAuroc, auroc, auroc_within_problems
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
    "PlattScaling",
    "ReliabilityCurve",
    "RoutingCurve",
    "SampleCurve",
    "StrategyChoice",
    "StrategyOption",
    "TrainOrThink",
    "TrainingFinding",
    "WithinAuroc",
    "allocate_samples",
    "auroc",
    "auroc_within_problems",
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
    "fit_platt",
    "fit_temperature",
    "g_pass_at_k",
    "gpu_seconds",
    "group_flops",
    "hierarchical_bootstrap",
    "majority_accuracy",
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
    "problems_for_width",
    "reliability",
    "replay_allocation",
    "routing_curve",
    "sample_curve",
    "selection_curve",
    "sign_flip_test",
    "sparkline",
    "trace_flops",
    "train_or_think",
    "wilson",
]
