"""How coverage grows with samples: the exponentiated power law c = exp(a k^b) (Brown et al. 2024), fitted and tried.

Shapes: K values of k, P problems, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, check_choice
from ponder.measure.statistics.bootstrap import percentile_interval, resampled_counts
from ponder.measure.statistics.coverage import unique_count_pairs
from ponder.measure.statistics.passk import check_counts, pass_at_k

# Where the search in coverage also starts, as log(-a) and b: coverage of 0 or 1 can lead the line in logs astray.
FIT_STARTS = ((-1.0, -0.3), (0.0, -1.0), (1.0, -0.3), (2.0, -1.0), (3.0, -0.5))

FitSpace = Literal["coverage", "log"]  # least squares in coverage, or of log(-log c) on log k, a straight line there


@dataclass(frozen=True, slots=True)
class CoverageLaw:
    """c(k) = exp(a k^b) with a, b < 0 where coverage grows. Intervals are 95 %, from problems drawn again."""

    a: float
    b: float
    a_interval: tuple[float, float] | None = None
    b_interval: tuple[float, float] | None = None
    resampled_parameters: FloatArray | None = field(
        default=None, repr=False, compare=False
    )  # [R, 2]: a and b of each resample

    def __call__(self, k: ArrayLike) -> FloatArray:
        return np.asarray(np.exp(self.a * np.asarray(k, dtype=float) ** self.b))

    def confidence_band(self, k: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """95 % of the resampled laws at each k lie between these."""
        if self.resampled_parameters is None:
            raise UsageError("this law was fitted to a curve alone; fit it to problems to know how sure it is")
        a_R1, b_R1 = self.resampled_parameters[:, :1], self.resampled_parameters[:, 1:]
        low, high = np.quantile(np.exp(a_R1 * np.atleast_1d(k).astype(float) ** b_R1), [0.025, 0.975], axis=0)
        return low, high


@dataclass(frozen=True, slots=True)
class CoverageExtrapolation:
    """A law fitted to few samples, against what more samples brought."""

    law: CoverageLaw
    k: IntArray
    predicted: FloatArray
    observed: FloatArray

    @property
    def error(self) -> float:
        """The mean distance of prediction and coverage."""
        return float(np.abs(self.predicted - self.observed).mean())


def fit_coverage_law(k: ArrayLike, coverage: ArrayLike, fit: FitSpace = "coverage") -> CoverageLaw:
    """The law through a coverage curve. Space k evenly on a log scale, or large k decide alone."""
    k_K, c_K = np.atleast_1d(np.asarray(k, dtype=float)), np.atleast_1d(np.asarray(coverage, dtype=float))
    _check_curve(k_K, c_K)
    a, b = _require_fit(_fit_rows(k_K, c_K[None], fit)[0])
    return CoverageLaw(a, b)


def fit_coverage_law_to_counts(
    n: ArrayLike, c: ArrayLike, k: ArrayLike, fit: FitSpace = "coverage", resamples: int = 300, seed: int = 0
) -> CoverageLaw:
    """The law of a set of problems, n samples each and c of them right, with intervals over problems."""
    n_P, c_P, k_K = check_counts(n, c, k)
    n_U, c_U, times_U = unique_count_pairs(n_P, c_P)
    size = int(times_U.sum())
    drawn_RU = resampled_counts(times_U, resamples, seed)
    curves_RK = drawn_RU @ pass_at_k(n_U, c_U, k_K) / size
    _check_curve(k_K.astype(float), curves_RK[0])
    a, b = _require_fit(_fit_rows(k_K.astype(float), curves_RK[:1], fit)[0])
    usable = (curves_RK.min(axis=1) < 1) & (curves_RK.max(axis=1) > 0)  # else no law is best
    again = _fit_rows(k_K.astype(float), curves_RK[1:][usable[1:]], fit, near=(a, b))
    again = again[np.isfinite(again).all(axis=1)]
    if size < 2 or not resamples or len(again) < resamples / 2:  # no doubt that could be measured
        return CoverageLaw(a, b)
    (a_low, b_low), (a_high, b_high) = percentile_interval(again, 0.025)
    return CoverageLaw(a, b, (float(a_low), float(a_high)), (float(b_low), float(b_high)), again)


def extrapolate_coverage(
    n: ArrayLike, c: ArrayLike, fit_to: ArrayLike, predict: ArrayLike, fit: FitSpace = "coverage", seed: int = 0
) -> CoverageExtrapolation:
    """Fit to the k in `fit_to`, predict coverage at the larger ones of `predict`, and say how far off that is."""
    fitted_k, predicted_k = np.atleast_1d(np.asarray(fit_to)), np.atleast_1d(np.asarray(predict))
    if predicted_k.min() <= fitted_k.max():
        raise UsageError(
            f"to extrapolate, predict k above those fitted to: {predicted_k.min()} is not above {fitted_k.max()}"
        )
    law = fit_coverage_law_to_counts(n, c, fitted_k, fit, seed=seed)
    measured = pass_at_k(np.ravel(n), np.ravel(c), predicted_k).mean(axis=0)
    return CoverageExtrapolation(law, predicted_k.astype(np.int64), law(predicted_k), measured)


def _check_curve(k_K: FloatArray, c_K: FloatArray) -> None:
    if k_K.shape != c_K.shape or k_K.size < 2 or len(set(k_K.tolist())) < 2:
        raise UsageError("two numbers of a law need coverage at two k or more, one coverage for each k")
    if not np.all((c_K >= 0) & (c_K <= 1)) or not np.all(k_K > 0):
        raise UsageError("coverage lies in [0, 1] and k above 0; leave out what was not measured")
    if np.all(c_K == 1) or np.all(c_K == 0):
        raise UsageError("every problem is covered at every k, or none at any: no law can be told from that")


def _fit_rows(k_K: FloatArray, c_RK: FloatArray, fit: FitSpace, near: tuple[float, float] | None = None) -> FloatArray:
    """a and b for each row, NaN where no line is best: the line in logs, then Levenberg and Marquardt's steps."""
    check_choice("way to fit", fit, FitSpace)
    lower, upper = (0.01, 0.99) if fit == "coverage" else (np.nan, np.nan)
    inside = np.where((c_RK > 0) & (c_RK < 1), c_RK, np.where(c_RK <= 0, lower, upper))
    x_K, y_RK = np.log(k_K), np.log(-np.log(inside))
    is_known = ~np.isnan(y_RK)
    is_known &= is_known.sum(axis=1, keepdims=True) > 1  # through one point go all lines
    count = is_known.sum(axis=1, keepdims=True)
    x_RK, y_RK = np.where(is_known, x_K, 0.0), np.where(is_known, y_RK, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        dx_RK = np.where(is_known, x_RK - x_RK.sum(axis=1, keepdims=True) / count, 0.0)
        b_R = (dx_RK * y_RK).sum(axis=1) / (dx_RK**2).sum(axis=1)
        u_R = (y_RK.sum(axis=1) - b_R * x_RK.sum(axis=1)) / count[:, 0]
    if fit == "coverage":
        known = FIT_STARTS if near is None else [(np.log(-near[0]), near[1])]
        starts = [(np.full(len(c_RK), u), np.full(len(c_RK), b)) for u, b in known]
        ends = [_levenberg_marquardt(x_K, c_RK, u, b) for u, b in (*starts, *([(u_R, b_R)] if near is None else []))]
        best_R = np.argmin([loss_R for _, _, loss_R in ends], axis=0)
        u_R, b_R = (np.choose(best_R, [end[i] for end in ends]) for i in (0, 1))
    return np.stack([-np.exp(u_R), b_R], axis=1)


def _require_fit(pair: FloatArray) -> tuple[float, float]:
    if np.isnan(pair).any():
        raise UsageError("the line in logs needs coverage strictly between 0 and 1 at two k; use fit='coverage'")
    return float(pair[0]), float(pair[1])


def _levenberg_marquardt(
    x_K: FloatArray, c_RK: FloatArray, u_R: FloatArray, b_R: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least squares of exp(-exp(u + b x)) - c, each row with its own damping: u, b and what is left."""
    damp_R = np.full(len(u_R), 1e-2)

    def law(u: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
        rate = np.exp(np.clip(u[:, None] + b[:, None] * x_K, -700, 6))
        return np.exp(-rate), rate

    value_RK, rate_RK = law(u_R, b_R)
    loss_R = ((value_RK - c_RK) ** 2).sum(axis=1)
    for _ in range(100):
        du_RK = -rate_RK * value_RK
        db_RK, off_RK = du_RK * x_K, value_RK - c_RK
        uu, ub, bb = (du_RK**2).sum(1), (du_RK * db_RK).sum(1), (db_RK**2).sum(1)
        gu, gb = (du_RK * off_RK).sum(1), (db_RK * off_RK).sum(1)
        uu_d, bb_d = uu * (1 + damp_R) + 1e-300, bb * (1 + damp_R) + 1e-300
        det = uu_d * bb_d - ub * ub + 1e-300
        step_u, step_b = -(bb_d * gu - ub * gb) / det, -(uu_d * gb - ub * gu) / det
        value, rate = law(u_R + step_u, b_R + step_b)
        loss = ((value - c_RK) ** 2).sum(axis=1)
        better = loss < loss_R
        u_R, b_R = np.where(better, u_R + step_u, u_R), np.where(better, b_R + step_b, b_R)
        value_RK, rate_RK = np.where(better[:, None], value, value_RK), np.where(better[:, None], rate, rate_RK)
        loss_R = np.where(better, loss, loss_R)
        damp_R = np.clip(np.where(better, damp_R / 5, damp_R * 4), 1e-12, 1e12)
        if np.all((np.abs(step_u) + np.abs(step_b) < 1e-9) | (damp_R >= 1e12)):
            break
    return u_R, b_R, loss_R
