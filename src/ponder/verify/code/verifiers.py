"""Verifiers of programs: by calls, by output, by assert-style tests, by properties.

The program is the one code block after the thinking. It runs in the sandbox, and no verdict is computed there: expected
values never enter its process, return values come out as plain data, and tests run in a jail of their own, where
objects of the program are proxies.

A fault of the program scores 0 with the reason (wrong, raised, timed out, out of memory, crashed, malformed); what the
sandbox could not decide is None. `partial_credit=True` gives the share of tests passed instead of all or nothing.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from ponder.errors import TaskError, UsageError
from ponder.runs.trust import names_code
from ponder.types import Score, Trace
from ponder.verify.base import TextVerifier, bad_data, grade_or_undecided, repr_for_reason
from ponder.verify.code import languages
from ponder.verify.code.compare_values import RELATIVE_TOLERANCE, values_equal
from ponder.verify.code.extract_program import PYTHON_TAGS, extract_program
from ponder.verify.sandbox import (
    CallResult,
    IsolationKind,
    ProgramResult,
    Sandbox,
    SandboxError,
    SandboxLimits,
    TestsResult,
    shared_sandbox,
)
from ponder.verify.sandbox.codec import NotPlainData, encode
from ponder.verify.sandbox.results import printable_line


@dataclass(frozen=True)
class CodeVerifier(TextVerifier):
    """The base of the verifiers of programs. `isolation` chooses the jail (default: the strongest possible here)."""

    partial_credit: bool = False
    limits: SandboxLimits = SandboxLimits()
    isolation: IsolationKind | None = field(
        default=None, metadata=names_code(lambda isolation: "isolation=unsafe" if isolation == "unsafe" else "")
    )

    REQUIRED_KEYS: ClassVar[tuple[str, ...]] = ("tests",)
    TAGS: ClassVar[frozenset[str]] = PYTHON_TAGS

    @property
    def jail(self) -> Sandbox:
        return shared_sandbox(self.limits, self.isolation)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """Grade all steps concurrently, as far as the jail has slots."""
        work = [partial(self.grade, trace.text(step), trace.problem.answer) for step in steps]
        try:
            jail = self.jail
        except SandboxError as error:
            return [Score(None, f"refused: {error}") for _ in steps]
        return list(await asyncio.gather(*(jail.in_thread(one) for one in work)))

    def verify(self, text: str, gold: Any) -> Score:
        row = self.checked_row(gold)
        program = extract_program(text, self.tags)
        return Score(0.0, program.reason) if program.answer is None else self.grade_program(program.answer, row)

    @property
    def tags(self) -> frozenset[str]:
        """The language tags of code blocks that are read."""
        return self.TAGS

    def checked_row(self, gold: Any) -> Mapping[str, Any]:
        """The problem's answer, if it has what this verifier reads."""
        if not isinstance(gold, Mapping):
            bad_data(
                f"the problem's answer is {repr_for_reason(gold)}; it must be a mapping with"
                f" {' and '.join(self.REQUIRED_KEYS)}"
            )
        for key in self.REQUIRED_KEYS:
            if not gold.get(key):
                bad_data(f"the problem has no {key!r}; a program cannot be graded without it, so leave the row out")
        if not isinstance(gold.get("entry") or "", str):
            bad_data(f"the problem's 'entry' is {repr_for_reason(gold['entry'])}; it must be the name of a function")
        return gold

    def grade_program(self, source: str, row: Mapping[str, Any]) -> Score:
        """Grade a program, given as its source text."""
        raise NotImplementedError(f"{type(self).__name__} must implement its check of a program")

    def check_reference(self, gold: Any, reference: str, id: str = "") -> None:
        """Refuse a row whose own reference program does not pass: `TaskError` says which, and why."""
        score = grade_or_undecided(lambda: self.grade_program(reference, self.checked_row(gold)))
        if score.value is None:
            raise TaskError(f"problem {id or '?'} cannot be graded: {score.reason}")
        if score.value < 1:
            raise TaskError(f"problem {id or '?'}: its tests fail on its own reference ({score.reason}); leave it out")

    def _score_if_unfinished(self, tested: TestsResult) -> Score | None:
        """The score where the tests did not finish or left the verdict undecided; else None."""
        if tested.run_status == "lost":
            return Score(None, f"crashed: {tested.detail}")
        if tested.run_status != "done":
            return Score(0.0, f"{tested.run_status}: {tested.detail}" if tested.detail else tested.run_status)
        if tested.undecided and (self.partial_credit or not tested.failed):
            return Score(None, f"undecided: {tested.undecided}")
        return None

    def _score(self, passed: int, total: int, why: str) -> Score:
        if passed == total:
            return Score(1.0, "right")
        reason = f"{why}; passed {passed} of {total}"
        return Score(passed / total if self.partial_credit else 0.0, reason)


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
        return self._score(sum(good), len(good), _first_fault(good, replies))


