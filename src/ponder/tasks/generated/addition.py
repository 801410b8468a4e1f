"""Add two numbers: the smallest task on which a policy can be seen to learn."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.tasks.answer_style import StyledTask
from ponder.tasks.generated.generated_task import GeneratedTask, require_at_least, require_at_most
from ponder.types import Problem
from ponder.verify import ANSWER_FORMS, AnswerForm, FinalNumber
from ponder.verify.answers.style import AnswerSpec


@dataclass(frozen=True)
class Addition(StyledTask, GeneratedTask[tuple[int, int]]):
    """`a + b`, both with exactly so many digits (one digit: 0 to 9)."""

    ANSWER_SPEC = AnswerSpec("the final number", ("bare", *(f for f in ANSWER_FORMS if f != "bare")))
    LEVELS = tuple({"digits": digits} for digits in (1, 2, 3, 5, 8, 12))

    digits: int = 2
    prompt: str = "What is {a} + {b}?"
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        require_at_least(1, digits=self.digits)
        require_at_most(1000, digits=self.digits)

    @property
    def name(self) -> str:
        return "addition"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def draw(self, rng: random.Random) -> tuple[int, int]:
        lowest = 10 ** (self.digits - 1) if self.digits > 1 else 0
        return rng.randrange(lowest, 10**self.digits), rng.randrange(lowest, 10**self.digits)

    def key(self, item: tuple[int, int]) -> str:
        return f"{min(item)} + {max(item)}"

    def problem(self, item: tuple[int, int], id: str) -> Problem:
        a, b = item
        return self.make_problem(id, self.prompt.format(a=a, b=b), str(a + b), {"digits": self.digits})

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(problem.answer)
