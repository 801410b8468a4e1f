"""pass@k: the chance that at least one of k samples is right, from n samples of which c were (Chen et al. 2021)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ponder.errors import UsageError


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """1 - C(n-c, k) / C(n, k) for each problem: the unbiased estimate from n samples, c of them right.

    The ratio is a product of k factors in [0, 1], so nothing overflows however large n is.
    """
    n_P, c_P = np.broadcast_arrays(np.asarray(n), np.asarray(c))  # P: problems
    if k < 1:
        raise UsageError(f"pass@k needs k >= 1, got {k}")
    if np.any((c_P < 0) | (c_P > n_P)):
        raise UsageError("more right samples than samples, or fewer than none; it takes 0 <= c <= n")
    if np.any(n_P < k):
        short = int(np.sum(n_P < k))
        raise UsageError(
            f"pass@{k} needs {k} samples of every problem; {short} of {n_P.size} have fewer "
            f"(least: {int(n_P.min())}). Sample more, or ask for a smaller k"
        )
    fail_P = np.ones(n_P.shape)
    for i in range(k):  # C(n-c, k) / C(n, k) = prod_i (n-c-i) / (n-i)
        fail_P *= np.maximum(n_P - c_P - i, 0) / (n_P - i)
    return 1 - fail_P


def mean_pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> float:
    """pass@k of a set of problems: each counts once, however many samples it has."""
    each = pass_at_k(n, c, k)
    if each.size == 0:
        raise UsageError(f"pass@{k} of no problems is undefined")
    return float(each.mean())
