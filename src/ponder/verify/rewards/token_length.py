"""Rewards for length: a soft penalty for completions near the limit, and the cosine reward.

Length counts the tokens that the policy generated; a tool's output costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Score, Trace


def soft_overlong_penalty(length: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft penalty (Yu et al. 2025, eq. 13): 0 up to max_tokens - buffer_tokens, then
    down to -1. `buffer_tokens=0`: no penalty."""
    return -min(1.0, max(0.0, (length - (max_tokens - buffer_tokens)) / buffer_tokens)) if buffer_tokens else 0.0


def sampled_length(trace: Trace, step: int) -> int | None:
    """How many tokens the policy sampled on the path to this step; None where no step was sampled."""
    own = [trace.steps[i] for i in trace.path(step)[1:] if trace.steps[i].sampled]
    return sum(len(s.token_ids) for s in own) if own else None


_UNKNOWN = Score(None, "the length is unknown: no step was sampled by a policy")


@dataclass(frozen=True)
class OverlongPenalty:
    """From 0 to -1 over the last `buffer_tokens` before `max_tokens`, as in DAPO. Add it to an accuracy."""

    max_tokens: int
    buffer_tokens: int

    def __post_init__(self) -> None:
        if not 0 < self.buffer_tokens <= self.max_tokens:
            raise UsageError(
                f"buffer_tokens is {self.buffer_tokens}; it must be between 1 and max_tokens, {self.max_tokens}"
            )

    @property
    def name(self) -> str:
        return "overlong"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score(sampled_length(trace, step)) for step in steps]

    def _score(self, length: int | None) -> Score:
        if length is None:
            return _UNKNOWN
        return Score(
            soft_overlong_penalty(length, self.max_tokens, self.buffer_tokens), f"{length} of {self.max_tokens} tokens"
        )


@dataclass(frozen=True)
class CosineLengthReward:
    """The cosine reward of Yeo et al. 2025 (Demystifying Long Chain-of-Thought, section 4.2), with its numbers.

    A right answer earns most when short, a wrong one least; both follow half a cosine to their value at `max_tokens`.
    An answer that reaches `max_tokens` earns `reward_at_limit`. `accuracy` decides what is right (a score of 1); its
    own score stays on each step.
    """

    accuracy: Scorer
    max_tokens: int
    right_rewards: tuple[float, float] = (2.0, 1.0)  # at length 0 and at `max_tokens`
    wrong_rewards: tuple[float, float] = (-10.0, 0.0)
    reward_at_limit: float = -10.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}; it must be at least 1 token")
        if not all(
            len(ends) == 2 and all(map(math.isfinite, ends)) for ends in (self.right_rewards, self.wrong_rewards)
        ):
            raise UsageError(
                "right_rewards and wrong_rewards are two finite numbers each: at length 0 and at max_tokens"
            )
        if self.accuracy.name == self.name:
            raise UsageError(f"the inner scorer is named {self.name!r} too, and one score would hide the other")

    @property
    def name(self) -> str:
        return "cosine_length"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        scores = await self.accuracy(trace, steps)
        for step, score in zip(steps, scores, strict=True):
            trace.steps[step].scores[self.accuracy.name] = score
        return [self._score(score, sampled_length(trace, step)) for step, score in zip(steps, scores, strict=True)]

    def _score(self, accuracy: Score, length: int | None) -> Score:
        if length is None:
            return _UNKNOWN
        if length >= self.max_tokens:
            return Score(self.reward_at_limit, f"{length} tokens reach the limit of {self.max_tokens}")
        if accuracy.value is None:
            return Score(None, f"{self.accuracy.name} is undecided: {accuracy.reason}")
        right = accuracy.value >= 1
        short, long = self.right_rewards if right else self.wrong_rewards
        value = long + (short - long) * (1 + math.cos(math.pi * length / self.max_tokens)) / 2
        return Score(value, f"{'right' if right else 'wrong'} in {length} of {self.max_tokens} tokens")
