"""A task of ten problems that a tiny model learns within seconds, for benches of whole runs.

It imports nothing but types, so a verifier worker that grades it starts as fast as one of ponder's own tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.types import Problem, Score, Trace, user_messages


@dataclass(frozen=True)
class WantedDigit:
    """1 if the first character is the wanted one."""

    name = "wanted"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(trace.text(i)[:1] == trace.problem.answer)) for i in steps]

    def extract_answer(self, text: str) -> str | None:
        return text[:1] or None


@dataclass(frozen=True)
class Digits:
    """Write the digit after the one that you are asked about."""

    name = "digits"

    @property
    def train(self) -> list[Problem]:
        return [Problem(f"digits/{i}", user_messages(f"{i}="), str((i + 1) % 10)) for i in range(10)]

    test = train

    @property
    def verifier(self) -> WantedDigit:
        return WantedDigit()

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)
