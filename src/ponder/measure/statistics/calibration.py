"""Calibration of scores: reliability curve, expected calibration error, Brier score, temperature and Platt's scaling.

A score here is a probability of being right. Shapes: N samples, B bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, check_choice, to_floats
from ponder.measure.statistics.intervals import wilson

BinScheme = Literal["width", "mass"]  # as wide as each other, or as many samples in each


@dataclass(frozen=True, slots=True)
class ReliabilityCurve:
    """For each bin that holds samples: what its scores promised, and how often it was right, with Wilson's interval."""

    confidence: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray
    count: IntArray

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap between promise and accuracy, each sample counting once."""
        return float(self.count @ np.abs(self.accuracy - self.confidence) / self.count.sum())


def reliability(
    scores: Sequence[float | None], right: Sequence[float | None], bins: int = 10, by: BinScheme = "width"
) -> ReliabilityCurve:
    """Scores in bins. Equal scores stay in one bin, so bins of equal mass can differ where scores tie."""
    score_N, right_N = _check_probabilities(scores, right)
    check_choice("way of making bins", by, BinScheme)
    if bins < 1:
        raise UsageError(f"a reliability curve needs at least 1 bin, got {bins}")
    if by == "width":
        bin_N = np.minimum((score_N * bins).astype(np.int64), bins - 1)  # the last bin includes 1
    else:
        below_N = np.searchsorted(np.sort(score_N), score_N)
        bin_N = below_N * bins // score_N.size
    used, inverse = np.unique(bin_N, return_inverse=True)
    count_B = np.bincount(inverse, minlength=used.size)
    hits_B = np.bincount(inverse, weights=right_N, minlength=used.size)
    low, high = zip(*(wilson(int(h), int(c)) for h, c in zip(hits_B, count_B, strict=True)), strict=True)
    promised = np.bincount(inverse, weights=score_N) / count_B
    return ReliabilityCurve(promised, hits_B / count_B, np.array(low), np.array(high), count_B)


def ece(
    scores: Sequence[float | None], right: Sequence[float | None], bins: int = 10, by: BinScheme = "width"
) -> float:
    """Expected calibration error (Naeini et al. 2015)."""
    return reliability(scores, right, bins, by).ece


def brier(scores: Sequence[float | None], right: Sequence[float | None]) -> float:
    """Mean squared distance of promise and outcome (Brier 1950): 0 is perfect, .25 is what .5 always gets."""
    score_N, right_N = _check_probabilities(scores, right)
    return float(np.mean((score_N - right_N) ** 2))


def fit_temperature(logits: Sequence[float | None], right: Sequence[float | None]) -> float:
    """T for which sigmoid(logit / T) makes the outcomes likeliest (Guo et al. 2017): above 1, it was too sure."""
    logit_N, right_N = check_scores_and_outcomes(logits, right)
    if np.all(right_N == right_N[0]):
        raise UsageError("all outcomes are the same, so no temperature is best; give right and wrong samples")
    from scipy.optimize import minimize_scalar

    signed_N = np.where(right_N == 1, logit_N, -logit_N)
    if np.all(signed_N >= 0) or np.all(signed_N <= 0):
        raise UsageError(
            "the sign of the logits tells right from wrong every time (or never), so ever smaller (or larger) "
            "temperatures fit better; give more samples"
        )
    if signed_N.mean() <= 0:
        raise UsageError("the logits tell right from wrong no better than a coin, so no finite temperature is best")
    optimum = minimize_scalar(
        lambda t: np.logaddexp(0, -signed_N * np.exp(-t)).mean(), bounds=(-12, 12), method="bounded"
    )
    return float(np.exp(optimum.x))


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Scores of any kind as probabilities: sigmoid(slope * score + offset)."""

    slope: float
    offset: float

    def __call__(self, scores: Sequence[float]) -> FloatArray:
        return np.asarray(np.exp(-np.logaddexp(0, -(self.slope * np.asarray(scores, float) + self.offset))))


def fit_platt(scores: Sequence[float | None], right: Sequence[float | None]) -> PlattScaling:
    """The line whose sigmoid makes the outcomes likeliest (Platt 1999). As there, a right sample of R counts as
    (R + 1) / (R + 2) and a wrong one of W as 1 / (W + 2), so that no score becomes certain."""
    score_N, right_N = check_scores_and_outcomes(scores, right)
    hits, misses = right_N.sum(), (1 - right_N).sum()
    if not hits or not misses:
        raise UsageError("all outcomes are the same, so there is nothing to calibrate; give right and wrong samples")
    from scipy.optimize import minimize

    target_N = np.where(right_N == 1, (hits + 1) / (hits + 2), 1 / (misses + 2))
    mean, spread = score_N.mean(), score_N.std() or 1.0
    x_N = (score_N - mean) / spread

    def loss(line: FloatArray) -> tuple[float, FloatArray]:
        z_N = line[0] * x_N + line[1]
        gap_N = np.exp(-np.logaddexp(0, -z_N)) - target_N
        value = np.mean(np.logaddexp(0, z_N) - target_N * z_N)
        return float(value), np.array([gap_N @ x_N, gap_N.sum()]) / len(x_N)

    slope, offset = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    return PlattScaling(float(slope / spread), float(offset - slope * mean / spread))


def check_scores_and_outcomes(
    scores: Sequence[float | None], right: Sequence[float | None]
) -> tuple[FloatArray, FloatArray]:
    """Score and outcome of each sample; both must be known, and outcomes 0 or 1."""
    if len(scores) != len(right) or len(right) == 0:
        raise UsageError(f"every sample takes one score and one outcome; got {len(scores)} and {len(right)}")
    score_N, right_N = to_floats(scores), to_floats(right)
    if lost := int((~np.isfinite(score_N) | np.isnan(right_N)).sum()):
        raise UsageError(f"{lost} of {right_N.size} samples lack a score or a verdict; leave them out and say so")
    if not np.all((right_N == 0) | (right_N == 1)):
        raise UsageError("an outcome is right (1) or wrong (0); graded outcomes have no calibration")
    return score_N, right_N


def _check_probabilities(
    scores: Sequence[float | None], right: Sequence[float | None]
) -> tuple[FloatArray, FloatArray]:
    score_N, right_N = check_scores_and_outcomes(scores, right)
    if np.any((score_N < 0) | (score_N > 1)):
        raise UsageError("calibration is of probabilities, in [0, 1]; pass reward-model logits through a sigmoid first")
    return score_N, right_N
