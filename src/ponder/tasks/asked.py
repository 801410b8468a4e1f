"""A drawn task in two parts: what is asked about an item, and what the answer is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.tasks.drawn.procedural import Item, Procedural
from ponder.types import Problem, user
from ponder.verify import EXPLICIT, FinalNumber, Form, state


@dataclass(frozen=True, kw_only=True)
class Asked(Procedural[Item]):
    """`prompt` holds the field {question} and says how to answer: in `<answer> </answer>`."""

    prompt: str = "{question}"

    @abstractmethod
    def question(self, item: Item) -> str: ...

    @abstractmethod
    def answer(self, item: Item) -> Any:
        """What the verifier judges by: the solver's answer, or the puzzle itself where many answers are right."""

    def tags(self, item: Item) -> dict[str, Any]:
        return {}

    def problem(self, item: Item, id: str) -> Problem:
        text = self.prompt.format(question=self.question(item))
        return Problem(id, user(text, self.system), self.answer(item), self.tags(item))

    def solution(self, problem: Problem) -> str:
        """What stands in `<answer> </answer>`."""
        return str(problem.answer)

    def gold(self, problem: Problem) -> str:
        return f"<answer>{self.solution(problem)}</answer>"


@dataclass(frozen=True, kw_only=True)
class AskedNumber(Asked[Item]):
    """The answer is one number; the first of `forms` is how gold is written."""

    prompt: str = "{question}\nPut the final number in \\boxed{{}}."
    forms: tuple[Form, ...] = EXPLICIT

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.forms)

    def gold(self, problem: Problem) -> str:
        return state(self.solution(problem), self.forms[0])


def known_kinds(given: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse kinds of problem that a task does not have."""
    if not given or isinstance(given, str):
        raise UsageError(f"kinds is {given!r}; name some of {', '.join(known)}")
    for kind in given:
        if kind not in known:
            raise UnknownName("kind of problem", str(kind), known)
