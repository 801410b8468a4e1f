"""Verify a program by its output: stdin in, stdout compared. In Python or another language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.code import languages
from ponder.verify.code.code_verifier import CodeVerifier
from ponder.verify.code.extract_program import PYTHON_TAGS
from ponder.verify.sandbox import ProgramResult
from ponder.verify.sandbox.results import printable_line


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
        return self.score_of_passed(passed, len(tests), why)

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
