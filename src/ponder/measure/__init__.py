"""What the numbers say and how sure they are, and what to do about it.

Chances of samples: pass@k, G-Pass@k, votes, best-of-k. How sure: intervals, paired tests, power, calibration. Laws that
go on beyond the data. What it cost: FLOPs, prices, frontiers. Decisions: allocation, options, routing, train or think.
"""

from ponder.measure.scaling.sample_allocation import AllocationReplay, allocate_samples, coverage_from_beta, coverage_from_rates, replay_allocation, coverage_from_counts
from ponder.measure.statistics.best_of_k import best_at_k
from ponder.measure.scaling.budget_metrics import budget_control, budget_performance, budget_scaling
from ponder.measure.statistics.calibration import ReliabilityCurve, brier, ece, fit_temperature, reliability
from ponder.measure.statistics.clustered_means import ClusteredMean, hierarchical_bootstrap, clustered_mean
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.sample_curve import SampleCurve, sample_curve
from ponder.measure.diagnostics.training_health import TrainingFinding, diagnose
from ponder.measure.scaling.break_even import TrainOrThink, cost_for_quality, train_or_think
from ponder.measure.scaling.flops import ModelShape, group_flops, trace_flops
from ponder.measure.statistics.gpassk import g_pass_at_k, mean_g_pass_at_k, pass_hat_k
from ponder.measure.statistics.intervals import Accuracy, PairedDifference, MeanInterval, bootstrap_mean, paired_difference, wilson
from ponder.measure.scaling.log_linear import LogLinearFit, ComputeShift, fit_log_linear, compute_shift
from ponder.measure.scaling.chinchilla_law import ChinchillaLaw, fit_chinchilla_law
from ponder.measure.scaling.strategy_choice import StrategyChoice, StrategyOption, choose_strategies
from ponder.measure.statistics.paired_tests import PairedMean, paired_means, sign_flip_test
from ponder.measure.scaling.pareto import FrontierPoint, pareto_frontier, pareto_frontier_with_intervals
from ponder.measure.statistics.passk import mean_pass_at_k, pass_at_k
from ponder.measure.figures.theme import plot_reward_curve
from ponder.measure.statistics.plurality_vote import plurality_accuracy, plurality_limit
from ponder.measure.statistics.power_analysis import minimum_detectable_difference, problems_for_means, problems_for_accuracies
from ponder.measure.scaling.coverage_power_law import CoverageLaw, CoverageExtrapolation, fit_coverage_law_to_counts, extrapolate_coverage, fit_coverage_law
from ponder.measure.scaling.gpu_time import Price, read_prices, gpu_seconds
from ponder.measure.statistics.roc import AurocInterval, auroc
from ponder.measure.statistics.elo_ratings import EloRating, elo_ratings
from ponder.measure.scaling.routing import RoutingCurve, routing_curve
from ponder.measure.statistics.answer_selection import selection_curve
from ponder.measure.figures.sparkline import sparkline
from ponder.measure.statistics.majority_vote import best_answer, majority_answer, majority_accuracy, weighted_answer

__all__ = [
    "Accuracy",
    "AurocInterval",
    "StrategyChoice",
    "ClusteredMean",
    "CoverageLaw",
    "SampleCurve",
    "PairedDifference",
    "CoverageExtrapolation",
    "TrainingFinding",
    "LogLinearFit",
    "ChinchillaLaw",
    "MeanInterval",
    "StrategyOption",
    "PairedMean",
    "FrontierPoint",
    "Price",
    "EloRating",
    "ReliabilityCurve",
    "AllocationReplay",
    "RoutingCurve",
    "ModelShape",
    "ComputeShift",
    "TrainOrThink",
    "allocate_samples",
    "auroc",
    "coverage_from_beta",
    "best_answer",
    "best_at_k",
    "hierarchical_bootstrap",
    "brier",
    "choose_strategies",
    "clustered_mean",
    "budget_control",
    "cost_for_quality",
    "coverage_curve",
    "fit_coverage_law_to_counts",
    "sample_curve",
    "diagnose",
    "minimum_detectable_difference",
    "ece",
    "elo_ratings",
    "extrapolate_coverage",
    "fit_coverage_law",
    "fit_log_linear",
    "fit_chinchilla_law",
    "fit_temperature",
    "pareto_frontier",
    "pareto_frontier_with_intervals",
    "g_pass_at_k",
    "group_flops",
    "compute_shift",
    "coverage_from_rates",
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
    "problems_for_accuracies",
    "read_prices",
    "reliability",
    "replay_allocation",
    "coverage_from_counts",
    "plot_reward_curve",
    "routing_curve",
    "budget_scaling",
    "gpu_seconds",
    "selection_curve",
    "sign_flip_test",
    "sparkline",
    "trace_flops",
    "train_or_think",
    "weighted_answer",
    "wilson",
]
