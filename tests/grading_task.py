"""A task whose verifier does what an answer says: it hangs, ends its process, raises, or compares."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.types import Problem, Score, Trace, user_messages


@dataclass(frozen=True)
class ObedientVerifier:
    name = "obeyed"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [await self._grade(trace.text(i), str(trace.problem.answer)) for i in steps]

    async def _grade(self, text: str, wanted: str) -> Score:
        if text == "hang":
            time.sleep(600)
        if text == "end":
            os._exit(7)
        if text == "raise":
            raise ValueError("this answer cannot be read")
        await asyncio.sleep(0.01 * text.count("."))
        return Score(float(text.strip(".") == wanted), f"by {os.getpid()}", steps=(0.25, 0.5))

    def extract_answer(self, text: str) -> str | None:
        return text or None


@dataclass(frozen=True)
class ObedientTask:
    name = "obedient"

    @property
    def train(self) -> list[Problem]:
        return [Problem(f"obedient/{i}", user_messages(f"{i}?"), str(i)) for i in range(8)]

    test = train

    @property
    def verifier(self) -> ObedientVerifier:
        return ObedientVerifier()

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)
