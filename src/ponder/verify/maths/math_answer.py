"""Is the final answer right? Numbers, expressions, intervals, sets, tuples, matrices, equations, words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from ponder.errors import UsageError
from ponder.types import Score, Trace
from ponder.verify.answers.extract import (
    EXPLICIT_FORMS,
    AnswerForm,
    ExtractedAnswer,
    check_forms,
    find_boxes,
    strip_thinking,
)
from ponder.verify.maths import jail_client
from ponder.verify.maths.compare_answers import ComparisonRules, compare_answers
from ponder.verify.maths.find_answer import find_math_answer, span_answer
from ponder.verify.maths.jail_client import (
    JailCalls,
    assign_blame,
    failed_on_input,
    gold_evaluates,
    reply_score,
)
from ponder.verify.maths.normalize_latex import OutsideGrammar, UnreadableAnswer, normalize_latex, remove_spaces
from ponder.verify.maths.notation import ALTERNATIVE, MODULO, different_notation, reject_hedged_or_unevaluated
from ponder.verify.maths.parse_structure import parse_structure
from ponder.verify.maths.structures import AnswerStructure
from ponder.verify.numeric import numbers
from ponder.verify.sandbox.results import SandboxError


@dataclass(frozen=True)
class MathAnswer:
    """1 if the completion's one answer equals the problem's, however it is written; else 0, or None, with the reason.

    Exact unless a relative `tolerance` is set. Where the gold is a plain number the answer must be one: 27 + 58 is not
    evaluated and may only restate the question (`require_evaluated=False` accepts it for 85). `answer_regex`, with one
    group around the answer, replaces `forms`. Most answers are decided in this process in well under a millisecond,
    with bounds on all arithmetic. What only a symbolic library can read is compared by math-verify in the sandbox, for
    at most `timeout_seconds`. An answer that takes longer is wrong if the gold alone evaluates in time.
    """

    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS
    answer_regex: str | None = None
    tolerance: float = 0.0
    max_answer_chars: int = 500
    allow_repeats: bool = False  # the same box more than once is one answer
    timeout_seconds: float = 1.0
    require_evaluated: bool = True  # if the gold is a plain number, so must the answer be

    def __post_init__(self) -> None:
        check_forms(self.forms)
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance}; it is a share of the gold answer: 0 (exact) up to 1")
        if self.max_answer_chars < 1 or self.timeout_seconds <= 0:
            raise UsageError(
                f"max_answer_chars is {self.max_answer_chars} and timeout_seconds is {self.timeout_seconds};"
                " both must be positive"
            )
        if self.answer_regex is not None:
            try:
                compiled = re.compile(self.answer_regex)
            except re.error as error:
                raise UsageError(f"answer_regex {self.answer_regex!r} is not a regular expression: {error}") from error
            if compiled.groups != 1:
                raise UsageError(
                    f"answer_regex {self.answer_regex!r} has {compiled.groups} groups; put one around the answer"
                )

    @property
    def name(self) -> str:
        return "accuracy"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """Grade all steps concurrently, so that a slow answer does not delay the others."""
        gold = trace.problem.answer
        return list(await asyncio.gather(*(self.agrade(trace.text(step), gold) for step in steps)))

    def grade(self, text: str, gold: Any) -> Score:
        """One completion against one gold answer; from any thread."""
        try:
            return jail_client.run(self._grading(text, gold), self.timeout_seconds)
        except Exception as error:  # a grader must never raise into the training loop
            return _error_score(error)

    async def agrade(self, text: str, gold: Any) -> Score:
        """The same from any event loop, without blocking it."""
        try:
            return await jail_client.arun(self._grading(text, gold), self.timeout_seconds)
        except Exception as error:
            return _error_score(error)

    def _grading(self, text: str, gold: Any) -> JailCalls[Score]:
        decided = self._decide((yield from self._find(text)), gold)
        if isinstance(decided, Score):
            return decided
        first = yield "compare", decided
        if not failed_on_input(first):
            return reply_score(first)
        alone = yield "evaluate_gold", decided[:1]
        again = (yield "compare", decided) if gold_evaluates(alone) else first
        return assign_blame(alone, again)

    def extract_answer(self, text: str) -> str | None:
        """The answer a completion gives, as votes count it; None where it gives none."""
        extracted = jail_client.run(self._find(text), self.timeout_seconds)
        if extracted.answer is None:
            return None
        number = numbers.parse_plain_number(extracted.answer)
        if number.value is not None:
            return str(number.value)
        try:
            return remove_spaces(normalize_latex(extracted.answer))
        except UnreadableAnswer:
            return None

    def _find(self, text: str) -> JailCalls[ExtractedAnswer]:
        """Extract the answer by its form, or by `answer_regex`, which runs in the jail: it may backtrack for long."""
        if self.answer_regex is None:
            return find_math_answer(text, self.forms, self.max_answer_chars, self.allow_repeats)
        reply = yield "search", (self.answer_regex, strip_thinking(text) or "", self.max_answer_chars)
        if reply.run_status != "done":
            raise _Undecided(f"{reply.run_status}: the pattern {self.answer_regex!r} on {len(text)} characters")
        if len(reply.value) != 1:
            return ExtractedAnswer(None, "several answers" if reply.value else "no answer")
        return span_answer(reply.value[0], self.max_answer_chars)

    def _decide(self, extracted: ExtractedAnswer, gold: Any) -> Score | tuple[str, str]:
        """A verdict, or the gold and the answer for the symbolic library. An empty answer is malformed, if the library
        can read the gold."""
        truth = _parse_gold("" if gold is None else str(gold))
        if truth.fault:
            return Score(None, truth.fault)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        if extracted.percent_sign:
            return _grade_percentage(extracted.answer, truth.number, self.tolerance)
        if truth.number.value is not None:
            if extracted.answer == truth.text:
                return Score(1.0, "right")
            number = numbers.parse_plain_number(extracted.answer)
            both_are_equations = "=" in truth.text and "=" in extracted.answer
            if number.value is not None and not both_are_equations:
                if self.require_evaluated and numbers.is_unreduced_fraction(extracted.answer, number, truth.text):
                    return Score(0.0, "malformed")
                return _score(numbers.same_number(number, truth.number, self.tolerance))
        try:
            answer = normalize_latex(extracted.answer)
            if r"\pmod" in truth.plain:
                answer = MODULO.sub(r"\\pmod{\1}", answer)
            if remove_spaces(answer) == truth.remove_spaces:
                return Score(1.0, "right")
            reject_hedged_or_unevaluated(answer, truth.plain)
            if truth.shape is None:
                raise OutsideGrammar
            verdict = compare_answers(
                truth.shape, parse_structure(answer), ComparisonRules(self.tolerance, self.require_evaluated)
            )
        except UnreadableAnswer as unreadable:
            return Score(0.0, str(unreadable))
        except OutsideGrammar:
            return truth.plain, "" if different_notation(answer, truth.plain) else answer
        except Exception:
            if truth.shape is None or compare_answers(truth.shape, truth.shape) != "right":
                raise
            return Score(0.0, "malformed")  # the gold compares with itself, so the answer is at fault
        if verdict == "several answers" and ALTERNATIVE.search(answer):
            verdict = "hedged"
        return Score(1.0 if verdict == "right" else 0.0, verdict)


@dataclass(frozen=True)
class _ParsedGold:
    """A gold answer, parsed once and only as far as the comparisons need."""

    text: str

    @cached_property
    def number(self) -> numbers.Number:
        return numbers.parse_plain_number(self.text, is_gold=True)

    @cached_property
    def fault(self) -> str:
        if self.number.value is not None or self.plain:
            return ""
        return f"bad data: the gold answer {self.text[:40]!r} is no answer; check the task's data"

    @cached_property
    def plain(self) -> str:
        try:
            return normalize_latex(self.text)
        except UnreadableAnswer:
            return ""

    @cached_property
    def remove_spaces(self) -> str:
        return remove_spaces(self.plain)

    @cached_property
    def shape(self) -> AnswerStructure | None:
        """None: only the symbolic library may be able to read it."""
        try:
            return parse_structure(self.plain)
        except UnreadableAnswer:
            return None


@lru_cache(maxsize=4096)
def _parse_gold(text: str) -> _ParsedGold:
    box = next(find_boxes(text), None)
    if box and box.content is not None and (box.start, box.end) == (0, len(text)):
        return _ParsedGold(box.content)
    return _ParsedGold(text)


def _grade_percentage(answer: str, gold: numbers.Number, tolerance: float) -> Score:
    """\\boxed{42}\\% is a share of 0.42, and the figure 42 only where the gold has the sign as well."""
    number = numbers.parse_plain_number(rf"{answer}\%")
    figure = (
        number.percent and not gold.percent and numbers.same_number(replace(number, percent=False), gold, tolerance)
    )
    return _score(not figure and numbers.same_number(number, gold, tolerance))


def _score(right: bool) -> Score:
    return Score(1.0, "right") if right else Score(0.0, "wrong")


class _Undecided(Exception):
    """The message is the reason."""


def _error_score(error: Exception) -> Score:
    if isinstance(error, _Undecided):
        return Score(None, str(error))
    if isinstance(error, SandboxError):
        return Score(None, f"refused: {error}")
    return Score(None, f"crashed: {type(error).__name__}: {error}"[:300])
