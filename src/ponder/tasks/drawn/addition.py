"""Add two numbers: the smallest task on which a policy can be seen to learn."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.tasks.drawn.procedural import Procedural, at_least, at_most
from ponder.tasks.styled import Styled
from ponder.types import Problem
from ponder.verify import FORMS, FinalNumber, Form
from ponder.verify.style import Wanted


@dataclass(frozen=True)
class Addition(Styled, Procedural[tuple[int, int]]):
    """`a + b`, both with exactly so many digits (one digit: 0 to 9)."""

    WANTED = Wanted("the final number", ("bare", *(f for f in FORMS if f != "bare")))
    LEVELS = tuple({"digits": digits} for digits in (1, 2, 3, 5, 8, 12))

    digits: int = 2
    prompt: str = "What is {a} + {b}?"
    forms: tuple[Form, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        at_least(1, digits=self.digits)
        at_most(1000, digits=self.digits)

    @property
    def name(self) -> str:
        return "addition"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.reads)

    def draw(self, rng: random.Random) -> tuple[int, int]:
        lowest = 10 ** (self.digits - 1) if self.digits > 1 else 0
        return rng.randrange(lowest, 10**self.digits), rng.randrange(lowest, 10**self.digits)

    def key(self, item: tuple[int, int]) -> str:
        return f"{min(item)} + {max(item)}"

    def problem(self, item: tuple[int, int], id: str) -> Problem:
        a, b = item
        return self.posed(id, self.prompt.format(a=a, b=b), str(a + b), {"digits": self.digits})

    def gold(self, problem: Problem) -> str:
        return self.stated(problem.answer)
