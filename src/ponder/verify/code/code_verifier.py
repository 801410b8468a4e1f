"""The base class of verifiers of programs. Subclasses test by calls, by output, by asserts or by properties.

The program is the one code block after the thinking. It runs in the sandbox, and no verdict is computed there: expected
values never enter its process, return values come out as plain data, and tests run in a jail of their own, where
objects of the program are proxies.

A fault of the program scores 0 with the reason (wrong, raised, timed out, out of memory, crashed, malformed); what the
sandbox could not decide is None. `partial_credit=True` gives the share of tests passed instead of all or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ponder.errors import TaskError
from ponder.runs.trust import names_code
from ponder.types import Score, Trace
from ponder.verify.base import TextVerifier, bad_data, grade_or_undecided, repr_for_reason
from ponder.verify.code.extract_program import PYTHON_TAGS, extract_program
from ponder.verify.sandbox import IsolationKind, Sandbox, SandboxError, SandboxLimits, TestsResult, shared_sandbox


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

    def unfinished_score(self, tested: TestsResult) -> Score | None:
        """The score where the tests did not finish or left the verdict undecided; else None."""
        if tested.run_status == "lost":
            return Score(None, f"crashed: {tested.detail}")
        if tested.run_status != "done":
            return Score(0.0, f"{tested.run_status}: {tested.detail}" if tested.detail else tested.run_status)
        if tested.undecided and (self.partial_credit or not tested.failed):
            return Score(None, f"undecided: {tested.undecided}")
        return None

    def score_of_passed(self, passed: int, total: int, why: str) -> Score:
        """The score for so many passed tests; `why` describes the first failure."""
        if passed == total:
            return Score(1.0, "right")
        reason = f"{why}; passed {passed} of {total}"
        return Score(passed / total if self.partial_credit else 0.0, reason)
