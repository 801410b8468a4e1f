"""The verifier of a final number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.types import Score, Trace
from ponder.verify.answers.extract import EXPLICIT_FORMS, AnswerForm, check_forms, extract
from ponder.verify.base import grade_steps
from ponder.verify.numeric.numbers import is_unreduced_fraction, parse_plain_number, same_number


@dataclass(frozen=True)
class FinalNumber:
    """1 where the one number given equals the problem's answer; exact unless a relative `tolerance` is set."""

    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_forms(self.forms)
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance}; it is a share of the gold answer: 0 (exact) up to 1")

    @property
    def name(self) -> str:
        return "accuracy"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return grade_steps(trace, steps, lambda text: self.grade(text, trace.problem.answer))

    def extract_answer(self, text: str) -> str | None:
        """The number a completion gives, as votes count it; None where it gives none."""
        extracted = extract(text, self.forms)
        value = None if extracted.answer is None else parse_plain_number(extracted.answer).value
        return None if value is None else str(value)

    def grade(self, text: str, gold: Any) -> Score:
        """One completion against one gold answer."""
        truth = parse_plain_number(str(gold), is_gold=True)
        if gold is None or truth.value is None:
            return Score(None, f"the gold answer {str(gold)[:40]!r} is not a plain number; check the task's data")
        extracted = extract(text, self.forms)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        number = parse_plain_number(extracted.answer)
        if number.value is None:
            return Score(0.0, number.reason)
        if is_unreduced_fraction(extracted.answer, number, str(gold)):
            return Score(0.0, "malformed")
        return Score(1.0, "right") if same_number(number, truth, self.tolerance) else Score(0.0, "wrong")
