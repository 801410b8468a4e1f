"""Put numbers or words in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ponder.errors import UsageError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask, check_kinds
from ponder.tasks.generated.word_lists import WORDS
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.text import FinalList

Kind = Literal["ascending", "descending", "alphabet", "last-letter", "digit-sum", "length"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_QUESTIONS: dict[Kind, str] = {
    "ascending": "Sort these numbers from the smallest to the largest",
    "descending": "Sort these numbers from the largest to the smallest",
    "alphabet": "Sort these words alphabetically",
    "last-letter": "Sort these words by their last letter, and words with the same last letter alphabetically",
    "digit-sum": "Sort these numbers by the sum of their digits, and numbers with the same sum from small to large",
    "length": "Sort these words from the shortest to the longest, and words of the same length alphabetically",
}


class SortingItem(NamedTuple):
    kind: Kind
    things: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sorting(QuestionTask[SortingItem]):
    """Lists of `length` different numbers (with up to `digits` digits) or words."""

    ANSWER_SPEC = AnswerSpec("the sorted list", ("tag", "boxed", "line"), ", separated by commas")
    LEVELS = (
        {"length": 4, "digits": 2, "kinds": ("ascending", "descending", "alphabet")},
        {"length": 6, "digits": 2, "kinds": KINDS},
        {"length": 10, "digits": 3, "kinds": KINDS},
        {"length": 16, "digits": 4, "kinds": KINDS},
        {"length": 30, "digits": 4, "kinds": KINDS},
    )

    length: int = 6
    digits: int = 2
    kinds: tuple[Kind, ...] = KINDS

    def check(self) -> None:
        require_at_least(2, length=self.length, digits=self.digits)
        require_at_most(100, length=self.length, digits=self.digits)
        if self.length > 10**self.digits // 2:
            raise UsageError(f"there are too few numbers with {self.digits} digits for lists of {self.length}")
        check_kinds(self.kinds, KINDS)

    @property
    def name(self) -> str:
        return "sorting"

    @property
    def verifier(self) -> FinalList:
        return FinalList(self.answer_forms)

    def draw(self, rng: random.Random) -> SortingItem:
        kind = rng.choice(self.kinds)
        if kind in ("ascending", "descending", "digit-sum"):
            return SortingItem(kind, tuple(map(str, rng.sample(range(10**self.digits), self.length))))
        return SortingItem(kind, tuple(rng.sample(WORDS, self.length)))

    def key(self, item: SortingItem) -> str:
        """Without the order in which they stood: that is the same problem."""
        return f"{item.kind} {sorted(item.things)}"

    def question(self, item: SortingItem) -> str:
        return f"{_QUESTIONS[item.kind]}: {', '.join(item.things)}."

    def answer(self, item: SortingItem) -> list[str]:
        return solve(item)

    def tags(self, item: SortingItem) -> dict[str, Any]:
        return {"kind": item.kind, "length": self.length}

    def solution(self, problem: Problem) -> str:
        return ", ".join(problem.answer)


def solve(item: SortingItem) -> list[str]:
    kind, items = item
    return sorted(items, key=_SORT_KEYS[kind], reverse=kind == "descending")


_SORT_KEYS: dict[Kind, Callable[[str], Any]] = {
    "ascending": int,
    "descending": int,
    "alphabet": str,
    "last-letter": lambda word: (word[-1], word),
    "digit-sum": lambda number: (sum(map(int, number)), int(number)),
    "length": lambda word: (len(word), word),
}
