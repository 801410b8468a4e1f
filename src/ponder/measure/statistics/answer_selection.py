"""Selection curves: what choosing among k samples is worth, by majority, weighted majority or best score.

Exact where a formula exists, else the mean and spread over random subsets, or over the first k as they came.
Shapes: P problems, S subsets, R rows (a problem and a subset), N samples, K values of k, L answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, check_choice
from ponder.measure.statistics.best_of_k import best_at_k
from ponder.measure.statistics.coverage import TooFewSamples
from ponder.measure.statistics.passk import check_counts, require_k_samples
from ponder.measure.statistics.plurality_vote import majority_at_k
from ponder.measure.statistics.sample_curve import SampleCurve, sample_curve
from ponder.measure.statistics.vote_arrays import MissingScores, VoteArrays, to_vote_arrays

SampleSelectionRule = Literal["majority", "weighted", "best"]
SubsetScheme = Literal["exact", "subsets", "prefix"]

MAX_COUNTED_VOTES = 8_000_000  # votes counted at once


def selection_curve(
    rule: SampleSelectionRule,
    answers: Sequence[Sequence[Hashable | None]],
    right: Sequence[Sequence[float | None]],
    k: ArrayLike,
    scores: Sequence[Sequence[float | None]] | None = None,
    how: SubsetScheme = "subsets",
    subsets: int = 100,
    missing: MissingScores = "error",
    short: TooFewSamples = "error",
    seed: int = 0,
) -> SampleCurve:
    """The worth of the answer chosen among k samples of each problem, as a mean over problems.

    "exact" is the expectation over all subsets and orders (majority and best), "subsets" the mean and sd over random
    ones, "prefix" takes the first k as they came. An attempt without an answer never wins; where nobody votes the
    choice is wrong; where nobody could judge the winner the problem is left out and counted. Of problems with fewer
    than k samples `short` decides as in `coverage_curve`.
    """
    for kind, word, words in (
        ("rule", rule, SampleSelectionRule),
        ("way to take subsets", how, SubsetScheme),
        ("way", short, TooFewSamples),
    ):
        check_choice(kind, word, words)
    if how == "subsets" and subsets < 1:
        raise UsageError(f"{subsets} random subsets have no mean; take at least 1, and 2 to see their spread")
    if rule != "majority" and scores is None:
        raise UsageError(f"{rule} needs scores, one per sample")
    if len(answers) != len(right) or (scores is not None and len(scores) != len(right)):
        raise UsageError("answers, outcomes and scores must be of the same problems")
    used = [None] * len(right) if rule == "majority" or scores is None else scores
    cast = [to_vote_arrays(a, r, s, missing) for a, r, s in zip(answers, right, used, strict=True)]
    if not cast:
        raise UsageError("a selection over no problems is undefined; give at least one problem")
    n_P, _, k_K = check_counts([b.size for b in cast], 0, k)
    k_K = np.atleast_1d(k_K)
    if short == "error":
        require_k_samples(n_P, k_K, rule)
    few_PK = k_K > n_P[:, None]
    if how == "exact":
        value_PK, sd_K = np.array([_exact_values(rule, b, k_K) for b in cast]), None
    else:
        worth_PSK = selected_values(rule, cast, k_K, 0 if how == "prefix" else subsets, seed)
        known_PK = np.asarray(~np.isnan(worth_PSK).any(axis=1)) & ~few_PK
        with np.errstate(invalid="ignore", divide="ignore"):
            of_subset_SK = np.where(known_PK[:, None], worth_PSK, 0.0).sum(axis=0) / known_PK.sum(axis=0)
        value_PK = np.where(known_PK, worth_PSK.mean(axis=1), np.nan)
        sd_K = of_subset_SK.std(axis=0, ddof=1) if len(of_subset_SK) > 1 else None
    curve = sample_curve(k_K, value_PK, sd_K, seed=seed)
    hidden_K = few_PK.any(axis=0) & (short == "missing")
    mean_K, low_K, high_K = (np.where(hidden_K, np.nan, x) for x in (curve.mean, curve.low, curve.high))
    return replace(curve, mean=mean_K, low=low_K, high=high_K)


def selected_values(
    rule: SampleSelectionRule, cast: Sequence[VoteArrays], k_K: IntArray, subsets: int, seed: int = 0
) -> FloatArray:
    """What the chosen answer is worth, [problems, subsets, k]; with 0 subsets the samples stay in their order.

    A random order's first k are a random subset of k, so one order serves all k.
    """
    rng = np.random.default_rng(seed)
    most, orders = int(k_K.max()), max(subsets, 1)
    widest = max(b.value_L.size for b in cast)
    rows = max(1, MAX_COUNTED_VOTES // (orders * (most + widest)))
    parts = []
    for first in range(0, len(cast), rows):
        some = cast[first : first + rows]
        label_RN, weight_RN = np.full((len(some) * orders, most), -1), np.zeros((len(some) * orders, most))
        for i, b in enumerate(some):  # a problem of fewer samples has no votes after its last
            order, rows_of = (
                _sample_orders(rng, b.size, min(most, b.size), subsets),
                slice(i * orders, (i + 1) * orders),
            )
            label_RN[rows_of, : order.shape[1]] = b.label_N[order]
            weight_RN[rows_of, : order.shape[1]] = b.weight_N[order]
        width = max(1, *(b.value_L.size for b in some))
        chosen_RK = _winners(rule, label_RN, weight_RN, width, k_K)
        worth_PL = np.zeros((len(some), width + 1))
        for i, b in enumerate(some):
            worth_PL[i, : b.value_L.size] = b.value_L
            worth_PL[i, -1] = b.no_answer_value  # what the label -1 names
        parts.append(worth_PL[np.repeat(np.arange(len(some)), orders)[:, None], chosen_RK])
    return np.concatenate(parts).reshape(len(cast), orders, k_K.size)


def _exact_values(rule: SampleSelectionRule, cast: VoteArrays, all_K: IntArray) -> FloatArray:
    """NaN where there are fewer than k samples."""
    if rule == "weighted":
        raise UsageError("a weighted vote has no exact expectation here; use how='subsets'")
    out_K, k_K = np.full(all_K.size, np.nan), all_K[all_K <= cast.size]
    if k_K.size:
        out_K[all_K <= cast.size] = majority_at_k(cast, k_K) if rule == "majority" else _best_score_values(cast, k_K)
    return out_K + cast.no_answer_value


def _best_score_values(cast: VoteArrays, k_K: IntArray) -> FloatArray:
    votes = cast.label_N >= 0
    worth_N = np.where(votes, cast.value_L[cast.label_N] if cast.value_L.size else 0.0, 0.0)
    scores_N = np.where(votes, cast.weight_N, np.nan)
    return best_at_k(worth_N.tolist(), scores_N.tolist(), k_K, missing="abstain")


def _sample_orders(rng: np.random.Generator, n: int, most: int, subsets: int) -> IntArray:
    """The first `most` of random orders of n samples, one row each."""
    if not subsets:
        return np.arange(most)[None]
    keys = rng.random((subsets, n))
    if n < 2 * most:
        return np.argsort(keys, axis=1)[:, :most]
    few = np.argpartition(keys, most, axis=1)[:, :most]
    return np.take_along_axis(few, np.take_along_axis(keys, few, axis=1).argsort(axis=1), axis=1)


def _winners(
    rule: SampleSelectionRule, label_RN: IntArray, weight_RN: FloatArray, width: int, k_K: IntArray
) -> IntArray:
    """The winning answer of each row after k samples; -1 where nobody voted. Samples are counted one by one.

    Votes that only grow can be led anew only by the answer that just got one; others are searched through.
    """
    grows = rule != "best" and not np.any(weight_RN < 0)
    rows, row_R = len(label_RN), np.arange(len(label_RN))
    sums_RL = np.zeros((rows, width + 1))  # one more: where samples that do not vote are put down
    first_RL = np.full((rows, width + 1), np.iinfo(np.int32).max, dtype=np.int32)
    leader_R, top_R = np.full(rows, -1), np.full(rows, -np.inf)
    places_of_k: dict[int, list[int]] = {}
    for place, k in enumerate(k_K.tolist()):
        places_of_k.setdefault(k, []).append(place)
    out_RK = np.empty((rows, k_K.size), dtype=np.int64)
    for j in range(int(k_K.max())):
        label_R, weight_R = label_RN[:, j], weight_RN[:, j]
        votes_R = label_R >= 0
        if rule == "best":
            ahead_R = votes_R & (weight_R > top_R)
            top_R, leader_R = np.where(ahead_R, weight_R, top_R), np.where(ahead_R, label_R, leader_R)
        else:
            sum_R = sums_RL[row_R, label_R] + np.where(votes_R, weight_R, 0.0)
            sums_RL[row_R, label_R] = sum_R
            seen_R = np.minimum(first_RL[row_R, label_R], j)
            first_RL[row_R, label_R] = seen_R
            if grows:
                ahead_R = votes_R & ((sum_R > top_R) | ((sum_R == top_R) & (seen_R < first_RL[row_R, leader_R])))
                top_R, leader_R = np.where(ahead_R, sum_R, top_R), np.where(ahead_R, label_R, leader_R)
        if j + 1 in places_of_k:
            if rule != "best" and not grows:
                leader_R = _leading_answer(sums_RL[:, :-1], first_RL[:, :-1])
            out_RK[:, places_of_k[j + 1]] = leader_R[:, None]
    return out_RK


def _leading_answer(sums_RL: FloatArray, first_RL: NDArray[np.int32]) -> IntArray:
    """The largest sum among answers that were seen, the first seen of equals."""
    seen_RL = first_RL < np.iinfo(np.int32).max
    held_RL = np.where(seen_RL, sums_RL, -np.inf)
    top_RL = seen_RL & (held_RL == held_RL.max(axis=1, keepdims=True))
    found_R = np.where(top_RL, first_RL, np.iinfo(np.int32).max).argmin(axis=1)
    return np.where(seen_RL.any(axis=1), found_R, -1)
