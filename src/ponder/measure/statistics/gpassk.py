"""How steadily a model is right: G-Pass@k and mG-Pass@k (Liu et al. 2024), pass^k (Yao et al. 2024).

pass@k asks for one right sample of k, G-Pass@k for a share tau of them, pass^k for all.
"""

from __future__ import annotations

from math import ceil, isfinite

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray
from ponder.measure.statistics.passk import check_counts, require_k_samples


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
