"""Where to spend samples: more on problems that they help, given what is thought of each problem's difficulty.

A problem's coverage is a row over 0, 1, ... M samples. Each more sample adds no more than the one before, so taking
the largest gains first is optimal. Shapes: P problems, M samples at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray
from ponder.measure.statistics.passk import check_counts, log_no_hit_probability


def coverage_from_rates(rates: ArrayLike, max_samples: int) -> FloatArray:
    """1 - (1 - p)^m, for problems whose chance p per sample is known."""
    p_P = np.asarray(rates, dtype=float)
    if p_P.ndim != 1 or not np.all((p_P >= 0) & (p_P <= 1)):
        raise UsageError(
            "a pass rate lies in [0, 1], one for each problem; say what is unknown with coverage_from_beta"
        )
    return np.asarray(1 - (1 - p_P[:, None]) ** np.arange(_check_max_samples(max_samples) + 1))


def coverage_from_beta(right: ArrayLike, wrong: ArrayLike, max_samples: int) -> FloatArray:
    """1 - E[(1 - p)^m] where p is believed to be Beta(right, wrong): samples seen, plus what was believed before.

    One right and one wrong more than were seen start from knowing nothing.
    """
    a_P, b_P = np.broadcast_arrays(np.asarray(right, dtype=float), np.asarray(wrong, dtype=float))
    if a_P.ndim != 1 or not np.all((a_P > 0) & (b_P > 0) & np.isfinite(a_P + b_P)):
        raise UsageError("a belief Beta(right, wrong) takes two numbers above 0 for each problem; add 1 to counts")
    i = np.arange(_check_max_samples(max_samples))
    miss = np.cumprod((b_P[:, None] + i) / (a_P[:, None] + b_P[:, None] + i), axis=1)
    return np.concatenate([np.zeros((a_P.size, 1)), 1 - miss], axis=1)


def coverage_from_counts(n: ArrayLike, c: ArrayLike, max_samples: int) -> FloatArray:
    """pass@m of logged samples, n of which c were right: what m of them would have brought. Needs m <= n."""
    n_P, c_P, _ = check_counts(n, c, 1)
    n_P, c_P = n_P.ravel(), c_P.ravel()
    if max_samples > int(n_P.min()):
        raise UsageError(f"a problem has {int(n_P.min())} logged samples, so {max_samples} of them cannot be replayed")
    return np.asarray(
        -np.expm1(log_no_hit_probability(n_P[:, None], c_P[:, None], np.arange(_check_max_samples(max_samples) + 1)))
    )


def allocate_samples(coverage: ArrayLike, budget: int) -> IntArray:
    """How many samples each problem gets, so that the sum of coverage is largest."""
    rows_PM = np.asarray(coverage, dtype=float)
    if rows_PM.ndim != 2 or rows_PM.shape[1] < 2 or not np.isfinite(rows_PM).all():
        raise UsageError("coverage must be a row per problem, over 0, 1, ... samples")
    gain_PM = np.diff(rows_PM, axis=1)
    if np.any(np.diff(gain_PM, axis=1) > 1e-9):
        raise UsageError(
            "a sample helps more than the one before it, so taking gains in order is not optimal: use choose"
        )
    if not 0 <= budget <= gain_PM.size or budget != int(budget):
        raise UsageError(f"a budget of {budget} does not fit: at most {gain_PM.size} samples can be given out")
    gain_PM = np.minimum.accumulate(gain_PM, axis=1)  # rounding must not put a later sample first
    flat = gain_PM.T.ravel()  # the first samples of all problems, then the second ones
    taken = np.argsort(-flat, kind="stable")[: int(budget)]
    return np.bincount(taken % len(rows_PM), minlength=len(rows_PM))


@dataclass(frozen=True, slots=True)
class AllocationReplay:
    """An allocation on logged samples: mean coverage with it, with equal shares, and with the best in hindsight."""

    allocated_coverage: float
    uniform_coverage: float
    best_coverage: float
    budget: int

    @property
    def gain(self) -> float:
        """Over equal shares."""
        return self.allocated_coverage - self.uniform_coverage

    @property
    def regret(self) -> float:
        """Below what one could have done who knew the logged outcomes."""
        return self.best_coverage - self.allocated_coverage


def replay_allocation(samples: Sequence[int] | IntArray, n: ArrayLike, c: ArrayLike) -> AllocationReplay:
    """What an allocation brings on logs of n samples of each problem, c of them right, exactly (mean over subsets).

    Judge difficulty on other samples than these, or the allocation has seen what it is tried on.
    """
    given_P = np.asarray(samples)
    n_P, c_P, _ = check_counts(n, c, 1)
    try:
        n_P, c_P = (np.broadcast_to(x, given_P.shape) for x in (n_P, c_P))
    except ValueError:
        raise UsageError(
            f"an allocation to {given_P.size} problems needs the logs of those, not of {n_P.size}"
        ) from None
    if given_P.ndim != 1 or given_P.size == 0 or np.any(given_P < 0):
        raise UsageError("an allocation is a number of samples, 0 or more, for each of at least one problem")
    if short := int(np.sum(given_P > n_P)):
        raise UsageError(f"{short} problems get more samples than were logged; log more, or bound the allocation")
    budget = int(given_P.sum())
    chosen = -np.expm1(log_no_hit_probability(n_P, c_P, given_P))
    share, more = divmod(budget, given_P.size)
    if share + bool(more) > int(n_P.min()):
        raise UsageError(f"equal shares of {share + bool(more)} samples are more than were logged of some problem")
    equal = [(-np.expm1(log_no_hit_probability(n_P, c_P, share + i))).mean() for i in (0, 1)]
    uniform = equal[0] + more / given_P.size * (equal[1] - equal[0])  # who gets one more is drawn at random
    most = max(1, min(int(n_P.max()), budget))
    rows_PM = -np.expm1(
        log_no_hit_probability(n_P[:, None], c_P[:, None], np.minimum(np.arange(most + 1), n_P[:, None]))
    )
    known = allocate_samples(rows_PM, budget)
    best = rows_PM[np.arange(given_P.size), known].mean()
    return AllocationReplay(float(chosen.mean()), float(uniform), float(best), budget)


def _check_max_samples(most: int) -> int:
    if most < 1:
        raise UsageError(f"at most {most} samples for a problem allocates nothing; allow at least 1")
    return most
