"""Verify a program by calls of one function: arguments in, return value compared outside the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.code.code_verifier import CodeVerifier
from ponder.verify.code.compare_values import RELATIVE_TOLERANCE, values_equal
from ponder.verify.sandbox import CallResult
from ponder.verify.sandbox.codec import NotPlainData, encode


@dataclass(frozen=True)
class CallTests(CodeVerifier):
    """Calls of one function: the answer is `{"entry": "f", "tests": [{"args": [1], "expected": 2}, ...]}`.

    A test may have `kwargs`. An entry `Solution.f` is a method of a class. `compare_values.py` says how values compare.
    """

    tolerance: float = RELATIVE_TOLERANCE

    REQUIRED_KEYS: ClassVar[tuple[str, ...]] = ("entry", "tests")

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance}; it is a share of the expected value: 0 (exact) up to 1")

    def grade_program(self, source: str, row: Mapping[str, Any]) -> Score:
        tests = row["tests"]
        for test in tests:
            if not isinstance(test, Mapping) or not {"args", "expected"} <= test.keys():
                bad_data(f"the test {repr_for_reason(test)} has no 'args' or no 'expected'")
            if not isinstance(test["args"], list | tuple):
                bad_data(f"the test's 'args' are {repr_for_reason(test['args'])}; they must be a list")
            try:
                encode([test["args"], test.get("kwargs", {}), test["expected"]])
            except NotPlainData as error:
                bad_data(f"a test is not plain data: {error}")
        calls = [(tuple(test["args"]), test.get("kwargs") or {}) for test in tests]
        replies = self.jail.call_program(source, row["entry"], calls, self.limits)
        if any(reply.run_status == "lost" for reply in replies):
            return Score(None, f"crashed: {replies[-1].detail}")
        good = [
            r.run_status == "done" and values_equal(r.value, t["expected"], self.tolerance)
            for r, t in zip(replies, tests, strict=True)
        ]
        return self.score_of_passed(sum(good), len(good), _first_fault(good, replies))


def _first_fault(good: Sequence[bool], replies: Sequence[CallResult]) -> str:
    for at, (passed, reply) in enumerate(zip(good, replies, strict=True)):
        if not passed:
            return ("wrong" if reply.run_status == "done" else reply.description) + f" (test {at + 1})"
    return ""
