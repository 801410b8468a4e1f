"""A small suite of four categories that needs no data: arithmetic, deduction, spatial, common sense.

Sixty questions each, the same ones everywhere for a version. The first three are made by solvers, the last is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.split import stable_hash
from ponder.tasks.suite import arithmetic_questions, common_sense_questions, deduction_questions, spatial_questions
from ponder.tasks.suite.question import QUESTIONS_PER_CATEGORY, SuiteQuestion
from ponder.types import Problem, Score, user_messages
from ponder.verify import EXPLICIT_FORMS, AnswerForm, FinalNumber, MultipleChoice
from ponder.verify.answers.style import AnswerSpec, AnswerStyle, question_with_instruction
from ponder.verify.base import TextVerifier, bad_data

Category = Literal["arithmetic", "deduction", "spatial", "common-sense"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
CATEGORY_GENERATORS: dict[str, Sequence[Callable[[random.Random], SuiteQuestion]]] = {
    "arithmetic": arithmetic_questions.GENERATORS,
    "deduction": deduction_questions.GENERATORS,
    "spatial": spatial_questions.GENERATORS,
}
SUITE_VERSIONS = (1,)  # raised whenever a question or its answer changes: results of two versions are not compared

NUMBER_SPEC, LETTER_SPEC = AnswerSpec("the final number"), AnswerSpec("the letter of the right option")


@dataclass(frozen=True)
class NumberOrChoice(TextVerifier):
    """Grades a number or the letter of an option, whichever the question asks for."""

    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS

    @property
    def name(self) -> str:
        return "accuracy"

    def extract_answer(self, text: str) -> str | None:
        """The answer as votes count it: a number, else a letter."""
        return FinalNumber(self.forms).extract_answer(text) or MultipleChoice(self.forms).extract_answer(text)

    def verify(self, text: str, gold: Any) -> Score:
        if not isinstance(gold, dict) or not {"number", "choice"} & set(gold):
            bad_data("the answer is neither a number nor a choice")
        if "number" in gold:
            return FinalNumber(self.forms).grade(text, gold["number"])
        return MultipleChoice(self.forms).grade(text, gold)


@dataclass(frozen=True, kw_only=True)
class Suite(StyledTask):
    """Arithmetic, deduction, spatial and common sense, sixty questions each; with or without a chain of thought.

    `think=False` says the same as `style="direct"`.
    """

    categories: tuple[str, ...] = CATEGORIES
    think: bool = True
    system: str | None = None
    version: int = SUITE_VERSIONS[-1]

    def __post_init__(self) -> None:
        if not self.categories or isinstance(self.categories, str):
            raise UsageError(f"categories is {self.categories!r}; name some of {', '.join(CATEGORIES)}")
        for category in self.categories:
            if category not in CATEGORIES:
                raise UnknownName("category of the suite", category, CATEGORIES)
        if len(set(self.categories)) < len(self.categories):
            raise UsageError("a category stands twice; name each once")
        if self.version not in SUITE_VERSIONS:
            raise UsageError(f"there is no version {self.version} of the suite here; there is {SUITE_VERSIONS[-1]}")

    @property
    def name(self) -> str:
        return "suite"

    @property
    def verifier(self) -> NumberOrChoice:
        return NumberOrChoice(self.answer_forms)

    @property
    def resolved_style(self) -> AnswerStyle:
        return super().resolved_style if self.style is not None else "cot" if self.think else "direct"

    @property
    def train(self) -> Sequence[Problem]:
        raise TaskError("task 'suite' has no training problems: it is made to measure with; train on a drawn task")

    @property
    def test(self) -> Sequence[Problem]:
        return self._test_problems

    @cached_property
    def _test_problems(self) -> Sequence[Problem]:
        return [self._problem(c, i, item) for c in self.categories for i, item in enumerate(category_questions(c))]

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(problem.answer.get("number") or problem.answer["choice"])

    def _problem(self, category: str, place: int, item: SuiteQuestion) -> Problem:
        text = question_with_instruction(
            item.question, self.resolved_style, NUMBER_SPEC if "number" in item.answer else LETTER_SPEC
        )
        tags = {"category": category, "kind": item.kind, "version": self.version}
        instruction = text.removeprefix(item.question)
        return Problem(
            f"suite/{category}/{place}",
            user_messages(text, self.system),
            item.answer,
            tags,
            self.resolved_style,
            instruction,
        )


@lru_cache(maxsize=len(CATEGORIES))
def category_questions(category: str) -> tuple[SuiteQuestion, ...]:
    """The kinds of a category in turn, no question twice."""
    if category == "common-sense":
        return tuple(common_sense_questions.suite_questions())
    draws = CATEGORY_GENERATORS[category]
    questions: dict[str, SuiteQuestion] = {}
    for i in range(100 * QUESTIONS_PER_CATEGORY):
        if len(questions) == QUESTIONS_PER_CATEGORY:
            break
        item = draws[len(questions) % len(draws)](random.Random(stable_hash(f"suite/{category}/{i}")))
        questions.setdefault(item.question, item)
    return tuple(questions.values())
