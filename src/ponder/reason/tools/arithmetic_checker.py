"""A scorer that recomputes the equations found in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from ponder.errors import UnknownName
from ponder.types import Score, Trace
from ponder.verify.rewards.step_arithmetic import MAX_EQUATIONS, check_equations


@dataclass(frozen=True, slots=True)
class ArithmeticChecker:
    """A `Scorer` of steps: the share of their numeric equations that hold, each computed exactly.

    `scope`: the equations of the step alone, or of the whole path. A step without equations gets
    `score_without_equations`; None leaves it undecided, which prunes it in a search, so the default is 1.
    """

    scope: Literal["step", "path"] = "step"
    score_without_equations: float | None = 1.0

    def __post_init__(self) -> None:
        if self.scope not in ("step", "path"):
            raise UnknownName("scope", self.scope, ("step", "path"))

    @property
    def name(self) -> str:
        return "arithmetic"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [self.grade(trace.steps[i].text if self.scope == "step" else trace.text(i)) for i in steps]

    def grade(self, text: str) -> Score:
        equations = {"".join(e.text.split()): e for e in islice(check_equations(text), MAX_EQUATIONS)}
        if not equations:
            return Score(self.score_without_equations, "no equation to check")
        wrong = [e.text for e in equations.values() if not e.right]
        first = f"; the first wrong one: {wrong[0][:60]}" if wrong else ""
        return Score(
            1 - len(wrong) / len(equations), f"{len(equations) - len(wrong)} of {len(equations)} equations hold{first}"
        )
