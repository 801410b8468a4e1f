"""Verify a program by properties that must hold for random inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.base import bad_data
from ponder.verify.code.code_verifier import CodeVerifier


@dataclass(frozen=True)
class PropertyTests(CodeVerifier):
    """Property-based tests on random inputs: `{"entry": "f", "property": code}`.

    The code defines `draw(random)`, which returns a tuple of arguments, and `holds(result, *arguments)`. Both run where
    the program cannot see them. The same `seed` draws the same inputs.
    """

    n_cases: int = 50
    seed: int = 0

    REQUIRED_KEYS: ClassVar[tuple[str, ...]] = ("entry", "property")

    def __post_init__(self) -> None:
        if self.n_cases < 1:
            raise UsageError(f"n_cases is {self.n_cases}; draw at least one")

    def grade_program(self, source: str, row: Mapping[str, Any]) -> Score:
        try:
            names = {node.name for node in ast.parse(row["property"]).body if isinstance(node, ast.FunctionDef)}
        except (SyntaxError, ValueError, TypeError) as error:
            bad_data(f"the property is not Python: {error}")
        if not {"draw", "holds"} <= names:
            bad_data("the property defines no function 'draw', or none 'holds'")
        setup = row["property"] + _DRAWING.format(seed=self.seed)
        tested = self.jail.run_tests(source, [_CASE] * self.n_cases, row["entry"], setup, False, self.limits)
        score = self.unfinished_score(tested)
        if score is not None:
            return score
        if tested.passed < 0 or tested.detail.startswith("tests.Draw"):  # no error of the program's can be called so
            bad_data(f"the property cannot be used: {tested.detail}")
        return self.score_of_passed(tested.passed, tested.total, f"wrong: {tested.detail}")


_DRAWING = """
import copy, random
class Draw(Exception): pass
def __arguments__(source):
    try:
        return tuple(draw(source))
    except Exception as error:
        raise Draw(f"draw failed with {{error!r}}") from None
__source__ = random.Random({seed})
"""
_CASE = """
__drawn__ = __arguments__(__source__)
assert holds(candidate(*copy.deepcopy(__drawn__)), *__drawn__), __drawn__
"""
