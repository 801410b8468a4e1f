"""Chains of + - * with brackets."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from ponder.errors import TaskError
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.generated.generated_task import GeneratedTask, require_at_least, require_at_most
from ponder.types import Problem
from ponder.verify import ANSWER_FORMS, AnswerForm, FinalNumber, evaluate_arithmetic
from ponder.verify.answers.style import AnswerSpec

MOST_TERMS = 12  # what `evaluate` reads in 200 characters, with room to spare


@dataclass(frozen=True)
class Arithmetic(StyledTask, GeneratedTask[str]):
    """An expression of so many integers from 1 to `largest`, with at most one pair of brackets."""

    ANSWER_SPEC = AnswerSpec(
        "the final number",
        ("bare", *(f for f in ANSWER_FORMS if f != "bare")),
        plain_instruction="Answer with the number only.",
        separator=" ",
    )
    LEVELS = (
        {"terms": 2, "largest": 10, "brackets": False},
        {"terms": 3, "largest": 20, "brackets": True},
        {"terms": 4, "largest": 50, "brackets": True},
        {"terms": 6, "largest": 100, "brackets": True},
        {"terms": 8, "largest": 100, "brackets": True},
    )

    terms: int = 3
    largest: int = 20
    brackets: bool = True
    prompt: str = "What is {expression}?"
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        require_at_least(2, terms=self.terms, largest=self.largest)
        require_at_most(MOST_TERMS, terms=self.terms)
        require_at_most(10**6, largest=self.largest)

    @property
    def name(self) -> str:
        return "arithmetic"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def draw(self, rng: random.Random) -> str:
        words = [str(rng.randint(1, self.largest)) for _ in range(self.terms)]
        if self.brackets and self.terms > 2 and rng.random() < 0.5:
            first = rng.randrange(self.terms - 1)
            last = rng.randrange(first + 1, self.terms)
            if last - first < self.terms - 1:  # brackets around everything would say nothing
                words[first], words[last] = f"({words[first]}", f"{words[last]})"
        chain = words[0]
        for word in words[1:]:
            chain += f" {rng.choice('+-*')} {word}"
        return chain

    def key(self, item: str) -> str:
        """Its integers and signs in sorted order: all regroupings of a chain fall on one side."""
        return " ".join([*sorted(re.findall(r"[0-9]+", item), key=int), *sorted(re.findall(r"[-+*]", item))])

    def problem(self, item: str, id: str) -> Problem:
        value = evaluate_arithmetic(item).value
        if value is None:
            raise TaskError(f"arithmetic drew {item!r}, which cannot be evaluated; please report this")
        text = self.prompt.format(expression=item)
        return self.make_problem(id, text, str(value), {"terms": self.terms, "expression": item})

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(problem.answer)
