"""Satisfy a formula in conjunctive normal form, or see that nothing does."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder import verify
from ponder.errors import UsageError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

Clause = tuple[int, ...]
CNF = tuple[Clause, ...]  # as in DIMACS: 3 is x3, -3 is not x3


@dataclass(frozen=True, kw_only=True)
class SatisfiabilityTask(QuestionTask[CNF]):
    """`clauses` clauses of `width` different variables out of `variables`.

    Every second formula or so is drawn around an assignment, so that it can be satisfied; of the rest, at the levels'
    numbers of clauses, about half can.
    """

    ANSWER_SPEC = AnswerSpec(
        "the value of each variable", ("tag", "boxed"),
        ", as x1 = true, x2 = false, ...; or the one word unsatisfiable", allow_bare=False,
    )  # fmt: skip
    LEVELS = (
        {"variables": 3, "clauses": 6, "width": 2},
        {"variables": 4, "clauses": 17, "width": 3},
        {"variables": 6, "clauses": 30, "width": 3},
        {"variables": 9, "clauses": 44, "width": 3},
        {"variables": 14, "clauses": 66, "width": 3},
    )

    variables: int = 4
    clauses: int = 17
    width: int = 3

    def check(self) -> None:
        require_at_least(1, width=self.width, clauses=self.clauses)
        require_at_most(30, variables=self.variables)
        require_at_most(300, clauses=self.clauses)
        if self.width > self.variables:
            raise UsageError(f"width is {self.width}; a clause has at most as many variables as there are")
        if self.clauses > (most := math.comb(self.variables, self.width) * (2**self.width - 1) * 3 // 4):
            raise UsageError(f"clauses is {self.clauses}; with these variables and this width, ask for at most {most}")

    @property
    def name(self) -> str:
        return "sat"

    @property
    def verifier(self) -> verify.SatVerifier:
        return verify.SatVerifier()

    def draw(self, rng: random.Random) -> CNF:
        hidden = [n if rng.random() < 0.5 else -n for n in range(1, self.variables + 1)] if rng.random() < 0.5 else []
        formula: list[Clause] = []
        while len(formula) < self.clauses:
            chosen = sorted(rng.sample(range(1, self.variables + 1), self.width))
            clause = tuple(n if rng.random() < 0.5 else -n for n in chosen)
            if clause not in formula and (not hidden or set(clause) & set(hidden)):
                formula.append(clause)
        return tuple(formula)

    def key(self, item: CNF) -> str:
        return str(sorted(set(item)))

    def question(self, item: CNF) -> str:
        lines = [" or ".join(f"x{n}" if n > 0 else f"not x{-n}" for n in clause) for clause in item]
        return "Find values of the variables that make every line true, or say that there are none.\n" + "\n".join(
            lines
        )

    def answer(self, item: CNF) -> Mapping[str, Any]:
        return {"clauses": [list(clause) for clause in item], "satisfiable": solve(item) is not None}

    def tags(self, item: CNF) -> dict[str, Any]:
        return {"variables": self.variables, "clauses": self.clauses}

    def solution(self, problem: Problem) -> str:
        literals = solve(problem.answer["clauses"])
        if literals is None:
            return "unsatisfiable"
        return ", ".join(f"x{abs(n)} = {'true' if n > 0 else 'false'}" for n in literals)


def solve(clauses: Sequence[Sequence[int]]) -> list[int] | None:
    """Literals that satisfy every clause; None where none do. Davis, Putnam, Logemann and Loveland (1962)."""
    true = _search([frozenset(clause) for clause in clauses], frozenset())
    if true is None:
        return None
    every = {abs(n) for clause in clauses for n in clause}
    return sorted(true | {n for n in every if n not in true and -n not in true}, key=abs)


def _search(clauses: list[frozenset[int]], true: frozenset[int]) -> frozenset[int] | None:
    while True:
        if not all(clauses):
            return None  # a clause has no literal left
        unit = next((clause for clause in clauses if len(clause) == 1), None)
        if unit is None:
            break
        (literal,) = unit
        clauses, true = _simplify(clauses, literal), true | {literal}
    if not clauses:
        return true
    literal = min(sorted(clauses, key=len)[0])
    for choice in (literal, -literal):
        model = _search(_simplify(clauses, choice), true | {choice})
        if model is not None:
            return model
    return None


def _simplify(clauses: list[frozenset[int]], literal: int) -> list[frozenset[int]]:
    """What is left to be satisfied once this literal is true."""
    return [clause - {-literal} for clause in clauses if literal not in clause]
