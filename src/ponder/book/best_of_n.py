"""Best of N over all subsets of a pool of samples, and how far it is from the policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def best_of_n_kl(n: int) -> float:
    """KL of best of n from the policy: log n - (n - 1) / n (Stiennon et al. 2020)."""
    return math.log(n) - (n - 1) / n


def expected_best(
    scores: Sequence[float], worth: Sequence[float], n: int, states: Sequence[bool] | None = None
) -> float:
    """The mean worth of the answer with the highest score, over all subsets of n; equal scores share evenly. Where
    `states` says which answers state something, the others come last, whatever their score."""
    _, place = np.unique(scores, return_inverse=True)
    if states is not None:
        place = place + np.asarray(states) * (place.max() + 1)
    order = np.argsort(place, kind="stable")
    worths = np.asarray(worth, dtype=float)[order]
    _, group = np.unique(place[order], return_inverse=True)
    worths = (np.bincount(group, worths) / np.bincount(group))[group]  # of equal scores, their mean
    total = len(worths)
    # The i-th smallest is the highest of a subset with chance C(i - 1, n - 1) / C(total, n).
    log_chance = [
        _log_choose(i, n - 1) - _log_choose(total, n) if i >= n - 1 else -math.inf for i in range(total)
    ]  # fmt: skip
    return float(np.exp(log_chance) @ worths)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def best_curve(
    scores: Sequence[Sequence[float]],
    right: Sequence[Sequence[float]],
    sizes: Sequence[int],
    states: Sequence[Sequence[bool]] | None = None,
) -> dict[str, list[float]]:
    """The judge's score and the verdict of the best of each n, over all problems; see `expected_best`."""
    able: Sequence[Sequence[bool] | None] = states or [None] * len(scores)

    def mean_best(worth: Sequence[Sequence[float]], n: int) -> float:
        each = [expected_best(s, w, n, a) for s, w, a in zip(scores, worth, able, strict=True)]
        return round(float(np.mean(each)), 5)

    return {key: [mean_best(worth, n) for n in sizes] for key, worth in (("judge", scores), ("right", right))}
