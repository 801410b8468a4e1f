"""Verify that an expression reaches the target with the given numbers, exactly: Countdown and the Game of 24."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.extract import TEXT_FORMS, AnswerForm, ExtractedAnswer, check_forms, extract, strip_thinking
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.numeric.arithmetic import MAX_EXPRESSION_CHARS, evaluate_arithmetic
from ponder.verify.numeric.numbers import parse_plain_number, strip_delimiters


@dataclass(frozen=True)
class CountdownVerifier(TextVerifier):
    """1 where the expression equals the target and uses each given number once (`use_all=False`: at most once).

    The problem's answer is `{"numbers": [...], "target": t}`. Writing `3 * 4 + 2 = 14` is as good as `3 * 4 + 2`.
    """

    use_all: bool = True
    forms: tuple[AnswerForm, ...] = ("tag", "boxed")

    def __post_init__(self) -> None:
        check_forms(self.forms, TEXT_FORMS)

    def verify(self, text: str, gold: Any) -> Score:
        numbers, target = self.numbers_and_target(gold)
        extracted = self._expression(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        expression, equals, stated = _CODE.sub(r"\1", extracted.answer).partition("=")
        result = evaluate_arithmetic(expression)
        if result.value is None:
            return Score(0.0, result.reason)
        if result.value != target or (equals and parse_plain_number(stated).value != target):
            return Score(0.0, "wrong")
        available, used = Counter(numbers), Counter(result.used_integers)
        if used - available:
            return Score(0.0, "uses a number that was not given, or one too often")
        if self.use_all and available - used:
            return Score(0.0, "leaves a number out")
        return Score(1.0, "right")

    def extract_answer(self, text: str) -> str | None:
        """The expression a completion gives, without spaces, as votes count it; None where it gives none."""
        answer = self._expression(text).answer
        return None if answer is None else "".join(_CODE.sub(r"\1", answer).partition("=")[0].split())

    def numbers_and_target(self, gold: Any) -> tuple[list[int], int]:
        """The given numbers and the target."""
        if not isinstance(gold, Mapping) or not {"numbers", "target"} <= gold.keys():
            bad_data(f"the answer {repr_for_reason(gold)} does not hold 'numbers' and 'target'")
        return _whole(gold["numbers"]), _whole([gold["target"]])[0]

    def _expression(self, text: str) -> ExtractedAnswer:
        extracted = extract(text, [form for form in self.forms if form != "bare"])
        if "bare" not in self.forms or extracted.reason != "no answer":
            return extracted
        # `extract` reads a bare equation for its right-hand side; here the left-hand side is what counts.
        reply = strip_delimiters(strip_thinking(text) or "")
        return (
            ExtractedAnswer(reply)
            if reply and len(reply) <= MAX_EXPRESSION_CHARS and "\n" not in reply
            else ExtractedAnswer(None, "no answer")
        )


@dataclass(frozen=True)
class GameOf24Verifier(CountdownVerifier):
    """Countdown to 24. The problem's answer is the numbers alone: `[1, 1, 4, 6]` or `"1 1 4 6"`."""

    def numbers_and_target(self, gold: Any) -> tuple[list[int], int]:
        if isinstance(gold, Mapping):
            return super().numbers_and_target(gold)
        if isinstance(gold, str):
            gold = [int(n) if n.isascii() and n.isdigit() else n for n in gold.split()]
        return _whole(gold), 24


_CODE = re.compile(r"`([^`]*)`")


def _whole(numbers: object) -> list[int]:
    if not isinstance(numbers, Sequence) or not numbers or not all(type(n) is int for n in numbers):
        bad_data(f"{repr_for_reason(numbers)} are not whole numbers")
    return list(numbers)
