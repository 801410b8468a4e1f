"""Write a program for another task; after failed tests, see some of them and try again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ponder.errors import UsageError
from ponder.protocols import Environment, Task
from ponder.tasks.environments.retry_task import RetryEpisode, RetryTask
from ponder.types import Message, Score
from ponder.verify.code.assert_tests import AssertTests
from ponder.verify.code.call_tests import CallTests
from ponder.verify.code.compare_values import values_equal
from ponder.verify.code.extract_program import extract_program

MAX_VALUE_CHARS = 200  # of an argument or a value that is shown


@dataclass(frozen=True, kw_only=True)
class CodeFeedback(RetryTask):
    """The programs of another task (`programs`, `mbpp`, ...) with up to `max_turns` tries. After failed tests the
    policy sees at most `shown_tests` of them.

    Only the first half of the tests is ever shown, so that a program that returns the shown values does not pass.
    """

    task: str | Task = "programs"
    shown_tests: int = 3

    @property
    def name(self) -> str:
        return "code-feedback"

    def check_task(self, inner: Any) -> None:
        super().check_task(inner)
        if not isinstance(inner.verifier, CallTests | AssertTests):
            raise UsageError(f"the task {inner.name!r} does not ask for programs: take programs, mbpp or humaneval")
        if self.shown_tests < 1:
            raise UsageError(f"shown_tests is {self.shown_tests}; it must be at least 1")

    def environment(self) -> Environment:
        return cast(Environment, CodeFeedbackEpisode(self))  # whose `act` is a coroutine


@dataclass
class CodeFeedbackEpisode(RetryEpisode):
    """Tries at one program."""

    task: CodeFeedback

    async def feedback(self, text: str, score: Score) -> Message:
        verifier: Any = self.task.inner.verifier
        source = extract_program(text, verifier.tags).answer
        if source is None:
            return {"role": "user", "content": f"There is no program to test: {score.reason}. Try again."}
        faults = await verifier.jail.in_thread(partial(failed_tests, verifier, source, self.problem.answer))
        hidden = f"A hidden test fails: {_short(score.reason.partition(';')[0])}"
        lines = faults[: self.task.shown_tests] or [hidden]
        return {"role": "user", "content": "\n".join(["Some tests fail.", *lines, "Try again."])}


def failed_tests(verifier: CallTests | AssertTests, source: str, row: Mapping[str, Any]) -> list[str]:
    """A line for each failed test of those that may be shown: the first half of them."""
    tests: list[Any] = [row["tests"]] if isinstance(row["tests"], str) else list(row["tests"])
    visible = tests[: (len(tests) + 1) // 2]
    if isinstance(verifier, CallTests):
        return _failed_calls(verifier, source, str(row["entry"]), visible)
    faults = []
    for test in visible:
        score = verifier.grade_program(source, {**row, "tests": [test]})
        if score.value is not None and score.value < 1:
            faults.append(f"{_short(test)}: {_short(score.reason.partition('; passed')[0])}")
    return faults


def _failed_calls(verifier: CallTests, source: str, entry: str, tests: Sequence[Mapping[str, Any]]) -> list[str]:
    calls = [(tuple(test["args"]), test.get("kwargs") or {}) for test in tests]
    faults = []
    for test, reply in zip(tests, verifier.jail.call_program(source, entry, calls, verifier.limits), strict=True):
        if reply.run_status == "done" and values_equal(reply.value, test["expected"], verifier.tolerance):
            continue
        arguments = ", ".join(
            [*map(repr, test["args"]), *(f"{name}={value!r}" for name, value in (test.get("kwargs") or {}).items())]
        )
        outcome = f"returns {_short(repr(reply.value))}" if reply.run_status == "done" else _short(reply.description)
        faults.append(f"{entry}({_short(arguments)}) should return {_short(repr(test['expected']))}; it {outcome}")
    return faults


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."
