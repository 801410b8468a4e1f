"""When a vote is decided before everybody has voted."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

A = TypeVar("A", bound=Hashable)


def is_vote_decided(answers: Sequence[A | None], weights: Sequence[float | None], left: int, most: float = 1.0) -> bool:
    """Can none of the `left` votes to come, each worth 0 to `most`, change who wins? First seen wins ties."""
    sums: dict[A, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None and weight is not None:
            sums[answer] = sums.get(answer, 0.0) + weight
    if not sums:
        return left == 0
    seen = {a: place for place, a in enumerate(sums)}
    leader = max(sums, key=lambda a: sums[a])
    ahead = sums.pop(leader)
    if left * most > ahead:  # an answer that nobody has given yet
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
