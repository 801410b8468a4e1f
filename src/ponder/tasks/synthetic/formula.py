"""An exact formula over named quantities, in the grammar of `verify.maths.tree`. No eval, and nothing that takes long.

    (price - discount) * n / 2      a^2 + b^2      floor(days / 7)      n!      \\binom{n}{k}      sqrt(a)

What has no exact value (a root that is not whole, pi) is refused, not rounded. Conditions compare two formulas:
`a < b`, `a <= b`, `a = b`, `a != b`, `a > b`, `a >= b`, and `a divides b`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from ponder.errors import TaskError
from ponder.verify.maths.expression_tree import ExpressionNode, parse_expression
from ponder.verify.maths.normalize_latex import UnreadableAnswer

MAX_BITS = 4_096  # bits in a number
MAX_ARGUMENT = 1_000  # of an exponent; of what a factorial or binomial is taken of
MAX_FORMULA_CHARS = 500  # characters

_NAME = re.compile(r"(?<![\\A-Za-z_])[A-Za-z][A-Za-z0-9_]*")
_FLOOR_OR_CEIL = re.compile(r"(?<![\\A-Za-z])(floor|ceil)\s*\(")


class NoExactValue(Exception):
    """There is no exact value here; the message says why."""


@dataclass(frozen=True)
class Formula:
    """`names` are the quantities that may stand in it."""

    text: str
    node: ExpressionNode
    names: Mapping[str, str]  # quantities by their symbols in the tree

    @classmethod
    def parse(cls, text: str, names: Iterable[str]) -> Formula:
        symbols = {name: f"x_{{{i}}}" for i, name in enumerate(names)}
        unknown: list[str] = []

        def named(match: re.Match[str]) -> str:
            word = match[0]
            if word in symbols:
                return f"({symbols[word]})"
            if word not in ("sqrt", "abs"):
                unknown.append(word)
            return word

        if len(text) > MAX_FORMULA_CHARS:
            raise TaskError(f"a formula has {len(text)} characters; {MAX_FORMULA_CHARS} is the most")
        plain = _NAME.sub(named, _floor_ceil_to_latex(text))
        if unknown:
            known = ", ".join(symbols) or "none"
            raise TaskError(f"the formula {text!r} has the unknown quantity {unknown[0]!r}; known: {known}")
        try:
            node = parse_expression(plain)
        except UnreadableAnswer:
            raise TaskError(
                f"the formula {text!r} cannot be read: it may have numbers, names, + - * / ^ ! ( ), floor, ceil, abs,"
                " sqrt and \\binom"
            ) from None
        return cls(text, node, {f"x_{i}": name for i, name in enumerate(symbols)})

    def value(self, values: Mapping[str, Fraction]) -> Fraction:
        """Exactly, or `NoValue`."""
        return _value(self.node, {symbol: values[name] for symbol, name in self.names.items() if name in values})

    def values(self, variables: Mapping[str, Fraction]) -> list[Fraction]:
        """Of every part, the whole last."""
        known = {symbol: variables[name] for symbol, name in self.names.items() if name in variables}

        def walk(node: ExpressionNode) -> list[Fraction]:
            return [v for part in node.parts for v in walk(part)] + [_value(node, known)]

        return walk(self.node)


@dataclass(frozen=True)
class Condition:
    text: str
    left: Formula
    operator: str
    right: Formula

    @classmethod
    def parse(cls, text: str, names: Iterable[str]) -> Condition:
        listed = tuple(names)
        parts = _COMPARISON.split(text)
        if len(parts) != 3:
            raise TaskError(
                f"the condition {text!r} must compare two formulas once, by one of {', '.join(COMPARISONS)}"
            )
        return cls(text, Formula.parse(parts[0], listed), parts[1], Formula.parse(parts[2], listed))

    def holds(self, values: Mapping[str, Fraction]) -> bool:
        """Where a side has no value, it does not."""
        try:
            return COMPARISONS[self.operator](self.left.value(values), self.right.value(values))
        except NoExactValue:
            return False


COMPARISONS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "=": lambda a, b: a == b,
    "divides": lambda a, b: a != 0 and a.denominator == b.denominator == 1 and b % a == 0,
}  # fmt: skip
_COMPARISON = re.compile(r"(<=|>=|!=|<|>|=|\bdivides\b)")


def _floor_ceil_to_latex(text: str) -> str:
    """floor(...) and ceil(...) as the grammar writes them."""
    while match := _FLOOR_OR_CEIL.search(text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise TaskError(f"the formula {text!r} has a bracket that is never closed")
        kind = match[1]
        text = f"{text[: match.start()]}\\l{kind} {text[match.end() : end - 1]} \\r{kind} {text[end:]}"
    return text


def _value(node: ExpressionNode, values: Mapping[str, Fraction]) -> Fraction:
    if node.number is not None:
        return node.number
    if node.op == "symbol":
        if node.name not in values:
            raise NoExactValue(f"{node.name} is no quantity with an exact value")
        return values[node.name]
    rule = _RULES.get(node.op)
    if rule is None:
        raise NoExactValue(f"{node.op} has no exact value")
    result = rule(*(_value(part, values) for part in node.parts))
    if max(result.numerator.bit_length(), result.denominator.bit_length()) > MAX_BITS:
        raise NoExactValue("too large")
    return result


def _add(*terms: Fraction) -> Fraction:
    return sum(terms, Fraction(0))


def _divide(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise NoExactValue("divides by zero")
    return a / b


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_ARGUMENT or (base == 0 and exponent <= 0):
        raise NoExactValue("a power without an exact value")
    wide = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent))
    if wide > MAX_BITS:
        raise NoExactValue("too large")
    return base ** int(exponent)


def _root(body: Fraction, degree: Fraction) -> Fraction:
    if degree != 2 or body < 0:
        raise NoExactValue("only square roots of what is not negative")
    top, bottom = math.isqrt(body.numerator), math.isqrt(body.denominator)
    if top * top != body.numerator or bottom * bottom != body.denominator:
        raise NoExactValue("a root that is not exact")
    return Fraction(top, bottom)


def _factorial(a: Fraction) -> Fraction:
    if a.denominator != 1 or not 0 <= a <= MAX_ARGUMENT:
        raise NoExactValue("a factorial of what is not a small whole number")
    return Fraction(math.factorial(int(a)))


def _binomial(n: Fraction, k: Fraction) -> Fraction:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= MAX_ARGUMENT:
        raise NoExactValue("a binomial of what are not small whole numbers")
    return Fraction(math.comb(int(n), int(k)))


_RULES: dict[str, Callable[..., Fraction]] = {
    "add": _add, "mul": lambda a, b: a * b, "div": _divide, "neg": lambda a: -a, "pow": _power, "abs": abs,
    "floor": lambda a: Fraction(math.floor(a)), "ceil": lambda a: Fraction(math.ceil(a)), "root": _root,
    "factorial": _factorial, "binom": _binomial,
}  # fmt: skip
