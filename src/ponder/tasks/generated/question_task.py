"""Base classes of generated tasks that ask one question about an item."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.generated.generated_task import GeneratedTask, Item
from ponder.types import Problem
from ponder.verify import AnswerForm, FinalNumber
from ponder.verify.answers.style import AnswerSpec


@dataclass(frozen=True, kw_only=True)
class QuestionTask(StyledTask, GeneratedTask[Item]):
    """`prompt` holds the field {question}; the style says how to answer, by default in `<answer> </answer>`."""

    ANSWER_SPEC = AnswerSpec(forms=("tag", "boxed"), allow_bare=False)
    DEFAULT_STYLE = "answer"

    prompt: str = "{question}"

    @abstractmethod
    def question(self, item: Item) -> str: ...

    @abstractmethod
    def answer(self, item: Item) -> Any:
        """What the verifier judges by: the solver's answer, or the puzzle itself where many answers are right."""

    def tags(self, item: Item) -> dict[str, Any]:
        return {}

    def problem(self, item: Item, id: str) -> Problem:
        return self.make_problem(
            id, self.prompt.format(question=self.question(item)), self.answer(item), self.tags(item)
        )

    def solution(self, problem: Problem) -> str:
        """The answer, without the form in which it is given."""
        return str(problem.answer)

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(self.solution(problem))


@dataclass(frozen=True, kw_only=True)
class NumberTask(QuestionTask[Item]):
    """The answer is one number."""

    ANSWER_SPEC = AnswerSpec("the final number")

    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)


def check_kinds(kinds: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse kinds of problem that a task does not have."""
    if not kinds or isinstance(kinds, str):
        raise UsageError(f"kinds is {kinds!r}; name some of {', '.join(known)}")
    for kind in kinds:
        if kind not in known:
            raise UnknownName("kind of problem", str(kind), known)
