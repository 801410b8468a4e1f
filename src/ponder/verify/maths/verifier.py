"""Is the final answer right? Numbers, expressions, intervals, sets, tuples, matrices, equations, words."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
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
from ponder.verify.answers.hedging import is_hedged_content
from ponder.verify.maths import jail_client
from ponder.verify.maths.compare_answers import ComparisonRules, compare_answers
from ponder.verify.maths.find_answer import find_math_answer, span_answer
from ponder.verify.maths.normalize_latex import OutsideGrammar, UnreadableAnswer, normalize_latex, remove_spaces
from ponder.verify.maths.parse_structure import parse_structure
from ponder.verify.maths.structures import AnswerStructure
from ponder.verify.numeric import numbers
from ponder.verify.sandbox.results import CallResult, SandboxError


@dataclass(frozen=True)
class MathAnswer:
    """1 where the one answer given is the problem's, in whatever way it is written; else 0, or None, with the reason.

    Exact unless a relative `tolerance` is set. Where the gold is a plain number the answer must be one: 27 + 58 is not
    worked out, and may be nothing but the question (`worked=False` takes it for 85). `pattern` (a regular expression,
    its first group the answer) finds the answer in place of `forms`. Most answers are decided in this process in well
    under a millisecond, with bounds on all that is worked out; what only a symbolic library can read is compared by
    math-verify in a jail, for at most `seconds`. An answer that takes longer is wrong where the gold alone does not.
    """

    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS
    answer_regex: str | None = None
    tolerance: float = 0.0
    max_answer_chars: int = 500  # characters in an answer
    allow_repeats: bool = False  # the same box more than once is one answer
    timeout_seconds: float = 1.0
    require_evaluated: bool = True  # a plain number as the gold wants a plain number

    def __post_init__(self) -> None:
        check_forms(self.forms)
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance}; it is a share of the gold answer: 0 (exact) up to 1")
        if self.max_answer_chars < 1 or self.timeout_seconds <= 0:
            raise UsageError(
                f"max_answer_chars is {self.max_answer_chars} and timeout_seconds {self.timeout_seconds}; both must be positive"
            )
        if self.answer_regex is not None:
            try:
                compiled = re.compile(self.answer_regex)
            except re.error as error:
                raise UsageError(f"pattern {self.answer_regex!r} is not a regular expression: {error}") from error
            if compiled.groups != 1:
                raise UsageError(
                    f"pattern {self.answer_regex!r} has {compiled.groups} groups; put one around the answer"
                )

    @property
    def name(self) -> str:
        return "accuracy"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        """All at once: one that takes its time keeps none of the others waiting."""
        gold = trace.problem.answer
        return list(await asyncio.gather(*(self.agrade(trace.text(step), gold) for step in steps)))

    def grade(self, text: str, gold: Any) -> Score:
        """One completion against one gold answer; from any thread."""
        try:
            if self.answer_regex is None:
                found = find_math_answer(text, self.forms, self.max_answer_chars, self.allow_repeats)
            else:
                found = self._regex_answer(
                    jail_client.call(self.timeout_seconds, "search", *self._regex_request(text)), text
                )
            decided = self._decide(found, gold)
            if isinstance(decided, Score):
                return decided
            first = jail_client.call(self.timeout_seconds, "compare", *decided)
            if not _failed_on_input(first):
                return _verdict(first)
            alone = jail_client.call(self.timeout_seconds, "evaluate_gold", decided[0])
            return _assign_blame(
                alone,
                first if not _gold_evaluates(alone) else jail_client.call(self.timeout_seconds, "compare", *decided),
            )
        except Exception as error:  # a grader must never raise into the training loop
            return _error_score(error)

    async def agrade(self, text: str, gold: Any) -> Score:
        """The same from any event loop, which it does not hold up."""
        try:
            if self.answer_regex is None:
                found = find_math_answer(text, self.forms, self.max_answer_chars, self.allow_repeats)
            else:
                found = self._regex_answer(
                    await jail_client.acall(self.timeout_seconds, "search", *self._regex_request(text)), text
                )
            decided = self._decide(found, gold)
            if isinstance(decided, Score):
                return decided
            first = await jail_client.acall(self.timeout_seconds, "compare", *decided)
            if not _failed_on_input(first):
                return _verdict(first)
            alone = await jail_client.acall(self.timeout_seconds, "evaluate_gold", decided[0])
            again = (
                first
                if not _gold_evaluates(alone)
                else await jail_client.acall(self.timeout_seconds, "compare", *decided)
            )
            return _assign_blame(alone, again)
        except Exception as error:
            return _error_score(error)

    def extract_answer(self, text: str) -> str | None:
        """The answer a completion gives, as votes count it; None where it gives none."""
        if self.answer_regex is None:
            found = find_math_answer(text, self.forms, self.max_answer_chars, self.allow_repeats)
        else:
            found = self._regex_answer(
                jail_client.call(self.timeout_seconds, "search", *self._regex_request(text)), text
            )
        if found.answer is None:
            return None
        number = numbers.parse_plain_number(found.answer)
        if number.value is not None:
            return str(number.value)
        try:
            return remove_spaces(normalize_latex(found.answer))
        except UnreadableAnswer:
            return None

    def _regex_request(self, text: str) -> tuple[str, str, int]:
        return self.answer_regex or "", strip_thinking(text) or "", self.max_answer_chars

    def _regex_answer(self, reply: CallResult, text: str) -> ExtractedAnswer:
        """What the pattern met; it is a user's expression on hostile text, so it too runs in the jail."""
        if reply.run_status != "done":
            raise _Undecided(f"{reply.run_status}: the pattern {self.answer_regex!r} on {len(text)} characters")
        if len(reply.value) != 1:
            return ExtractedAnswer(None, "several answers" if reply.value else "no answer")
        return span_answer(reply.value[0], self.max_answer_chars)

    def _decide(self, found: ExtractedAnswer, gold: Any) -> Score | tuple[str, str]:
        """A verdict, or the two texts that only the symbolic reader can compare: the answer is empty where it is
        malformed, and the question is whether the gold is not."""
        truth = _parse_gold("" if gold is None else str(gold))
        if truth.fault:
            return Score(None, truth.fault)
        if found.answer is None:
            return Score(0.0, found.reason)
        if found.percent_sign:
            return _grade_percentage(found.answer, truth.number, self.tolerance)
        if truth.number.value is not None:
            if found.answer == truth.written:
                return Score(1.0, "right")
            given = numbers.parse_plain_number(found.answer)
            both_are_equations = "=" in truth.written and "=" in found.answer
            if given.value is not None and not both_are_equations:
                if self.require_evaluated and numbers.is_unreduced_fraction(found.answer, given, truth.written):
                    return Score(0.0, "malformed")
                return _score(numbers.same_number(given, truth.number, self.tolerance))
        try:
            answer = normalize_latex(found.answer)
            if r"\pmod" in truth.plain:
                answer = _MODULO.sub(r"\\pmod{\1}", answer)
            if remove_spaces(answer) == truth.remove_spaces:
                return Score(1.0, "right")
            _reject_hedged_or_unevaluated(answer, truth.plain)
            if truth.shape is None:
                raise OutsideGrammar
            verdict = compare_answers(
                truth.shape, parse_structure(answer), ComparisonRules(self.tolerance, self.require_evaluated)
            )
        except UnreadableAnswer as unreadable:
            return Score(0.0, str(unreadable))
        except OutsideGrammar:
            return truth.plain, "" if _different_notation(answer, truth.plain) else answer
        except Exception:
            if truth.shape is None or compare_answers(truth.shape, truth.shape) != "right":
                raise
            return Score(0.0, "malformed")  # the gold is no trouble: nobody gets "undecided" by what breaks a reader
        if verdict == "several answers" and _ALTERNATIVE.search(answer):
            verdict = "hedged"
        return Score(1.0 if verdict == "right" else 0.0, verdict)


