"""Rewards for length: a soft penalty for answers near the budget, and the cosine reward.

Length is counted in tokens that the policy wrote; a tool's output between them costs it nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Score, Trace


def overlong(length: int, longest: int, buffer: int) -> float:
    """DAPO's soft penalty (Yu et al. 2025, eq. 13): 0 up to longest - buffer, then down to -1; buffer 0: none."""
    return -min(1.0, max(0.0, (length - (longest - buffer)) / buffer)) if buffer else 0.0


def written(trace: Trace, step: int) -> int | None:
    """Tokens the policy wrote on the way to this step; None where none are known to be its own."""
    own = [trace.steps[i] for i in trace.path(step)[1:] if trace.steps[i].sampled]
    return sum(len(s.token_ids) for s in own) if own else None


_UNKNOWN = Score(None, "the length is unknown: no step was sampled by a policy")


@dataclass(frozen=True)
class Overlong:
    """From 0 to -1 over the last `buffer` tokens before `longest`, as in DAPO. Add it to an accuracy."""

    longest: int
    buffer: int

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.longest:
            raise UsageError(f"buffer is {self.buffer}; it must lie between 1 and longest, which is {self.longest}")

    @property
    def name(self) -> str:
        return "overlong"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score(written(trace, step)) for step in steps]

    def _score(self, length: int | None) -> Score:
        if length is None:
            return _UNKNOWN
        return Score(overlong(length, self.longest, self.buffer), f"{length} of {self.longest} tokens")


@dataclass(frozen=True)
class CosineLength:
    """The cosine reward of Yeo et al. 2025 (Demystifying Long Chain-of-Thought, section 4.2), with its numbers.

    A right answer earns most when short, a wrong one least; both move along half a cosine to their value at `longest`,
    and whatever reaches `longest` earns `exceeded`. `accuracy` says what is right (a score of 1); its own score stays
    on each step.
    """

    accuracy: Scorer
    longest: int
    right: tuple[float, float] = (2.0, 1.0)  # at length 0 and at `longest`
    wrong: tuple[float, float] = (-10.0, 0.0)
    exceeded: float = -10.0

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise UsageError(f"longest is {self.longest}; it must be at least 1 token")
        if not all(len(ends) == 2 and all(map(math.isfinite, ends)) for ends in (self.right, self.wrong)):
            raise UsageError("right and wrong are two finite numbers each: the reward at length 0 and at longest")
        if self.accuracy.name == self.name:
            raise UsageError(f"the inner scorer is named {self.name!r} too, and one score would hide the other")

    @property
    def name(self) -> str:
        return "cosine_length"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        judged = await self.accuracy(trace, steps)
        for step, score in zip(steps, judged, strict=True):
            trace.steps[step].scores[self.accuracy.name] = score
        return [self._score(score, written(trace, step)) for step, score in zip(steps, judged, strict=True)]

    def _score(self, judged: Score, length: int | None) -> Score:
        if length is None:
            return _UNKNOWN
        if length >= self.longest:
            return Score(self.exceeded, f"{length} tokens reach the limit of {self.longest}")
        if judged.value is None:
            return Score(None, f"{self.accuracy.name} is undecided: {judged.reason}")
        right = judged.value >= 1
        short, long = self.right if right else self.wrong
        value = long + (short - long) * (1 + math.cos(math.pi * length / self.longest)) / 2
        return Score(value, f"{'right' if right else 'wrong'} in {length} of {self.longest} tokens")
