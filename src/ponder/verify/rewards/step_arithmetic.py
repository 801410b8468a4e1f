"""Check the arithmetic in the working: every `a op b = c` is computed again, exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple

from ponder.types import Score
from ponder.verify.base import TextVerifier
from ponder.verify.numeric.arithmetic import evaluate_arithmetic

MAX_WORKING_CHARS = 200_000  # characters of working
MAX_SIDE_CHARS = 120  # characters of one side of an equation
MAX_EQUATIONS = 5_000  # equations that are checked


class CheckedEquation(NamedTuple):
    text: str
    right: bool


@dataclass(frozen=True)
class StepArithmetic(TextVerifier):
    """The share of equations between numbers that hold, each counted once; 0 where there is none.

    A link of a chain is an equation: `3 + 4 = 7 * 2 = 14` has a wrong one. A decimal result may be rounded to the
    digits it shows (`10 / 3 = 3.33`), an integer may not. This shapes the working and says nothing of the answer: a
    model can write easy sums, so give it a small weight beside an accuracy.
    """

    @property
    def name(self) -> str:
        return "steps"

    def verify(self, text: str, gold: Any) -> Score:
        if len(text) > MAX_WORKING_CHARS:
            return Score(0.0, "too long")
        equations = {"".join(e.text.split()): e for e in islice(check_equations(text), MAX_EQUATIONS)}
        if not equations:
            return Score(0.0, "no equation to check")
        wrong = [e.text for e in equations.values() if not e.right]
        first = f"; the first wrong one: {wrong[0][:60]}" if wrong else ""
        return Score(
            1 - len(wrong) / len(equations), f"{len(equations) - len(wrong)} of {len(equations)} equations hold{first}"
        )


_EQUALS = re.compile(r"=(?!=)")
_RUN = re.compile(r"[-+*/()0-9., \t$€£×÷·−]*")
_TYPESET = re.compile(r"\\(?:times|cdot|div|left|right|,|!|;|:|\$)(?![a-zA-Z])|\{,\}|\\[()\[\]]")
_PLAIN = {"\\times": "*", "\\cdot": "*", "\\div": "/", "{,}": ",", "\\$": "$"}
_GROUPED = re.compile(r"(?<![0-9.])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9])")
_NUMBER = re.compile(r"-?[0-9]+(?:\.([0-9]+))?")
_ENDS = re.compile(r"[,.](?:\s|\Z)")  # of a clause or a sentence
_GLUED = re.compile(r"[\w^%_!\\{}]")  # 2x, 3^2, 50%: a part of something this cannot read
_OPERATES = re.compile(r"\b(?:plus|minus|times|by|over|of|half|double|twice|mod|per|x)\s*\Z", re.IGNORECASE)


def check_equations(text: str) -> Iterator[CheckedEquation]:
    """Check every `=` with an operation on its left and arithmetic on its right. Others are skipped."""
    text = _GROUPED.sub(lambda m: m[1].replace(",", ""), _TYPESET.sub(lambda m: _PLAIN.get(m[0], ""), text))
    for equals in _EQUALS.finditer(text):
        left = _left(text[max(0, equals.start() - MAX_SIDE_CHARS) : equals.start()])
        right = _right(text[equals.end() : equals.end() + MAX_SIDE_CHARS])
        if not left or not right or not re.search(r"[0-9)]\s*[-+*/×÷·−]", left):
            continue
        value, claimed = (
            evaluate_arithmetic(left, allow_decimals=True).value,
            evaluate_arithmetic(right, allow_decimals=True).value,
        )
        if value is not None and claimed is not None:
            yield CheckedEquation(f"{left} = {right}", value == claimed or _rounded(value, right) == claimed)


def _left(before: str) -> str:
    """The arithmetic that ends here; empty where it is only the end of something longer."""
    run = _match(before[::-1])[::-1]
    side = _ENDS.split(run)[-1]
    if len(side) == len(run):  # nothing but the text before it bounds it
        earlier = before[: len(before) - len(run)]
        starts_with_sign = re.match(r"\s*[-+*/×÷·−]", run) and not re.search(r"(?:\A|[\n:=<>(\[])\s*\Z", earlier)
        glued = earlier and not run[:1].isspace() and _GLUED.match(earlier[-1])
        if starts_with_sign or glued or len(run) == MAX_SIDE_CHARS or _OPERATES.search(earlier):
            return ""
    return _strip_outer(side)


def _right(after: str) -> str:
    """The arithmetic that begins here; empty where it is only the beginning of something longer."""
    run = _match(after)
    side = _ENDS.split(run)[0]
    later = after[len(run) :]
    if len(side) == len(run) and (
        len(run) == MAX_SIDE_CHARS or (later and not run[-1:].isspace() and _GLUED.match(later))
    ):
        return ""
    return _strip_outer(side)


def _match(text: str) -> str:
    match = _RUN.match(text)
    return match[0] if match else ""


def _strip_outer(side: str) -> str:
    """Remove currency signs, and a bracket that encloses the whole equation."""
    side = re.sub(r"[$€£]", "", side).strip()
    while side.startswith("(") and side.count("(") > side.count(")"):
        side = side[1:].strip()
    while side.endswith(")") and side.count(")") > side.count("("):
        side = side[:-1].strip()
    return side


def _rounded(value: Fraction, shown: str) -> Fraction | None:
    """The value to as many decimals as are shown, half away from zero; None where no single decimal is shown."""
    number = _NUMBER.fullmatch(shown)
    if number is None or not number[1]:
        return None
    scale = 10 ** len(number[1])
    magnitude = Fraction(int(abs(value) * scale + Fraction(1, 2)), scale)
    return magnitude if value >= 0 else -magnitude
