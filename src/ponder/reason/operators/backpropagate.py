"""Update: back up the value found at a step to every step on the path to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.reason.operators.tree_policy import open_children
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class MeanBackup:
    """A step's value is the mean of the values found in all visits to it."""

    def update(self, trace: Trace, index: int, result: float, sign: float) -> None:
        step = trace.steps[index]
        step.visits += 1
        step.value += (result - step.value) / step.visits


@dataclass(frozen=True, slots=True)
class DiscountedBackup:
    """q <- (1 - a) q + a gamma (mean of the children's q, weighted by visits), a = `learning_rate`: x1's back-up (Besta
    et al. 2025)."""

    gamma: float = 0.96
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.gamma <= 1 and 0 < self.learning_rate <= 1):
            raise UsageError(
                f"gamma is {self.gamma} and learning_rate is {self.learning_rate}; both must lie in (0, 1]"
            )

    def update(self, trace: Trace, index: int, result: float, sign: float) -> None:
        step = trace.steps[index]
        below = [trace.steps[k] for k in open_children(trace, index)]
        if total := sum(s.visits for s in below):
            mean = sign * sum(s.visits * s.value for s in below) / total
            step.value = (1 - self.learning_rate) * step.value + self.learning_rate * self.gamma * mean
        step.visits += 1


Backup = MeanBackup | DiscountedBackup


def backpropagate(
    trace: Trace, step_values: Sequence[tuple[int, float]], backup: Backup, *, two_player: bool = False
) -> None:
    """Update sibling steps with their values, then every step above them once, with the mean.

    `two_player`: a value is for the player who made the step, so its sign changes from step to step.
    """
    if not step_values:
        return
    for index, value in step_values:
        step = trace.steps[index]
        step.visits += 1
        step.value += (value - step.value) / step.visits
    value = sum(v for _, v in step_values) / len(step_values)
    sign = -1.0 if two_player else 1.0
    above = trace.step_before(step_values[0][0])
    while above is not None:
        value *= sign
        backup.update(trace, above, value, sign)
        above = trace.step_before(above)