@dataclass(frozen=True)
class _ParsedGold:
    """A gold answer, read once for all that are compared with it, and no further than they need."""

    written: str

    @cached_property
    def number(self) -> numbers.Number:
        return numbers.parse_plain_number(self.written, is_gold=True)

    @cached_property
    def fault(self) -> str:
        if self.number.value is not None or self.plain:
            return ""
        return f"bad data: the gold answer {self.written[:40]!r} is no answer; check the task's data"

    @cached_property
    def plain(self) -> str:
        try:
            return normalize_latex(self.written)
        except UnreadableAnswer:
            return ""

    @cached_property
    def remove_spaces(self) -> str:
        return remove_spaces(self.plain)

    @cached_property
    def shape(self) -> AnswerStructure | None:
        """None: only the symbolic reader may be able to read it."""
        try:
            return parse_structure(self.plain)
        except UnreadableAnswer:
            return None


@lru_cache(maxsize=4096)
def _parse_gold(written: str) -> _ParsedGold:
    box = next(find_boxes(written), None)
    if box and box.content is not None and (box.start, box.end) == (0, len(written)):
        return _ParsedGold(box.content)
    return _ParsedGold(written)


_ALTERNATIVE = re.compile(r"\bor\b|\\pm(?![A-Za-z])", re.IGNORECASE)
# Not worked out: an answer that restates its question must not count.
_UNEVALUATED_COMMANDS = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|sup|inf|max|min|gcd|lcm|det|bmod|pmod|mod|arg|deg|dim|ker|Pr|partial"
    r"|nabla|bigcup|bigcap|operatorname)(?![A-Za-z])"
)


