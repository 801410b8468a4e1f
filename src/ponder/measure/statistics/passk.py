"""pass@k, G-Pass@k and pass^k: chances of k samples, from n samples of which c are right.

pass@k asks for one right sample of k (Chen et al. 2021), G-Pass@k for a share tau of them, mG-Pass@k averages that over
tau (Liu et al. 2024), and pass^k asks for all (Yao et al. 2024). Shapes: P problems, K values of k.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, to_ints

MIN_STIRLING_ARGUMENT = 16  # from here on four terms of Stirling's series are exact to 1e-15


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike, short: Literal["error", "missing"] = "error") -> FloatArray:
    """1 - C(n-c, k) / C(n, k) for each problem: the unbiased estimate from n samples, c of them right.

    Several k add a last axis. A problem of fewer than k samples is refused, or NaN where `short` is "missing".
    """
    n_P, c_P, k_K = check_counts(n, c, k)
    if short != "missing":
        require_k_samples(n_P, k_K, "pass")
    wide = n_P.shape + (1,) * k_K.ndim
    n_PK, c_PK, k_PK = np.broadcast_arrays(n_P.reshape(wide), c_P.reshape(wide), k_K)
    estimate = np.asarray(-np.expm1(log_no_hit_probability(n_PK, c_PK, k_PK)))
    alone = np.minimum(c_PK, k_PK) == 1  # one sample, or one right among all: the share itself, to the last bit
    estimate = np.where(alone, np.maximum(c_PK, k_PK) / n_PK, estimate)
    return np.where(k_PK > n_PK, np.nan, estimate)


def mean_pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> float:
    """pass@k of a set of problems: each counts once, however many samples it has."""
    each = pass_at_k(n, c, k)
    if each.size == 0:
        raise UsageError(f"pass@{k} of no problems is undefined")
    return float(each.mean())


def g_pass_at_k(n: ArrayLike, c: ArrayLike, k: int, tau: float) -> FloatArray:
    """The chance that at least ceil(tau k) of k samples are right: sum_j C(c, j) C(n-c, k-j) / C(n, k).

    At tau = 0 it is what it tends to as tau falls: pass@k.
    """
    if not (isfinite(tau) and 0 <= tau <= 1):
        raise UsageError(f"tau is the share of k samples that must be right, in [0, 1]; got {tau}")
    chances = correct_count_probabilities(n, c, k)
    least = max(1, ceil(tau * k - 1e-9))  # 0.6 * 5 is a little more than 3
    return chances[..., least:].sum(axis=-1)


def mean_g_pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> FloatArray:
    """mG-Pass@k = 2 / k times the sum of G-Pass@k at tau = i / k, for i from ceil(k / 2) + 1 to k."""
    chances = correct_count_probabilities(n, c, k)
    at_least = np.cumsum(chances[..., ::-1], axis=-1)[..., ::-1]
    return 2 / k * at_least[..., ceil(k / 2) + 1 :].sum(axis=-1)


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: int) -> FloatArray:
    """pass^k = C(c, k) / C(n, k): the chance that all k samples are right."""
    return correct_count_probabilities(n, c, k)[..., k]


def correct_count_probabilities(n: ArrayLike, c: ArrayLike, k: int) -> FloatArray:
    """The chances that 0, 1, ... k of k samples are right, as a last axis: hypergeometric.

    Built from the ratios of neighbours and scaled to sum to 1, so that no binomial coefficient is ever formed.
    """
    n_P, c_P, k_ = check_counts(n, c, k)
    if k_.ndim:
        raise UsageError("give one k at a time")
    k = int(k_)
    require_k_samples(n_P, k_, "G-pass")
    j = np.arange(k + 1.0)
    n_P1, c_P1 = n_P[..., None].astype(float), c_P[..., None].astype(float)
    possible = (j <= c_P1) & (k - j <= n_P1 - c_P1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # chance(j) / chance(j-1) = (c-j+1) (k-j+1) / (j (n-c-k+j))
        ratio = np.log((c_P1 - j + 1) * (k - j + 1) / (np.maximum(j, 1) * (n_P1 - c_P1 - k + j)))
    ratio[~(possible & np.roll(possible, 1, axis=-1))] = 0.0  # before the first that can be
    ratio[..., 0] = 0.0
    height = np.where(possible, np.cumsum(ratio, axis=-1), -np.inf)
    chances = np.exp(height - height.max(axis=-1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=-1, keepdims=True))


def log_no_hit_probability(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> FloatArray:
    """log of C(n-c, k) / C(n, k): that k of n samples hold none of c. -inf where they must; arrays broadcast.

    The ratio is symmetric in c and k. With m the smaller and b = n less the larger, it is (b)_m / (n)_m, and Stirling's
    series for both falling factorials leaves terms no larger than m: the error is about m times the rounding of
    floats, at any n. A difference of log-gammas would lose eight digits at n = 10^7.
    """
    n_, c_, k_ = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (n, c, k)))
    m, most = np.minimum(c_, k_), np.maximum(c_, k_)
    b, left = n_ - most, n_ - most - m
    safe_b, safe_left, safe_n = np.maximum(b, 1.0), np.maximum(left, 1.0), np.maximum(n_, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = (
            m * np.log1p(-np.minimum(most / safe_n, 1.0))
            - (left + 0.5) * np.log1p(-m / safe_b)
            + (n_ - m + 0.5) * np.log1p(-m / safe_n)
            + (_stirling(safe_b) - _stirling(safe_left))
            - (_stirling(safe_n) - _stirling(np.maximum(n_ - m, 1.0)))
        )
        out = np.where(m == 1, np.log1p(-most / safe_n), out)
    if np.any(
        few := (left >= 0) & (left < MIN_STIRLING_ARGUMENT) & (m > 1)
    ):  # Stirling's series is poor for the smallest factorials
        from scipy.special import gammaln

        x, y, z, w = b[few] + 1, left[few] + 1, n_[few] + 1, n_[few] - m[few] + 1
        out = np.array(out)
        out[few] = gammaln(x) - gammaln(y) - gammaln(z) + gammaln(w)
    return np.where(left < 0, -np.inf, np.where(m == 0, 0.0, out))


def _stirling(x: FloatArray) -> FloatArray:
    """log x! less x log x - x + log(2 pi x) / 2."""
    y = 1 / (x * x)
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y / 1680))) / x


def check_counts(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
    """The three as whole numbers, or an error that says which is none."""
    n_, c_, k_ = (to_ints(x, name) for x, name in ((n, "n"), (c, "c"), (k, "k")))
    if k_.size == 0:
        raise UsageError("give at least one k")
    if np.any(k_ < 1):
        raise UsageError(f"pass@k needs k >= 1, got {int(k_.min())}")
    try:
        n_, c_ = np.broadcast_arrays(n_, c_)
    except ValueError:
        raise UsageError(f"every problem takes one n and one c; got {n_.size} and {c_.size}") from None
    if np.any((c_ < 0) | (c_ > n_)):
        raise UsageError("more right samples than samples, or fewer than none; it takes 0 <= c <= n")
    if np.any(n_ < 1):
        raise UsageError(f"{int(np.sum(n_ < 1))} of {n_.size} problems have no sample; leave them out, or sample them")
    return n_, c_, k_


def require_k_samples(n_P: IntArray, k_K: IntArray, name: str) -> None:
    k = int(k_K.max(initial=1))
    if short := int(np.sum(n_P < k)):
        raise UsageError(
            f"{name}@{k} needs {k} samples of every problem; {short} of {n_P.size} have fewer "
            f"(least: {int(n_P.min())}). Sample more, or ask for a smaller k"
        )
