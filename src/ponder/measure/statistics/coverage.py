"""Coverage: mean pass@k over problems as k grows, with its interval, also where problems have unequal samples.

Shapes: P problems, U different pairs (n, c), K values of k, R resamples.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import IntArray, check_choice
from ponder.measure.statistics.bootstrap import resampled_counts
from ponder.measure.statistics.passk import check_counts, pass_at_k, require_k_samples
from ponder.measure.statistics.sample_curve import BOOTSTRAP_MAX_PROBLEMS, SampleCurve, curve_interval

# What to do with a problem of fewer than k samples: refuse; give NaN; or leave the problem out at that k and say so.
TooFewSamples = Literal["error", "missing", "drop"]

MAX_ARRAY_VALUES = 4_000_000  # numbers worked on at once, so that a million problems x a thousand k need little memory


def unique_count_pairs(n_P: IntArray, c_P: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The different pairs (n, c), and how many problems have each: problems of a kind are estimated once."""
    if n_P.size == 0:
        raise UsageError("the coverage of no problems is undefined; give at least one problem")
    base = int(n_P.max()) + 1
    pair_U, times_U = np.unique(n_P.ravel() * base + c_P.ravel(), return_counts=True)  # each pair as one number
    return pair_U // base, pair_U % base, times_U


def coverage_curve(
    n: ArrayLike, c: ArrayLike, k: ArrayLike, short: TooFewSamples = "error", resamples: int = 1000, seed: int = 0
) -> SampleCurve:
    """Mean pass@k over problems for each k, with the bootstrap's interval over problems.

    Problems of fewer than k samples: refused ("error"), NaN at that k ("missing"), or left out there ("drop", which
    makes neighbouring points means over different problems; `problems` says over how many).
    """
    n_P, c_P, k_K = check_counts(n, c, k)
    k_K = np.atleast_1d(k_K)
    check_choice("way with too few samples", short, TooFewSamples)
    if short == "error":
        require_k_samples(n_P, k_K, "pass")
    n_U, c_U, times_U = unique_count_pairs(n_P, c_P)
    # To draw problems again is to draw how often each pair comes. Row 0 is the sample itself.
    drawn_RU = resampled_counts(times_U, resamples if n_U.size <= BOOTSTRAP_MAX_PROBLEMS else 0, seed)
    sums_RK, known_RK = np.zeros((2, len(drawn_RU), k_K.size))
    squares_K = np.zeros(k_K.size)
    rows = max(1, MAX_ARRAY_VALUES // k_K.size)
    for first in range(0, n_U.size, rows):
        part = slice(first, first + rows)
        value_UK = pass_at_k(n_U[part], c_U[part], k_K, short="missing")
        known_UK = ~np.isnan(value_UK)
        value_UK = np.where(known_UK, value_UK, 0.0)
        sums_RK += drawn_RU[:, part] @ value_UK
        known_RK += drawn_RU[:, part] @ known_UK
        squares_K += times_U[part] @ value_UK**2
    problems_K = np.rint(known_RK[0]).astype(np.int64)
    missing_K = n_P.size - problems_K
    with np.errstate(invalid="ignore", divide="ignore"):
        means_RK = sums_RK / known_RK
        sd_K = np.sqrt(np.maximum(squares_K / known_RK[0] - means_RK[0] ** 2, 0))
    low_K, high_K = curve_interval(means_RK, sd_K, problems_K)
    hidden_K = (missing_K > 0) if short == "missing" else (problems_K == 0)
    mean_K, low_K, high_K = (np.where(hidden_K, np.nan, x) for x in (means_RK[0], low_K, high_K))
    return SampleCurve(k_K, mean_K, low_K, high_K, problems_K, missing_K)
