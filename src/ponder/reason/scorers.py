"""Scorers that need no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.reason.operators.evaluate import Reduction, reduce_scores, scores_steps
from ponder.types import Cost, Score, Trace
from ponder.validate import short_repr


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The geometric mean of the probabilities of the sampled tokens on the path to a step."""

    @property
    def name(self) -> str:
        return "likelihood"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score_step(trace, step) for step in steps]

    def _score_step(self, trace: Trace, step: int) -> Score:
        logprobs = [lp for i in trace.path(step) if (lp := trace.steps[i].logprobs) is not None and len(lp)]
        if not logprobs:
            return Score(None, "the policy sampled nothing here")
        mean = float(np.concatenate(logprobs).mean())
        if math.isnan(mean):
            return Score(None, "the policy does not return log-probabilities")
        return Score(math.exp(min(0.0, mean)), f"mean log-probability {mean:.3f}")


@dataclass(frozen=True, slots=True)
class OutcomeAndValue:
    """Scores finished answers by one scorer and unfinished steps by another, as in a game."""

    outcome: Scorer
    value: Scorer

    @property
    def name(self) -> str:
        return f"{self.outcome.name}+{self.value.name}"

    @property
    def scores_steps(self) -> bool:
        """Whether the value scorer does; an outcome is of the whole path."""
        return scores_steps(self.value)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        ends = [i for i in steps if trace.steps[i].done]
        others = [i for i in steps if not trace.steps[i].done]
        scores = dict(zip(ends, await self.outcome(trace, ends) if ends else [], strict=True))
        scores |= dict(zip(others, await self.value(trace, others) if others else [], strict=True))
        return [scores[i] for i in steps]


@dataclass(frozen=True, slots=True)
class StepScoreReducer:
    """Path scores from a scorer that scores single steps: it scores all sampled steps on the path and reduces them.
    Steps that were scored before, on the path to another step, are not scored again."""

    scorer: Scorer
    reduce: Reduction = "min"
    scores_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        reduce_scores([1.0], self.reduce)

    @property
    def name(self) -> str:
        return self.scorer.name

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        paths = {i: [j for j in trace.path(i) if trace.steps[j].sampled] for i in steps}
        old = {j: Score(s.steps[-1]) for path in paths.values() for j in path if (s := self._known_score(trace, j))}
        new = sorted({j for path in paths.values() for j in path} - set(old))
        fresh = dict(zip(new, await self.scorer(trace, new), strict=True)) if new else {}
        out = []
        for path in paths.values():
            cost = sum((fresh[j].cost for j in path if j in fresh), Cost())
            out.append(self._score_step([fresh.get(j) or old[j] for j in path], cost))
            old |= {j: replace(fresh.pop(j), cost=Cost()) for j in path if j in fresh}  # paid for once
        return out

    def _known_score(self, trace: Trace, step: int) -> Score | None:
        score = trace.steps[step].scores.get(self.name)
        return score if score is not None and score.steps else None

    def _score_step(self, scores: Sequence[Score], cost: Cost) -> Score:
        values = [s.value for s in scores if s.value is not None]
        if len(values) < len(scores) or not values:
            why = next((s.reason for s in scores if s.value is None), "the policy wrote nothing here")
            return Score(None, why, cost)
        return Score(reduce_scores(values, self.reduce), f"{self.reduce} of {len(values)} steps", cost, tuple(values))


@dataclass(frozen=True, slots=True)
class TopKConfidence:
    """The mean, over the sampled tokens on the path to a step, of a token's share of the top k probabilities (Marco-o1,
    Zhao et al. 2024, with k = 5). Needs `Sampling(logprobs=5)`."""

    @property
    def name(self) -> str:
        return "confidence"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self._score_step(trace, step) for step in steps]

    def _score_step(self, trace: Trace, step: int) -> Score:
        shares = [s for i in trace.path(step) if (s := trace.steps[i].notes.get("share")) is not None]
        if not shares:
            return Score(None, "the top tokens' log-probabilities are missing: sample with logprobs=5")
        return Score(float(np.concatenate(shares).mean()))


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """A plain function of the text written so far, as a scorer."""

    function: Callable[[str], float]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "function")

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(self.function(trace.text(i)))) for i in steps]


def as_scorer(given: Any, name: str) -> Scorer:
    """A scorer as it is, and a plain function of the text written so far as one. `name`: of the setting, for errors."""
    if isinstance(given, Scorer):
        return given
    if callable(given):
        return FunctionScorer(given)
    raise UsageError(f"{name} is {short_repr(given)}; it must be a scorer, or a function of the text written so far")
