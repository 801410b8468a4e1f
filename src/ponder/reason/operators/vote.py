"""Many answers to one: majority, weighted majority, best of n.

Answers are canonical (equal answers compare equal); None is an attempt without an answer and never wins. Ties go
to the answer seen first. All return None where nobody may vote.
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


def _votes(answers: Sequence[A | None], scores: Sequence[float | None]) -> list[tuple[A, float]]:
    if len(answers) != len(scores):
        raise UsageError(f"every answer takes one score; got {len(answers)} answers and {len(scores)} scores")
    return [
        (a, s) for a, s in zip(answers, scores, strict=True) if a is not None and s is not None and not math.isnan(s)
    ]
