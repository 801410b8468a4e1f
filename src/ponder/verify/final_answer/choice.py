"""The verifier of multiple-choice answers: the right option must be named, and no other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.extract import (
    EXPLICIT_FORMS,
    TEXT_FORMS,
    AnswerForm,
    ExtractedAnswer,
    check_forms,
    extract,
    strip_thinking,
)
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.numeric.numbers import strip_delimiters

_LETTER = re.compile(
    r"(?:option\s{1,4}|choice\s{1,4})?(?:\(\s{0,2}([A-Z])\s{0,2}\)|([A-Z]))\s{0,2}[.):]?(?:\s+(.*))?",
    re.IGNORECASE | re.ASCII,  # or the Kelvin sign would be a K
)


@dataclass(frozen=True)
class MultipleChoice(TextVerifier):
    """1 where the one letter given is the gold one: `B`, `(B)`, `B.`, `Option B`, or `B` with its option's own text.

    The problem's answer is the letter, or `{"choice": "B", "options": {"A": "a whale", "B": "a fish"}}`, with which
    the option's text alone counts too and a letter followed by another option's text does not.
    """

    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS

    def __post_init__(self) -> None:
        check_forms(self.forms, TEXT_FORMS)

    def extract_answer(self, text: str) -> str | None:
        """The letter a completion gives, as votes count it."""
        extracted = self._extract(text)
        return None if extracted.answer is None else _letter(extracted.answer, {})

    def verify(self, text: str, gold: Any) -> Score:
        right, options = _gold(gold)
        extracted = self._extract(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        letter = _letter(extracted.answer, options)
        if letter is None:
            return Score(0.0, "malformed: not one option's letter")
        if options and letter not in options:
            return Score(0.0, f"malformed: there is no option {letter}")
        return Score(1.0, "right") if letter == right else Score(0.0, "wrong")

    def _extract(self, text: str) -> ExtractedAnswer:
        extracted = extract(text, [form for form in self.forms if form != "bare"])
        if "bare" not in self.forms or extracted.reason != "no answer":
            return extracted
        reply = strip_delimiters((strip_thinking(text) or "")[:400])
        return ExtractedAnswer(reply) if _letter(reply, {}) else ExtractedAnswer(None, "no answer")


def _letter(answer: str, options: Mapping[str, str]) -> str | None:
    match = _LETTER.fullmatch(answer.strip())
    if match:
        letter = (match[1] or match[2]).upper()
        if not match[3] or _plain(match[3]) == _plain(options.get(letter, "")):
            return letter
    by_text = [letter for letter, text in options.items() if _plain(text) == _plain(answer)]
    return by_text[0] if len(by_text) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().strip(" .").split())


def _gold(gold: Any) -> tuple[str, Mapping[str, str]]:
    options = gold.get("options", {}) if isinstance(gold, Mapping) else {}
    right = gold.get("choice") if isinstance(gold, Mapping) else gold
    if not isinstance(right, str) or not re.fullmatch(r"\(?[A-Za-z]\)?", right.strip()):
        bad_data(f"the right choice {repr_for_reason(right)} is not a letter")
    right = right.strip(" ()").upper()
    if not isinstance(options, Mapping) or not all(isinstance(text, str) for text in options.values()):
        bad_data("the options are not a mapping of letters to texts")
    by_letter = {str(letter).strip(" ()").upper(): text for letter, text in options.items()}
    if by_letter and right not in by_letter:
        bad_data(f"the right choice {right} is not among the options {', '.join(by_letter)}")
    return right, by_letter
