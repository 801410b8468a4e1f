"""One reward out of several scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Score, Trace


@dataclass(frozen=True)
class Weighted:
    """The weighted sum of its parts, whose own scores it leaves on each step. Undecided if any part is."""

    parts: tuple[tuple[Scorer, float], ...]

    def __post_init__(self) -> None:
        names = [scorer.name for scorer, _ in self.parts]
        if not names:
            raise UsageError("a weighted reward has no parts; give it at least one (scorer, weight)")
        if twice := {n for n in names if names.count(n) > 1}:
            raise UsageError(f"two parts are named {min(twice)!r} and one would hide the other's score; leave one out")
        if bad := [w for _, w in self.parts if not math.isfinite(w)]:
            raise UsageError(f"a weight is {bad[0]}; it must be a finite number")

    @property
    def name(self) -> str:
        return "reward"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        columns = []
        for scorer, _ in self.parts:
            scores = await scorer(trace, steps)
            for step, score in zip(steps, scores, strict=True):
                trace.steps[step].scores[scorer.name] = score
            columns.append(scores)
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, scores: tuple[Score, ...]) -> Score:
        total, reasons = 0.0, []
        for (scorer, weight), score in zip(self.parts, scores, strict=True):
            if score.value is None:
                return Score(None, f"{scorer.name} is undecided: {score.reason}")
            total += weight * score.value
            reasons.append(f"{weight:g} x {scorer.name} {score.value:g} ({score.reason})")
        return Score(total, " + ".join(reasons))
