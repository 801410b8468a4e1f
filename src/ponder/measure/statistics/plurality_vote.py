"""Exact accuracy of a vote: the chance that an answer is the most frequent of k samples; the first seen wins ties.

Samples come in random order, so answers that tie are equally likely to be seen first: with b others at the top an
answer wins one time in 1 + b, which is the integral of w^b over w in [0, 1]. For each height t at which it may win,
the others' counts are below t, or at t and marked with w; their generating functions are multiplied, and Gauss's
quadrature is exact for the polynomial in w. All terms are positive: nothing cancels.

Shapes: T heights, W nodes of the quadrature, K + 1 sizes of a vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, check_choice
from ponder.measure.statistics.vote_arrays import VoteArrays

VoteEstimator = Literal["exact", "normal", "sampled"]

MAX_EXACT_OPERATIONS = 4e9  # multiplications that one problem may take: some seconds
MAX_SAMPLED_COUNTS = 4_000_000  # counts drawn at once


def winning_weights(
    winner: FloatArray, others: Sequence[FloatArray], silent: FloatArray | None, most: int
) -> FloatArray:
    """Weights [most + 1] of votes of each size that one answer wins, from the weights of each answer's counts.

    Entry x of an array is the weight of x votes for that answer; `silent` is that of samples that do not vote.
    """
    heights = min(winner.size - 1, most)
    if heights < 1:
        return np.zeros(most + 1)
    nodes, shares = np.polynomial.legendre.leggauss(min(len(others), most - 1) // 2 + 1)
    w_W1, share_W = (nodes[:, None] + 1) / 2, shares / 2
    ways_TWK = np.zeros((heights, nodes.size, most + 1))
    ways_TWK[:, :, 0] = 1.0
    for counts in others:
        new_TWK = counts[0] * ways_TWK
        for x in range(1, min(counts.size - 1, heights) + 1):
            new_TWK[x:, :, x:] += counts[x] * ways_TWK[x:, :, : most + 1 - x]  # heights above x
            new_TWK[x - 1, :, x:] += counts[x] * w_W1 * ways_TWK[x - 1, :, : most + 1 - x]  # a tie at height x
        ways_TWK = new_TWK
    ways_TK = np.einsum("twk,w->tk", ways_TWK, share_W)
    won_K = np.zeros(most + 1)
    for t in range(1, heights + 1):
        won_K[t:] += winner[t] * ways_TK[t - 1, : most + 1 - t]
    return won_K if silent is None else np.convolve(won_K, silent)[: most + 1]


def majority_at_k(cast: VoteArrays, k_K: IntArray) -> FloatArray:
    """What the majority of k of these samples is worth, as the exact mean over all subsets and orders, for each k."""
    n = cast.size
    votes_L = np.bincount(cast.label_N[cast.label_N >= 0], minlength=cast.value_L.size)
    worthy = np.flatnonzero((votes_L > 0) & (cast.value_L != 0))  # NaN is worthy: it must be told
    work = sum(_exact_operations(int(votes_L[i]), int((votes_L > 0).sum()), n, int(k_K.max())) for i in worthy)
    if work > MAX_EXACT_OPERATIONS:
        raise UsageError(f"the exact vote of {int(k_K.max())} among {n} samples takes too long; take random subsets")
    out_K = np.zeros(k_K.size)
    for span in _stable_k_groups(n, k_K):
        for i in worthy:
            chance = _win_probabilities(votes_L, int(i), n, k_K[span])
            out_K[span] += np.where(chance > 0, chance * cast.value_L[i], 0.0)
    return out_K


def plurality_accuracy(
    p: Sequence[float],
    n: int,
    right: int = 0,
    method: VoteEstimator = "exact",
    draws: int = 100_000,
    seed: int = 0,
) -> float:
    """How often the most frequent of n independent samples is answer number `right`, the answers having chances p.

    "exact" multiplies generating functions, "normal" is the limit of many samples, "sampled" draws votes.
    """
    p_L = _check_probabilities(p, right)
    check_choice("method", method, VoteEstimator)
    if n != int(n) or n < 1 or draws < 1:
        raise UsageError(f"a vote of {n} samples, {draws} times, is undefined; it takes at least 1 of each")
    if method == "sampled":
        rng, won, rows = np.random.default_rng(seed), 0.0, max(1, MAX_SAMPLED_COUNTS // p_L.size)
        for done in range(0, draws, rows):
            counts = rng.multinomial(n, p_L, size=min(rows, draws - done))
            top = counts == counts.max(axis=1, keepdims=True)
            won += float((top[:, right] / top.sum(axis=1)).sum())
        return won / draws
    others = np.delete(p_L, right)
    others = others[others > 0]
    if p_L[right] == 0 or others.size == 0:
        return float(p_L[right] > 0)
    if method == "normal":
        return _normal_approximation(p_L[right], others, n)
    if _exact_operations(n, p_L.size, n * p_L.size, n) > MAX_EXACT_OPERATIONS:
        raise UsageError(f"the exact vote of {n} samples takes too long; use method='normal' or method='sampled'")
    from scipy.stats import poisson

    x = np.arange(n + 1)  # counts that are Poisson for themselves are multinomial given their sum
    won_K = winning_weights(poisson.pmf(x, n * p_L[right]), [poisson.pmf(x, n * q) for q in others], None, n)
    return float(won_K[n] / poisson.pmf(n, n))


def plurality_limit(p: Sequence[float], right: int = 0) -> float:
    """What a vote comes to with ever more samples: the likeliest answer wins, and equals share."""
    p_L = _check_probabilities(p, right)
    top = np.isclose(p_L, p_L.max(), rtol=1e-12, atol=0)
    return float(top[right] / top.sum())


def _win_probabilities(votes_L: IntArray, winner: int, n: int, k_K: IntArray) -> FloatArray:
    """The chance to win votes of k. Each sample joins with chance q for itself; given how many do, all subsets count
    alike, so any q gives the same result, and one near k / n keeps the numbers from vanishing."""
    from scipy.stats import binom

    q, most = _inclusion_probability(n, k_K), int(k_K.max())
    taken = [binom.pmf(np.arange(v + 1), v, q) for v in votes_L]
    others = [t for i, t in enumerate(taken) if i != winner and votes_L[i]]
    silent = n - int(votes_L.sum())
    none = binom.pmf(np.arange(silent + 1), silent, q) if silent else None
    won = winning_weights(taken[winner], others, none, most)
    return np.asarray(np.clip(won[k_K] / binom.pmf(k_K, n, q), 0.0, 1.0))


def _inclusion_probability(n: int, k_K: IntArray) -> float:
    return float(k_K.min() + k_K.max()) / (2 * n)


def _stable_k_groups(n: int, k_K: IntArray) -> list[IntArray]:
    """Places of k in groups, so that in each no chance is near the smallest float."""
    from scipy.stats import binom

    groups: list[IntArray] = []
    waiting = [np.argsort(k_K)]
    while waiting:
        span = waiting.pop()
        if span.size > 1 and binom.logpmf(k_K[span], n, _inclusion_probability(n, k_K[span])).min() < -300:
            waiting += [span[: span.size // 2], span[span.size // 2 :]]
        else:
            groups.append(span)
    return groups


def _exact_operations(height: int, answers: int, votes: int, most: int) -> float:
    return float(min(height, most)) * (min(answers, most) / 2 + 1) * votes * most


def _check_probabilities(p: Sequence[float], right: int) -> FloatArray:
    p_L = np.asarray(p, dtype=np.float64)
    if p_L.ndim != 1 or p_L.size == 0 or np.any(~(p_L >= 0)) or abs(p_L.sum() - 1) > 1e-6:
        raise UsageError(f"the chances of the answers must be at least 0 and sum to 1; got {list(p)}")
    if not 0 <= right < p_L.size:
        raise UsageError(f"the right answer is number {right}, but there are {p_L.size}: count from 0")
    return p_L / p_L.sum()


def _normal_approximation(p: float, others: FloatArray, n: int) -> float:
    """All differences of counts above 0: they are jointly normal as n grows."""
    from scipy.stats import multivariate_normal

    if others.size > 20:
        raise UsageError("the normal limit takes at most 21 answers; use method='sampled'")
    gap = n * (p - others)
    spread = n * (np.diag(others) + p - np.outer(p - others, p - others))
    law = multivariate_normal(np.zeros(others.size), spread, allow_singular=True, seed=0)
    return float(np.clip(law.cdf(gap), 0.0, 1.0))


def majority_accuracy(p: float, n: int) -> float:
    """How often more than half of n independent samples are right, each with chance p; half of exactly half."""
    if not 0 <= p <= 1 or n < 1 or n != int(n):
        raise UsageError(f"a majority of {n} samples with chance {p} is undefined; it takes n >= 1 and p in [0, 1]")
    from scipy.stats import binom  # scipy.stats takes half a second to import

    return float(binom.sf(n // 2, n, p) + (binom.pmf(n // 2, n, p) / 2 if n % 2 == 0 else 0.0))
