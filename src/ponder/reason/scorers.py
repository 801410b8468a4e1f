"""Scorers that need no model of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.protocols import Scorer
from ponder.types import Score, Trace


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The geometric mean of the probabilities of the tokens that the policy drew on the way to a step."""

    @property
    def name(self) -> str:
        return "likelihood"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._of(trace, step) for step in steps]

    def _of(self, trace: Trace, step: int) -> Score:
        drawn = [lp for i in trace.path(step) if (lp := trace.steps[i].logprobs) is not None and len(lp)]
        if not drawn:
            return Score(None, "the policy drew nothing here")
        mean = float(np.concatenate(drawn).mean())
        if math.isnan(mean):
            return Score(None, "the policy does not tell its log-probabilities")
        return Score(math.exp(min(0.0, mean)), f"mean log-probability {mean:.3f}")


@dataclass(frozen=True, slots=True)
class AtEnds:
    """Finished answers have an outcome, all before them a value: as in a game."""

    outcome: Scorer
    value: Scorer

    @property
    def name(self) -> str:
        return f"{self.outcome.name}+{self.value.name}"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        ends = [i for i in steps if trace.steps[i].done]
        others = [i for i in steps if not trace.steps[i].done]
        scores = dict(zip(ends, await self.outcome(trace, ends) if ends else [], strict=True))
        scores |= dict(zip(others, await self.value(trace, others) if others else [], strict=True))
        return [scores[i] for i in steps]


@dataclass(frozen=True, slots=True)
class Confidence:
    """The mean, over the tokens drawn on the way to a step, of a token's share among the likeliest ones (Marco-o1, Zhao
    et al. 2024, with 5 of them). Needs `Sampling(alternatives=5)`."""

    @property
    def name(self) -> str:
        return "confidence"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._of(trace, step) for step in steps]

    def _of(self, trace: Trace, step: int) -> Score:
        shares = [s for i in trace.path(step) if (s := trace.steps[i].notes.get("share")) is not None]
        if not shares:
            return Score(None, "the tokens' alternatives are not known: sample with alternatives=5")
        return Score(float(np.concatenate(shares).mean()))