def _reject_hedged_or_unevaluated(answer: str, gold: str) -> None:
    """What no answer may hold unless the gold does."""
    if is_hedged_content(answer, "expression") and not is_hedged_content(gold, "expression"):
        raise UnreadableAnswer("hedged")
    if set(_UNEVALUATED_COMMANDS.findall(answer)) - set(_UNEVALUATED_COMMANDS.findall(gold)):
        raise UnreadableAnswer("malformed")


_MODULO = re.compile(r"\\(?:bmod|mod)\s*\{?([0-9a-z]{1,20})\}?")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[{}])|[=<>,;()\[\]:&]")
# May be there or not: how an expression is written.
_FREE = frozenset((
    r"\frac", r"\sqrt", r"\pi", r"\cdot", r"\times", r"\ln", r"\log", r"\exp", r"\sin", r"\cos", r"\tan", "(", ")",
))  # fmt: skip
_SUMMED = re.compile(r"\\(?:(?:sum|prod)\s*_\s*\{[a-z]=[^{}=]{1,20}\}|int(?![A-Za-z]))")


def _different_notation(answer: str, gold: str) -> bool:
    """Not for math-verify to forgive: other relations, brackets, separators or commands than the gold has. A gold's
    sum, product or integral may be worked out."""
    if _SUMMED.search(gold) and not _SUMMED.search(answer):
        gold = _SUMMED.sub("", gold).strip("()")
    counts = [Counter(token for token in _COMMAND.findall(text) if token not in _FREE) for text in (answer, gold)]
    wrapped = [re.sub(r"[^()\[\]]", "", text[:1] + text[-1:]) for text in (answer, gold)]
    return counts[0] != counts[1] or wrapped[0] != wrapped[1]


def _grade_percentage(answer: str, gold: numbers.Number, tolerance: float) -> Score:
    """\\boxed{42}\\% is a share of 0.42, and the figure 42 only where the gold has the sign as well."""
    given = numbers.parse_plain_number(rf"{answer}\%")
    figure = given.percent and not gold.percent and numbers.same_number(replace(given, percent=False), gold, tolerance)
    return _score(not figure and numbers.same_number(given, gold, tolerance))


def _failed_on_input(reply: CallResult) -> bool:
    """It ended for something in the two texts: too much time or memory, or a library that fell over them."""
    return reply.run_status not in ("done", "lost")


def _gold_evaluates(alone: CallResult) -> bool:
    return alone.run_status == "done" and alone.value == "right"


def _assign_blame(alone: CallResult, again: CallResult) -> Score:
    """The gold worked out alone, and the pair a second time. Where the gold alone is no trouble it was the answer:
    nobody gets "undecided" by being slow."""
    if _gold_evaluates(alone) and _failed_on_input(again):
        return Score(0.0, f"too slow: {again.run_status}")
    return _verdict(again)


def _verdict(reply: CallResult) -> Score:
    if reply.run_status != "done":
        return Score(None, reply.description)
    if reply.value == "bad data":
        return Score(None, "bad data: the gold answer cannot be read; check the task's data")
    return Score(1.0 if reply.value == "right" else 0.0, str(reply.value))


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
