"""Verify that an assignment satisfies every clause of a formula in conjunctive normal form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

_UNSATISFIABLE = re.compile(r"unsat(?:isfiable)?\.?", re.IGNORECASE | re.ASCII)
# "-3", "x3", "not x3", "~x3", "x3 = true", '"x3": false', "x3 is 0"
_LITERAL = re.compile(
    r"(?P<not>-|−|~|¬|!|not\s{1,4})?\s{0,4}[\"']?(?P<x>x_?)?(?P<index>[1-9][0-9]{0,5})[\"']?"
    r"(?:\s{0,4}(?:=|:|is)\s{0,4}(?P<value>true|false|t|f|1|0))?",
    re.IGNORECASE | re.ASCII,
)
_BETWEEN = re.compile(r"[\s,;{}\[\]()∧&]+|and\b", re.IGNORECASE)


@dataclass(frozen=True)
class SatVerifier(TextVerifier):
    """1 where every clause has a true literal, or where the answer is "unsatisfiable" and the formula is.

    The problem's answer is `{"clauses": [[1, -2], [2, 3]]}` as in DIMACS, with `"satisfiable": False` where no
    assignment exists. The completion lists literals (`1 -2 3`) or values (`x1 = true, x2 = false`). A variable
    left out satisfies nothing; a variable that appears twice makes the answer malformed.
    """

    def verify(self, text: str, gold: Any) -> Score:
        clauses = _clauses(gold)
        satisfiable = gold.get("satisfiable", True) is not False
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        if _UNSATISFIABLE.fullmatch(extracted.answer):
            return Score(0.0, "wrong: it is satisfiable") if satisfiable else Score(1.0, "right")
        literals = read_literals(extracted.answer)
        if literals is None:
            return Score(0.0, "malformed: not a list of literals or of variables with one value each")
        if unknown := {abs(n) for n in literals} - {abs(n) for clause in clauses for n in clause}:
            return Score(0.0, f"malformed: there is no variable {min(unknown)}")
        failed = next((clause for clause in clauses if not literals.intersection(clause)), None)
        if failed is not None:
            return Score(0.0, f"wrong: clause {repr_for_reason(list(failed))} is not satisfied")
        if not satisfiable:
            bad_data("the problem says that the formula is unsatisfiable, and this assignment satisfies it")
        return Score(1.0, "right")


def read_literals(text: str) -> frozenset[int] | None:
    """The literals that are set true; None where the text is something else, or a variable appears twice."""
    literals: set[int] = set()
    at = 0
    while at < len(text):
        if between := _BETWEEN.match(text, at):
            at = between.end()
            continue
        literal = _LITERAL.match(text, at)
        if literal is None or (literal["value"] and not literal["x"]):
            return None
        true = (literal["value"] or "t").lower() in ("t", "true", "1")
        if literal["not"]:
            true = not true
        index = int(literal["index"])
        if index in literals or -index in literals:
            return None
        literals.add(index if true else -index)
        at = literal.end()
        if at < len(text) and not _BETWEEN.match(text, at):
            return None
    return frozenset(literals) or None


def _clauses(gold: Any) -> list[tuple[int, ...]]:
    clauses = gold.get("clauses") if isinstance(gold, Mapping) else None
    if not isinstance(clauses, Sequence) or not clauses:
        bad_data(f"{repr_for_reason(gold)} does not hold 'clauses'")
    for clause in clauses:
        if not isinstance(clause, Sequence) or not all(type(n) is int and n for n in clause):
            bad_data(f"the clause {repr_for_reason(clause)} is not a list of whole numbers other than 0")
    return [tuple(clause) for clause in clauses]