def _first_fault(good: Sequence[bool], replies: Sequence[CallResult]) -> str:
    for at, (passed, reply) in enumerate(zip(good, replies, strict=True)):
        if not passed:
            return ("wrong" if reply.run_status == "done" else reply.description) + f" (test {at + 1})"
    return ""


@dataclass(frozen=True)
class OutputTests(CodeVerifier):
    """A program's stdout for each stdin: the answer is `{"tests": [{"stdin": "1", "stdout": "2"}, ...]}`.

    `compare`: "lines" ignores white space at the ends of lines and of the output, "words" all of it, "exact" none.
    """

    language: str = "python"
    compare: Literal["lines", "words", "exact"] = "lines"

    def __post_init__(self) -> None:
        if self.compare not in ("lines", "words", "exact"):
            raise UsageError(f"compare is {self.compare!r}; it must be 'lines', 'words' or 'exact'")
        if self.language != "python":
            languages.find_language(self.language)

    @property
    def tags(self) -> frozenset[str]:
        return PYTHON_TAGS if self.language == "python" else languages.find_language(self.language).fence_tags

    def grade_program(self, source: str, row: Mapping[str, Any]) -> Score:
        tests = row["tests"]
        for test in tests:
            if not isinstance(test, Mapping) or not isinstance(test.get("stdout"), str):
                bad_data(f"the test {repr_for_reason(test)} has no text under 'stdout'")
            if not isinstance(test.get("stdin", ""), str | None):
                bad_data(f"the test's 'stdin' is {repr_for_reason(test['stdin'])}; it must be text")
        language = None if self.language == "python" else languages.find_language(self.language)
        files: dict[str, bytes] = {}
        if language is not None:
            files, failed = languages.build(self.jail, language, source)
            if failed is not None:
                return _compile_error_score(failed)
        passed, why = 0, ""
        for at, test in enumerate(tests):
            stdin = test.get("stdin") or ""
            if language is None:
                result = self.jail.run_script(source, stdin, self.limits)
            else:
                result = languages.run(self.jail, language, source, files, stdin, self.limits)
            if result.run_status == "lost":
                return Score(None, f"crashed: {result.detail}")
            if result.run_status == "done" and self._matches(result.stdout, test["stdout"]):
                passed += 1
            elif not why:
                why = f"{_why(result)} (test {at + 1})"
                if not self.partial_credit:  # one failure decides
                    return Score(0.0, why)
        return self._score(passed, len(tests), why)

    def _matches(self, stdout: str, expected: str) -> bool:
        if self.compare == "exact":
            return stdout == expected
        if self.compare == "words":
            return stdout.split() == expected.split()
        return _lines(stdout) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _why(result: ProgramResult) -> str:
    if result.run_status == "raised":
        last = printable_line(result.stderr.strip().rpartition("\n")[2][:200])
        return f"raised: {last or result.detail}"
    return "wrong" if result.run_status == "done" else result.description


def _compile_error_score(result: ProgramResult) -> Score:
    if result.run_status == "lost":
        return Score(None, f"crashed: {result.detail}")
    if result.run_status == "raised":
        message = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:100])
        return Score(0.0, f"malformed: it does not compile: {printable_line(message[:200])}")
    return Score(0.0, f"{result.description} (compiling)")


@dataclass(frozen=True)
class AssertTests(CodeVerifier):
    """Test code with asserts, as in HumanEval and MBPP: `{"tests": ["assert f(1) == 2", ...]}` or one text.

    Optional: `entry`, the function or class that must exist; `names`, more that the program supplies; `setup`, code
    before the tests; `prefix`, code that a program goes on from, put before it. `partial_credit` counts tests, or,
    where there is one test, its asserts: an assert in a loop counts once, and has to hold every time.

    The tests run in a jail of their own. Of the names that they do not define, the program supplies the entry, `names`
    and classes; without an entry, functions too. Helpers such as `isclose` come from the standard library, never from
    the program, and a name that nothing defines leaves a test undecided (sandbox/free_names.py).

    Plain data crosses by value and is compared beside the tests. Objects of the program stand there as proxies, with
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
        score = self._score_if_unfinished(tested)
        if score is not None:
            return score
        if tested.passed < 0:
            bad_data(f"the tests cannot be used: {tested.detail}")
        why = "wrong" if tested.detail.startswith("AssertionError") else f"wrong: {tested.detail}"
        score = self._score(tested.passed, tested.total, why)
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
        score = self._score_if_unfinished(tested)
        if score is not None:
            return score
        if tested.passed < 0 or tested.detail.startswith("tests.Draw"):  # no error of the program's can be called so
            bad_data(f"the property cannot be used: {tested.detail}")
        return self._score(tested.passed, tested.total, f"wrong: {tested.detail}")


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
