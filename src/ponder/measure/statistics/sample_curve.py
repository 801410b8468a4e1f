"""A number for each k, as a mean over problems with its interval, and what it is a mean over.

Shapes: P problems, K values of k, R resamples.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray
from ponder.measure.statistics.bootstrap import bootstrap_tail, resampled_counts
from ponder.measure.statistics.intervals import CONFIDENCE, constant_sample_interval, wilson

# problems (or kinds of them): from here on the central limit gives the bootstrap's interval
BOOTSTRAP_MAX_PROBLEMS = 5_000


@dataclass(frozen=True, slots=True)
class SampleCurve:
    """A mean over problems for each k, with its 95 % interval over problems. NaN is no number: see `missing`."""

    k: IntArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    problems: IntArray  # that the mean at this k is over
    missing: IntArray  # that had too few samples, or no verdict, for this k
    sd: FloatArray | None = None  # of the mean over random subsets of k samples; None: the mean is exact


def sample_curve(
    k_K: IntArray, values_PK: FloatArray, sd: FloatArray | None = None, resamples: int = 1000, seed: int = 0
) -> SampleCurve:
    """From one value per problem and k; a problem that is NaN at some k is left out there, and counted."""
    if len(values_PK) == 0:
        raise UsageError("a curve over no problems is undefined; give at least one problem")
    told_PK = ~np.isnan(values_PK)
    problems_K = told_PK.sum(axis=0)
    size = len(values_PK)
    drawn_RP = resampled_counts(np.ones(size), resamples if size <= BOOTSTRAP_MAX_PROBLEMS else 0, seed)
    known_PK = np.where(told_PK, values_PK, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means_RK = (drawn_RP @ known_PK) / (drawn_RP @ told_PK)
        sd_K = np.sqrt(np.maximum((known_PK**2).sum(axis=0) / problems_K - means_RK[0] ** 2, 0))
    low_K, high_K = curve_interval(means_RK, sd_K, problems_K)
    return SampleCurve(k_K, means_RK[0], low_K, high_K, problems_K, size - problems_K, sd)


def curve_interval(means_RK: FloatArray, sd_K: FloatArray, problems_K: IntArray) -> tuple[FloatArray, FloatArray]:
    """The interval from the mean (row 0) and its resamples (the others); from the central limit where there are none.

    Where all problems are right or all wrong every resample is too, though nothing is certain: Wilson's there, and
    the like where all are half right. One problem alone says nothing of others: NaN.
    """
    low_K, high_K = np.full((2, problems_K.size), np.nan)
    if len(means_RK) > 1:
        for size in np.unique(problems_K[problems_K > 1]).tolist():
            at, tail = problems_K == size, bootstrap_tail(size, CONFIDENCE)
            with warnings.catch_warnings():  # where few problems reach a k, a resample may have none of them
                warnings.simplefilter("ignore", RuntimeWarning)
                low_K[at], high_K[at] = np.nanquantile(means_RK[1:, at], [tail, 1 - tail], axis=0)
    else:
        half_K = 1.96 * sd_K / np.sqrt(np.maximum(problems_K, 1))
        low_K, high_K = means_RK[0] - half_K, means_RK[0] + half_K
    low_K, high_K = (np.where(problems_K > 1, x, np.nan) for x in (low_K, high_K))
    for i in np.flatnonzero(((means_RK[0] == 0) | (means_RK[0] == 1)) & (problems_K > 0)):
        low_K[i], high_K[i] = wilson(int(means_RK[0, i]) * int(problems_K[i]), int(problems_K[i]))
    for i in np.flatnonzero((problems_K > 1) & (sd_K < 1e-9) & (means_RK[0] > 0) & (means_RK[0] < 1)):
        low_K[i], high_K[i] = constant_sample_interval(float(means_RK[0, i]), int(problems_K[i]))
    return low_K, high_K
