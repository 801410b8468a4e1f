"""Knights and knaves: knights always tell the truth, knaves always lie. Who is what?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.generated.word_lists import NAMES
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.text import FinalList

Assignment = tuple[bool, ...]  # of each person: True for a knight


class Statement(NamedTuple):
    """What one person says of others; `a` and `b` are persons, or `a` is a number."""

    kind: str
    a: int
    b: int = -1


class KnightsItem(NamedTuple):
    names: tuple[str, ...]
    statements: tuple[Statement, ...]  # by each person in turn


@dataclass(frozen=True, kw_only=True)
class KnightsAndKnaves(QuestionTask[KnightsItem]):
    """`people` islanders, each of whom says one thing; only one answer fits."""

    ANSWER_SPEC = AnswerSpec(
        "what each of them is, knight or knave, in the order in which they are named,", ("tag", "boxed", "line"),
        ", separated by commas",
    )  # fmt: skip
    LEVELS = tuple({"people": people} for people in (3, 4, 5, 6, 8))

    people: int = 3

    def check(self) -> None:
        require_at_least(3, people=self.people)
        require_at_most(10, people=self.people)

    @property
    def name(self) -> str:
        return "knights"

    @property
    def verifier(self) -> FinalList:
        return FinalList(self.answer_forms)

    def draw(self, rng: random.Random) -> KnightsItem:
        while True:
            statements = tuple(_statement(rng, speaker, self.people) for speaker in range(self.people))
            if len(solve(statements)) == 1:
                return KnightsItem(tuple(rng.sample(NAMES, self.people)), statements)

    def key(self, item: KnightsItem) -> str:
        """Without the names."""
        return str([tuple(statement) for statement in item.statements])

    def question(self, item: KnightsItem) -> str:
        lines = [
            f'{name}: "{statement_text(s, item.names)}"' for name, s in zip(item.names, item.statements, strict=True)
        ]
        people = f"{', '.join(item.names[:-1])} and {item.names[-1]}"
        return "\n".join([
            f"On an island live knights, who always tell the truth, and knaves, who always lie. You meet {people}.",
            *lines,
        ])  # fmt: skip

    def answer(self, item: KnightsItem) -> list[str]:
        (kinds,) = solve(item.statements)
        return ["knight" if knight else "knave" for knight in kinds]

    def tags(self, item: KnightsItem) -> dict[str, Any]:
        return {"people": self.people}

    def solution(self, problem: Problem) -> str:
        return ", ".join(problem.answer)


def solve(statements: Sequence[Statement]) -> list[Assignment]:
    """Every answer under which knights, and only they, say what is true."""
    return [
        kinds
        for kinds in product((True, False), repeat=len(statements))
        if all(_KINDS[s.kind].true(kinds, s.a, s.b) == kinds[speaker] for speaker, s in enumerate(statements))
    ]


def statement_text(statement: Statement, names: Sequence[str]) -> str:
    template = _KINDS[statement.kind].told
    if statement.kind in _COUNTS:
        return template.format(a=statement.a)
    return template.format(a=names[statement.a], b=names[statement.b])


class _StatementKind(NamedTuple):
    told: str
    true: Callable[[Assignment, int, int], bool]


_KINDS: dict[str, _StatementKind] = {
    "knight": _StatementKind("{a} is a knight.", lambda k, a, b: k[a]),
    "knave": _StatementKind("{a} is a knave.", lambda k, a, b: not k[a]),
    "same": _StatementKind("{a} and {b} are both knights or both knaves.", lambda k, a, b: k[a] == k[b]),
    "differ": _StatementKind("One of {a} and {b} is a knight and the other a knave.", lambda k, a, b: k[a] != k[b]),
    "both": _StatementKind("{a} and {b} are both knights.", lambda k, a, b: k[a] and k[b]),
    "neither": _StatementKind("{a} and {b} are both knaves.", lambda k, a, b: not k[a] and not k[b]),
    "if": _StatementKind("If {a} is a knight, then {b} is a knave.", lambda k, a, b: not k[a] or not k[b]),
    "or": _StatementKind("{a} is a knave, or {b} is a knight, or both.", lambda k, a, b: not k[a] or k[b]),
    "exactly": _StatementKind("Exactly {a} of us are knights.", lambda k, a, b: sum(k) == a),
    "at-least": _StatementKind("At least {a} of us are knaves.", lambda k, a, b: len(k) - sum(k) >= a),
}
_COUNTS = ("exactly", "at-least")
_ONE = ("knight", "knave")


def _statement(rng: random.Random, speaker: int, people: int) -> Statement:
    others = [person for person in range(people) if person != speaker]
    kind = rng.choice([kind for kind in _KINDS if kind in _ONE + _COUNTS or len(others) > 1])
    if kind in _COUNTS:
        return Statement(kind, rng.randint(2, people))
    if kind in _ONE:
        return Statement(kind, rng.choice(others))
    return Statement(kind, *rng.sample(others, 2))
