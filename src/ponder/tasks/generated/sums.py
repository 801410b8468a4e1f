"""Add several numbers, one after the other: a task whose gold answers show their steps."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.tasks.answer_style import StyledTask
from ponder.tasks.generated.generated_task import GeneratedTask, require_at_least, require_at_most
from ponder.types import Problem
from ponder.verify import ANSWER_FORMS, AnswerForm, FinalNumber
from ponder.verify.answers.style import AnswerSpec


@dataclass(frozen=True)
class Sums(StyledTask, GeneratedTask[tuple[int, ...]]):
    """So many numbers below `limit`. Gold has a line for each addition, `12+47=59`, and the sum at the end."""

    ANSWER_SPEC = AnswerSpec(
        "the final number",
        ("hash", *(f for f in ANSWER_FORMS if f != "hash")),
        plain_instruction="Add one number at a time, and write the sum after #### at the end.",
        separator=" ",
    )
    LEVELS = (
        {"terms": 2, "limit": 10},
        {"terms": 3, "limit": 10},
        {"terms": 3, "limit": 100},
        {"terms": 5, "limit": 100},
        {"terms": 8, "limit": 1000},
    )

    terms: int = 3
    limit: int = 100
    prompt: str = "What is {sum}?"
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        require_at_least(2, terms=self.terms, limit=self.limit)
        require_at_most(50, terms=self.terms)

    @property
    def name(self) -> str:
        return "sums"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        return tuple(rng.randrange(self.limit) for _ in range(self.terms))

    def key(self, item: tuple[int, ...]) -> str:
        return "+".join(map(str, item))

    def problem(self, item: tuple[int, ...], id: str) -> Problem:
        text = self.prompt.format(sum="+".join(map(str, item)))
        return self.make_problem(id, text, str(sum(item)), {"terms": list(item)})

    def gold(self, problem: Problem) -> str:
        lines, total = [], problem.tags["terms"][0]
        for term in problem.tags["terms"][1:]:
            lines.append(f"{total}+{term}={total + term}")
            total += term
        return self.gold_completion(problem.answer, "\n".join(lines))
