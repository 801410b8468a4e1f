"""Verify a program by test code with asserts, as in HumanEval and MBPP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.code.code_verifier import CodeVerifier


@dataclass(frozen=True)
class AssertTests(CodeVerifier):
    """Test code with asserts, as in HumanEval and MBPP: `{"tests": ["assert f(1) == 2", ...]}` or one text.

    Optional: `entry`, the function or class that must exist; `names`, more that the program supplies; `setup`, code
    before the tests; `prefix`, code that a program goes on from, put before it. `partial_credit` counts tests, or,
    where there is one test, its asserts: an assert in a loop counts once, and has to hold every time.

    The tests run in a jail of their own. Of the names that they do not define, the program supplies the entry, `names`
    and classes; without an entry, functions too. Helpers such as `isclose` come from the standard library, never from
    the program, and a name that nothing defines leaves a test undecided (sandbox/free_names.py).

    Plain data crosses by value and is compared in the tests' jail. Objects of the program are proxies there, with
    their class, attributes and special methods. Two of them compare by their own `__eq__`, since that is under test; an
    object never decides that it equals plain data (the rule is in sandbox/object_trust.py). What does not cross, such
    as a patched module or a seed, leaves a test undecided and never fails it. Where tests passed that a wrong program
    could have passed too, the reason says "by weak tests" and why.
    """

    def grade_program(self, source: str, row: Mapping[str, Any]) -> Score:
        tests = [row["tests"]] if isinstance(row["tests"], str) else list(row["tests"])
        setup, entry = str(row.get("setup") or ""), str(row.get("entry") or "")
        whole = prepend_prefix(str(row.get("prefix") or ""), source)
        names = _names_list(row.get("names"))
        tested = self.jail.run_tests(
            whole, tests, entry, setup, self.partial_credit and len(tests) == 1, self.limits, names
        )
        score = self.unfinished_score(tested)
        if score is not None:
            return score
        if tested.passed < 0:
            bad_data(f"the tests cannot be used: {tested.detail}")
        why = "wrong" if tested.detail.startswith("AssertionError") else f"wrong: {tested.detail}"
        score = self.score_of_passed(tested.passed, tested.total, why)
        if score.value == 1 and tested.weaknesses:
            return Score(1.0, f"{score.reason}, by weak tests: {'; '.join(tested.weaknesses)}")
        return score


def _names_list(names: Any) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        bad_data(f"the problem's 'names' are {repr_for_reason(names)}; they must be a list of names")
    return list(names)


def prepend_prefix(prefix: str, source: str) -> str:
    """The prefix and the program: a function's body begins with white space, a complete program does not."""
    if not prefix:
        return source
    return prefix.rstrip("\n") + "\n" + source if source[:1] in (" ", "\t") else f"{prefix}\n\n{source}"
