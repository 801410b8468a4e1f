"""Traverse: many answers to one by majority, weighted majority or best score; and when a vote is decided early.

Answers are canonical (equal answers compare equal). None is an attempt without an answer and never wins. Ties go to the
answer seen first. All functions return None if there is no valid vote.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

from ponder.errors import UsageError

A = TypeVar("A", bound=Hashable)


def majority_answer(answers: Sequence[A | None]) -> A | None:
    """The most frequent answer."""
    return weighted_answer(answers, [1.0] * len(answers))


def weighted_answer(answers: Sequence[A | None], scores: Sequence[float | None]) -> A | None:
    """The answer with the largest sum of scores. An unscored attempt adds nothing to its answer."""
    sums: dict[A, float] = {}
    for answer, score in _votes(answers, scores):
        sums[answer] = sums.get(answer, 0.0) + score
    return max(sums, key=lambda a: sums[a], default=None)  # dicts keep order and max the first of equals


def best_answer(answers: Sequence[A | None], scores: Sequence[float | None]) -> A | None:
    """The answer of the attempt with the highest score: best-of-n."""
    return max(_votes(answers, scores), key=lambda vote: vote[1], default=(None, 0.0))[0]


def stated_answers(answers: Sequence[A | None]) -> list[int]:
    """Which attempts may be chosen by a score: those that state an answer; all of them where none does."""
    return [i for i, a in enumerate(answers) if a is not None] or list(range(len(answers)))


def _votes(answers: Sequence[A | None], scores: Sequence[float | None]) -> list[tuple[A, float]]:
    if len(answers) != len(scores):
        raise UsageError(f"every answer takes one score; got {len(answers)} answers and {len(scores)} scores")
    return [
        (a, s) for a, s in zip(answers, scores, strict=True) if a is not None and s is not None and not math.isnan(s)
    ]


def is_vote_decided(answers: Sequence[A | None], weights: Sequence[float | None], left: int, most: float = 1.0) -> bool:
    """Can none of the `left` remaining votes, each of weight 0 to `most`, change the winner? First seen wins ties."""
    sums: dict[A, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None and weight is not None:
            sums[answer] = sums.get(answer, 0.0) + weight
    if not sums:
        return left == 0
    seen = {a: place for place, a in enumerate(sums)}
    leader = max(sums, key=lambda a: sums[a])
    ahead = sums.pop(leader)
    if left * most > ahead:  # an answer not seen yet could win
        return False
    reach = {a: total + left * most for a, total in sums.items()}
    return all(r < ahead or (r == ahead and seen[leader] < seen[a]) for a, r in reach.items())


def leader_probability(first: int, second: int) -> float:
    """The probability that the answer with `first` votes is the likelier one of two, given those of the runner-up.

    P(p > 1/2) of p ~ Beta(first + 1, second + 1): the stopping rule of Adaptive-Consistency (Aggarwal et al. 2023).
    For whole numbers that is a binomial sum: P(Bin(first + second + 1, 1/2) <= first).
    """
    n = first + second + 1
    return sum(math.comb(n, k) for k in range(first + 1)) / 2**n
