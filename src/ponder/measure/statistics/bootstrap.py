"""The bootstrap over problems: draw as many problems again, with replacement, and see how much a mean varies.

Shapes: P problems, U different kinds of them, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ponder.measure.statistics.arrays import FloatArray, IntArray

MAX_RESAMPLED_VALUES = 2_000_000  # values drawn at once: resamples of many problems need not fit in memory


def resample_shapes(resamples: int, size: int) -> Iterator[tuple[int, int]]:
    """The shapes (rows, size) of the parts that `resamples` resamples of `size` problems are drawn in."""
    rows = max(1, MAX_RESAMPLED_VALUES // size)
    for done in range(0, resamples, rows):
        yield min(rows, resamples - done), size


def resampled_indices(size: int, resamples: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Which problems each resample has, in parts of shape [rows, size]."""
    for shape in resample_shapes(resamples, size):
        yield rng.integers(size, size=shape)


def resampled_counts(times_U: ArrayLike, resamples: int, seed: int) -> FloatArray:
    """How often each kind of problem comes in the sample itself (row 0) and in each resample, [1 + R, U]."""
    count_U = np.asarray(times_U)
    size = int(count_U.sum())
    redrawn_RU = np.random.default_rng(seed).multinomial(size, count_U / size, size=resamples)
    return np.vstack([count_U, redrawn_RU]).astype(np.float64)


def bootstrap_tail(total: int, level: float) -> float:
    """The share of resampled means to cut off at each end, so that the rest covers what Student's interval would.

    Redrawing few problems varies less than drawing them, and normal tails are too thin for them (Hesterberg 2015).
    """
    from scipy.special import ndtr, stdtrit

    return float(ndtr(stdtrit(total - 1, (1 - level) / 2) * math.sqrt(total / (total - 1))))


def percentile_interval(values_R: ArrayLike, tail: float) -> tuple[Any, Any]:
    """The values between which all but `tail` at each end lie, along the first axis: two numbers, or two arrays."""
    low, high = np.quantile(np.asarray(values_R), [tail, 1 - tail], axis=0)
    return low, high
