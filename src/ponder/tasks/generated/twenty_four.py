"""Game of 24 without a file: four numbers that + - * / make 24 of."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ponder import verify
from ponder.tasks.generated.countdown import solve
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

TARGET = 24


@dataclass(frozen=True, kw_only=True)
class TwentyFour(QuestionTask[tuple[int, ...]]):
    """Four numbers from 1 to `largest`."""

    ANSWER_SPEC = AnswerSpec("the expression", ("tag", "boxed", "line"), separator=" ")
    LEVELS = tuple({"largest": largest} for largest in (6, 9, 13))

    largest: int = 13
    prompt: str = "{question} Use each number exactly once, with + - * / and brackets."

    def check(self) -> None:
        require_at_least(6, largest=self.largest)
        require_at_most(20, largest=self.largest)

    @property
    def name(self) -> str:
        return "twenty-four"

    @property
    def verifier(self) -> verify.CountdownVerifier:
        return verify.CountdownVerifier(forms=self.answer_forms)

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        while True:
            numbers = [rng.randint(1, self.largest) for _ in range(4)]
            if _is_solvable(tuple(sorted(numbers))) is not None:
                return tuple(numbers)

    def key(self, item: tuple[int, ...]) -> str:
        return str(sorted(item))

    def question(self, item: tuple[int, ...]) -> str:
        return f"Make {TARGET} from the numbers {', '.join(map(str, item))}."

    def answer(self, item: tuple[int, ...]) -> Mapping[str, Any]:
        return {"numbers": list(item), "target": TARGET}

    def solution(self, problem: Problem) -> str:
        return str(_is_solvable(tuple(sorted(problem.answer["numbers"]))))


@lru_cache(maxsize=20_000)
def _is_solvable(numbers: tuple[int, ...]) -> str | None:
    return solve(numbers, TARGET)
