"""Update: what was found at a step changes every step on the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.reason.operators.tree_select import thoughts
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class Mean:
    """A step's value is the mean of what was found in all visits to it."""

    def update(self, trace: Trace, index: int, found: float, sign: float) -> None:
        step = trace.steps[index]
        step.visits += 1
        step.value += (found - step.value) / step.visits


@dataclass(frozen=True, slots=True)
class Discounted:
    """q <- (1 - a) q + a gamma (mean of the children's q, weighted by visits): x1's back-up (Besta et al. 2025)."""

    gamma: float = 0.96
    a: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.gamma <= 1 and 0 < self.a <= 1):
            raise UsageError(f"gamma is {self.gamma} and a is {self.a}; both must lie in (0, 1]")

    def update(self, trace: Trace, index: int, found: float, sign: float) -> None:
        step = trace.steps[index]
        below = [trace.steps[k] for k in thoughts(trace, index)]
        if total := sum(s.visits for s in below):
            mean = sign * sum(s.visits * s.value for s in below) / total
            step.value = (1 - self.a) * step.value + self.a * self.gamma * mean
        step.visits += 1


Backup = Mean | Discounted


def backpropagate(
    trace: Trace, found: Sequence[tuple[int, float]], backup: Backup, *, two_player: bool = False
) -> None:
    """Note what was found at sibling steps, then on the way up from them, once: the mean of it.

    `two_player`: values are in the eyes of who made the step, so they change sign from one step to the one before.
    """
    if not found:
        return
    for index, value in found:
        step = trace.steps[index]
        step.visits += 1
        step.value += (value - step.value) / step.visits
    value = sum(v for _, v in found) / len(found)
    sign = -1.0 if two_player else 1.0
    above = trace.steps[found[0][0]].parent
    while above is not None:
        value *= sign
        backup.update(trace, above, value, sign)
        above = trace.steps[above].parent
