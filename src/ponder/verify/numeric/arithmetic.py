"""Evaluate an arithmetic expression exactly, and list the integers it uses. A parser of three rules, no eval:

- sum    = term (("+" | "-") term)*
- term   = factor (("*" | "/") factor)*
- factor = integer | "(" sum ")" | "-" factor        (an integer, or a decimal where those are allowed)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

MAX_EXPRESSION_CHARS = 200
MAX_BRACKET_DEPTH = 50  # brackets within brackets
MAX_INTEGER_DIGITS = 15  # digits of one integer


@dataclass(frozen=True, slots=True)
class ArithmeticResult:
    """The value of an expression and the integers in it, in order; or None and the reason."""

    value: Fraction | None
    used_integers: tuple[int, ...] = ()
    reason: str = ""


def evaluate_arithmetic(text: str, allow_decimals: bool = False) -> ArithmeticResult:
    """Evaluate any text in bounded time, without raising. `allow_decimals`: 1.5 is a number too, but is not listed in
    `used_integers`."""
    if len(text) > MAX_EXPRESSION_CHARS:
        return ArithmeticResult(None, reason="too long")
    for typeset, plain in _TYPESET.items():
        text = text.replace(typeset, plain)
    if "\\frac" in text:
        text = _with_slashes(text)
    tokens = (_DECIMAL if allow_decimals else _TOKEN).findall(text)
    if "".join(tokens) != "".join(text.split()) or any(len(t) > MAX_INTEGER_DIGITS for t in tokens):
        return ArithmeticResult(None, reason="malformed")
    reader = _Parser([*tokens, ""])
    try:
        value = reader.sum(0)
    except _ParseError as refused:
        return ArithmeticResult(None, reason=str(refused))
    if reader.peek:  # something is left over, as in "3 4"
        return ArithmeticResult(None, reason="malformed")
    return ArithmeticResult(value, tuple(reader.used))


_TYPESET = {
    "\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "\\dfrac": "\\frac", "\\tfrac": "\\frac",
    "×": "*", "·": "*", "÷": "/", "−": "-",
}  # fmt: skip
_FRACTION = re.compile(r"\\frac\s?\{")
_BETWEEN = re.compile(r"\}\s?\{")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+|[-+*/()]")


def _with_slashes(text: str) -> str:
    """Write each \\frac{a}{b} as ((a)/(b)); empty where braces do not match."""
    text, opened = _FRACTION.subn("((", text)
    text, separators = _BETWEEN.subn(")/(", text)
    return text.replace("}", "))") if opened == separators == text.count("}") else ""


class _ParseError(Exception):
    pass


@dataclass(slots=True)
class _Parser:
    tokens: list[str]  # ends with an empty one
    at: int = 0
    used: list[int] = field(default_factory=list)

    @property
    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self, depth: int) -> Fraction:
        total = self.term(depth)
        while self.peek in ("+", "-"):
            total = total + self.term(depth) if self.take() == "+" else total - self.term(depth)
        return total

    def term(self, depth: int) -> Fraction:
        product = self.factor(depth)
        while self.peek in ("*", "/"):
            if self.take() == "*":
                product *= self.factor(depth)
            elif (divisor := self.factor(depth)) == 0:
                raise _ParseError("divides by zero")
            else:
                product /= divisor
        return product

    def factor(self, depth: int) -> Fraction:
        if depth > MAX_BRACKET_DEPTH:
            raise _ParseError("too deep")
        token = self.peek
        if token == "-":
            self.take()
            return -self.factor(depth + 1)
        if token == "(":
            self.take()
            inside = self.sum(depth + 1)
            if self.peek != ")":
                raise _ParseError("malformed")
            self.take()
            return inside
        if not token or token in "+*/)":
            raise _ParseError("malformed")
        if "." in self.take():
            return Fraction(token)
        self.used.append(int(token))
        return Fraction(token)
