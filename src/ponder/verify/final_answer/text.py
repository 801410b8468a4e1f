"""Verifiers of a final text and of a final list, compared exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.extract import TEXT_FORMS, AnswerForm, ExtractedAnswer, check_forms, strip_thinking
from ponder.verify.answers.hedging import context_before, is_denied
from ponder.verify.answers.structured import DELIMITED_FORMS, extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

MAX_TEXT_ANSWER_CHARS = 4_000

# "So the answer is X." at the end of the reply: the form of many few-shot examples.
_LINE = re.compile(r"\banswer(?: is\b:?|:)(?:\*\*)?[ \t]{0,4}(\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class FinalText(TextVerifier):
    """1 where the one text given is the problem's answer. A run of spaces counts as one; `ignore_spaces` drops them."""

    forms: tuple[AnswerForm, ...] = DELIMITED_FORMS
    ignore_case: bool = False
    ignore_spaces: bool = False

    def __post_init__(self) -> None:
        check_forms(self.forms, TEXT_FORMS)

    def extract_answer(self, text: str) -> str | None:
        """The text a completion gives, as votes count it; None where it gives none."""
        extracted = extract_text(text, self.forms)
        return None if extracted.answer is None else self._plain(extracted.answer)

    def verify(self, text: str, gold: Any) -> Score:
        if not isinstance(gold, str) or not gold.strip():
            bad_data(f"the gold answer {repr_for_reason(gold)} is not a text")
        extracted = extract_text(text, self.forms)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        answer, right = self._plain(extracted.answer), self._plain(gold)
        # A full stop ends a sentence; it is a part of the answer only where the gold has one.
        right_but_stop = answer.endswith(".") and answer[:-1] == right
        return Score(1.0, "right") if answer == right or right_but_stop else Score(0.0, "wrong")

    def _plain(self, text: str) -> str:
        folded = ("" if self.ignore_spaces else " ").join(strip_quotes(text).split())
        return folded.casefold() if self.ignore_case else folded


@dataclass(frozen=True)
class FinalList(TextVerifier):
    """1 where the items given are the problem's, in order: `a, b`, `a b`, `[a, b]`, `["a", "b"]` or one per line."""

    forms: tuple[AnswerForm, ...] = DELIMITED_FORMS

    def __post_init__(self) -> None:
        check_forms(self.forms, TEXT_FORMS)

    def extract_answer(self, text: str) -> str | None:
        extracted = extract_text(text, self.forms)
        return None if extracted.answer is None else ", ".join(parse_list(extracted.answer))

    def verify(self, text: str, gold: Any) -> Score:
        if isinstance(gold, str) or not isinstance(gold, Sequence) or not gold:
            bad_data(f"the gold answer {repr_for_reason(gold)} is not a list")
        extracted = extract_text(text, self.forms)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        items, right = parse_list(extracted.answer), [str(item) for item in gold]
        if items == right:
            return Score(1.0, "right")
        return Score(0.0, "other order" if sorted(items) == sorted(right) else "wrong")


def extract_text(text: str, forms: Sequence[AnswerForm]) -> ExtractedAnswer:
    """The one answer in a tag or box. Without either: an answer line at the end (`line`), or all (`bare`)."""
    extracted = extract_structured(text, forms, MAX_TEXT_ANSWER_CHARS)
    if extracted.answer is not None or extracted.reason != "no answer":
        return extracted
    reply = (strip_thinking(text) or "").strip()
    if "line" in forms and len(lines := list(_LINE.finditer(reply))) == 1 and lines[0].end() == len(reply):
        if is_denied(context_before(reply, lines[0].start(1))):
            return ExtractedAnswer(None, "hedged")
        extracted = ExtractedAnswer(_stripped(lines[0][1]))
    elif "bare" in forms and reply and "\n" not in reply:
        extracted = ExtractedAnswer(reply)
    if extracted.answer and len(extracted.answer) > MAX_TEXT_ANSWER_CHARS:
        return ExtractedAnswer(None, "too long")
    return extracted if extracted.answer else ExtractedAnswer(None, "no answer")


def _stripped(line: str) -> str:
    """The line without its full stop and without an unmatched emphasis mark."""
    line = line.strip().removesuffix(".").rstrip()
    return line.removesuffix("**").rstrip().removesuffix(".") if line.count("**") == 1 else line


_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”"}
_EMPHASIS = re.compile(r"\*\*([^*]+)\*\*")
_TYPESET = re.compile(r"\\(?:text|texttt|mathrm|textbf)\{([^{}]*)\}")


def strip_quotes(text: str) -> str:
    """Remove the emphasis, the quotation marks or the LaTeX command around the whole text."""
    text = text.strip()
    if emphasised := _EMPHASIS.fullmatch(text):
        text = emphasised[1].strip()
    if typeset := _TYPESET.fullmatch(text):
        text = typeset[1].strip()
    return text[1:-1] if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] else text


def parse_list(text: str) -> list[str]:
    """The items of a list as people write it."""
    text = strip_quotes(text) if _TYPESET.fullmatch(text.strip()) else text.strip()
    text = text.removesuffix(".")
    if len(text) > 1 and text[0] + text[-1] in ("[]", "()", "{}"):
        text = text[1:-1]
    if not re.search(r"[,;\n]", text.strip()):
        return [strip_quotes(part) for part in text.split()]
    parts = [part.strip() for part in re.split(r"[,;\n]", text) if part.strip()]
    if "\n" in text:
        parts = [_POINT.sub("", part) for part in parts]
    return [strip_quotes(part) for part in [*parts[:-1], parts[-1].removeprefix("and ")]] if parts else []


_POINT = re.compile(r"\A(?:[-*•]|[0-9]{1,3}[.)])[ \t]+(?=\S)")  # the bullet of a list item
