"""The verifier of a time on a clock with twelve hours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.extract import TEXT_FORMS, AnswerForm, check_forms
from ponder.verify.answers.structured import DELIMITED_FORMS
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.final_answer.text import extract_text, strip_quotes

_TIME = re.compile(r"([0-9]{1,2}):([0-5][0-9])")


@dataclass(frozen=True)
class ClockTime(TextVerifier):
    """1 where the one time given, `H:MM`, is the problem's, on a clock with twelve hours: 3:05, 03:05, 15:05."""

    forms: tuple[AnswerForm, ...] = DELIMITED_FORMS

    def __post_init__(self) -> None:
        check_forms(self.forms, TEXT_FORMS)

    def extract_answer(self, text: str) -> str | None:
        """The time that a completion gives, as votes count it."""
        minutes = parse_minutes(extract_text(text, self.forms).answer or "")
        return None if minutes is None else f"{minutes // 60 or 12}:{minutes % 60:02d}"

    def verify(self, text: str, gold: Any) -> Score:
        right = parse_minutes(gold) if isinstance(gold, str) else None
        if right is None:
            bad_data(f"the gold answer {repr_for_reason(gold)} is not a time H:MM")
        extracted = extract_text(text, self.forms)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        minutes = parse_minutes(extracted.answer)
        if minutes is None:
            return Score(0.0, "malformed: not a time H:MM")
        return Score(1.0, "right") if minutes == right else Score(0.0, "wrong")


def parse_minutes(text: str) -> int | None:
    """Minutes since 12 o'clock; None where the text is no time."""
    time = _TIME.fullmatch(strip_quotes(text).removesuffix("."))
    return None if time is None or int(time[1]) > 24 else int(time[1]) % 12 * 60 + int(time[2])
