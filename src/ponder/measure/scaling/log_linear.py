"""Accuracy against the logarithm of compute: a straight line, its intervals, and how far apart two such curves lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray

ACCURACY_GRID_POINTS = 200  # accuracies at which two curves are compared


@dataclass(frozen=True, slots=True)
class LogLinearFit:
    """accuracy = intercept + slope log10(compute); the slope is the gain per tenfold compute, with a 95 % interval."""

    slope: float
    intercept: float
    slope_interval: tuple[float, float] | None  # None: two points fit any line, and say nothing of its doubt
    residual: float  # standard deviation around the line

    def __call__(self, compute: ArrayLike) -> FloatArray:
        return np.asarray(self.intercept + self.slope * np.log10(np.asarray(compute, dtype=float)))

    def compute_for(self, accuracy: float) -> float:
        """The compute at which the line reaches an accuracy."""
        if self.slope <= 0:
            raise UsageError("the accuracy does not grow with compute, so no compute is enough")
        return float(10 ** ((accuracy - self.intercept) / self.slope))


@dataclass(frozen=True, slots=True)
class ComputeShift:
    """How many times as much compute the first curve takes as the second, for the accuracies that both reach.

    One factor moves one curve onto the other only where `least` and `most`, over all those accuracies, are close.
    """

    factor: float  # the geometric mean over accuracies
    min_factor: float
    max_factor: float
    accuracy_range: tuple[float, float]  # between which it is measured


def fit_log_linear(compute: ArrayLike, accuracy: ArrayLike) -> LogLinearFit:
    """Least squares; the slope's interval is Student's."""
    x, y = _check_curve(compute, accuracy)
    x = x / math.log(10)
    dx = x - x.mean()
    slope = float(dx @ y / (dx @ dx))
    intercept = float(y.mean() - slope * x.mean())
    off = y - intercept - slope * x
    if x.size < 3:
        return LogLinearFit(slope, intercept, None, 0.0)
    from scipy.special import stdtrit

    residual = math.sqrt(float(off @ off) / (x.size - 2))
    half = float(stdtrit(x.size - 2, 0.975)) * residual / math.sqrt(float(dx @ dx))
    return LogLinearFit(slope, intercept, (slope - half, slope + half), residual)


def compute_shift(first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]) -> ComputeShift:
    """How far to slide the first curve (compute, accuracy) along log compute so that it lies on the second.

    At each accuracy that both reach, the distance between the least computes that reach it, a curve being a line in log
    compute between its points. Where a curve falls, its best so far counts: more need not be spent.
    """
    (x1, y1), (x2, y2) = _running_best(*_check_curve(*first)), _running_best(*_check_curve(*second))
    low, high = max(y1[0], y2[0]), min(y1[-1], y2[-1])
    if not low < high:
        raise UsageError(
            f"the curves share no range of accuracy ({y1[0]:.3g} to {y1[-1]:.3g}, {y2[0]:.3g} to {y2[-1]:.3g}), so no "
            f"shift joins them; measure at more budgets"
        )
    levels = np.linspace(low, high, ACCURACY_GRID_POINTS)
    gap = np.interp(levels, y1, x1) - np.interp(levels, y2, x2)
    mean, least, most = (float(np.exp(x)) for x in (gap.mean(), gap.min(), gap.max()))
    return ComputeShift(mean, least, most, (float(low), float(high)))


def _running_best(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The points that are better than all before."""
    better = np.concatenate([[True], y[1:] > np.maximum.accumulate(y)[:-1]])
    return x[better], y[better]


def _check_curve(compute: ArrayLike, accuracy: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Natural log of compute, ascending, and accuracy."""
    x, y = np.asarray(compute, dtype=float).ravel(), np.asarray(accuracy, dtype=float).ravel()
    if x.size != y.size or np.unique(x).size < 2:
        raise UsageError("a curve needs accuracy at two different amounts of compute or more, one for each")
    if np.unique(x).size < x.size:
        raise UsageError("an amount of compute stands twice; give each one accuracy")
    if not (np.all(np.isfinite(x) & (x > 0)) and np.all(np.isfinite(y))):
        raise UsageError("compute must be above 0 and accuracy a number; leave out what was not measured")
    order = np.argsort(x)
    return np.log(x[order]), y[order]
