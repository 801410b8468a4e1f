"""What an expression comes to: exactly where fractions can say it, else to 60 digits; and whether two are the same.

Variables take fixed odd values, five points of them, some negative: expressions that agree wherever the gold is
defined are the same expression. Fractions stay exact, so polynomials are compared without rounding. Every operation
is bounded in the size of its operands, so no expression takes long: a power tower is refused, not computed.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.verify.maths.tree import Node
from ponder.verify.maths.typeset import NoValue, Unreadable

POINTS = 5
DIGITS, CAREFUL = 60, 400  # decimal digits; the second where a difference may be nothing but lost digits
WIDEST = 1 << 15  # bits in an exact fraction, before it is rounded
STEEPEST = 1 << 20  # bits in the exponent of a rounded number
Value = Any  # Fraction, or mpmath's mpf or mpc


class Undefined(Exception):
    """No value at this point: a division by zero, the logarithm of zero."""


def rough(node: Node) -> tuple[complex, ...]:
    """A few digits of the value at each point, to tell most expressions apart at once; empty where there are none."""
    names = node.symbols()
    found: list[complex] = []
    try:
        for point in range(2 if names else 1):
            value = _Evaluator({name: _chosen(name, point) for name in names}, DIGITS).value(node)
            found.append(complex(value))
    except (Undefined, ArithmeticError, ValueError, Unreadable):
        return ()
    return tuple(found)


def same(answer: Node, gold: Node, tolerance: float = 0.0) -> bool:
    """Whether the answer has the gold's value wherever the gold has one; `NoValue` where the gold has none."""
    names = answer.symbols() | gold.symbols()
    met = 0
    for point in range(POINTS if names else 1):
        given = {name: _chosen(name, point) for name in names}
        verdict = _agree(answer, gold, given, tolerance)
        if verdict is False:
            return False
        met += verdict is True
    if met < (3 if names else 1):
        raise NoValue
    return True


def proportional(answer: Node, gold: Node) -> Fraction | float | None:
    """The constant that the answer is times the gold (two forms of one equation); None where there is none."""
    names = answer.symbols() | gold.symbols()
    if not names:
        return None
    ratios: list[Value] = []
    for point in range(POINTS):
        given = {name: _chosen(name, point) for name in names}
        try:
            evaluator = _Evaluator(given, DIGITS)
            ratios.append(evaluator.divided(evaluator.value(answer), evaluator.value(gold)))
        except (Undefined, ArithmeticError, ValueError):
            continue
    if len(ratios) < 3 or any(not _close(ratio, ratios[0], DIGITS) for ratio in ratios) or _size(ratios[0]) == 0:
        return None
    first = ratios[0]
    if isinstance(first, Fraction):
        return first
    return float(first.real) if abs(first.imag) <= abs(first.real) * 1e-40 else None


def _agree(answer: Node, gold: Node, given: Mapping[str, Fraction], tolerance: float) -> bool | None:
    """At one point; None where the gold has no value, or no real one and the answer another."""
    try:
        truth = _Evaluator(given, DIGITS).value(gold)
    except (Undefined, ArithmeticError, ValueError):
        return None
    except Unreadable as unreadable:
        raise NoValue from unreadable
    try:
        evaluator = _Evaluator(given, DIGITS)
        found = evaluator.value(answer)
    except (Undefined, ArithmeticError, ValueError):
        return False
    if tolerance:
        return bool(_size(_minus(found, truth)) <= tolerance * _size(truth))
    if isinstance(found, Fraction) and isinstance(truth, Fraction):
        return found == truth
    scale = max(1, _size(found), _size(truth))
    if _size(_minus(found, truth)) <= scale * evaluator.mp.mpf(10) ** (20 - DIGITS):
        # Nothing but lost digits, or a truly small difference: more digits tell.
        careful = [_Evaluator(given, CAREFUL).value(node) for node in (answer, gold)]
        return bool(_size(_minus(*careful)) <= scale * evaluator.mp.mpf(10) ** (60 - CAREFUL))
    if given and not isinstance(truth, Fraction) and truth.imag != 0:
        return None  # a variable where the gold is not real: branches may differ
    return False


def _close(a: Value, b: Value, digits: int) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return bool(_size(_minus(a, b)) <= max(_size(a), _size(b)) * _mp(digits).mpf(10) ** (15 - digits))


def _minus(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a - b
    mp = _mp(CAREFUL)
    return _rounded(mp, a) - _rounded(mp, b)


def _size(value: Value) -> Value:
    return _rounded(_mp(CAREFUL), abs(value))


def _rounded(mp: Any, value: Value) -> Value:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mp.mpmathify(value)


_contexts = threading.local()


def _mp(digits: int) -> Any:
    """A context of this thread's own: mpmath changes the precision of a context while it works."""
    context = getattr(_contexts, f"digits{digits}", None)
    if context is None:
        from mpmath import MPContext  # type: ignore[import-untyped, import-not-found, unused-ignore]

        context = MPContext()
        context.dps = digits
        setattr(_contexts, f"digits{digits}", context)
    return context


@lru_cache(maxsize=4096)
def _chosen(name: str, point: int) -> Fraction:
    """A value between 0.3 and 2.3 in size with 40 odd bits; negative at every second point."""
    seed = int.from_bytes(hashlib.sha256(f"{name}/{point}".encode()).digest()[:5])
    size = Fraction(3, 10) + Fraction(2 * seed + 1, 1 << 40)
    return -size if point % 2 else size


class _Evaluator:
    def __init__(self, given: Mapping[str, Fraction], digits: int) -> None:
        self.given, self.mp = given, _mp(digits)

    def value(self, node: Node) -> Value:
        if node.number is not None:
            return node.number
        if node.op == "symbol":
            return self.symbol(node.name)
        parts = [self.value(part) for part in node.parts]
        rule = getattr(self, f"do_{node.op}", None)
        return self.checked(rule(*parts) if rule else self.function(node.op, parts[0]))

    def symbol(self, name: str) -> Value:
        if name in self.given:
            return self.given[name]
        return {"pi": +self.mp.pi, "e": +self.mp.e, "i": self.mp.mpc(0, 1)}[name]

    def rounded(self, value: Value) -> Value:
        return _rounded(self.mp, value)

    def checked(self, value: Value) -> Value:
        """Within bounds: wide fractions are rounded, steep numbers refused."""
        if isinstance(value, Fraction):
            wide = max(value.numerator.bit_length(), value.denominator.bit_length()) > WIDEST
            return self.rounded(value) if wide else value
        if not self.mp.isfinite(value):
            raise Undefined
        self.bits(value)
        return value

    def bits(self, value: Value) -> int:
        """The size of a number as a power of two, for bounds."""
        if isinstance(value, Fraction):
            return value.numerator.bit_length() - value.denominator.bit_length()
        if value == 0:
            return 0
        size = int(self.mp.mag(value))
        if abs(size) > STEEPEST:
            raise Unreadable("too large")
        return size

    def both(self, a: Value, b: Value, do: Callable[[Value, Value], Value]) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return do(a, b)
        return do(self.rounded(a), self.rounded(b))

    def do_add(self, *terms: Value) -> Value:
        total = terms[0]
        for term in terms[1:]:
            total = self.checked(self.both(total, term, lambda a, b: a + b))
        return total

    def do_mul(self, a: Value, b: Value) -> Value:
        return self.both(a, b, lambda x, y: x * y)

    def do_div(self, a: Value, b: Value) -> Value:
        return self.divided(a, b)

    def divided(self, a: Value, b: Value) -> Value:
        if b == 0:
            raise Undefined
        return self.both(a, b, lambda x, y: x / y)

    def do_neg(self, a: Value) -> Value:
        return -a

    def do_degrees(self, a: Value) -> Value:
        return self.rounded(a) * self.mp.pi / 180

    def do_abs(self, a: Value) -> Value:
        return abs(a)

    def do_floor(self, a: Value) -> Value:
        return Fraction(math.floor(self.exact(a)))

    def do_ceil(self, a: Value) -> Value:
        return Fraction(math.ceil(self.exact(a)))

    def exact(self, a: Value) -> Value:
        """A real of moderate size, for rounding to whole numbers."""
        if not isinstance(a, Fraction) and (a.imag != 0 or self.bits(a) > 150):
            raise Undefined
        return a if isinstance(a, Fraction) else a.real

    def do_pow(self, base: Value, exponent: Value) -> Value:
        if base == 0:
            if not isinstance(exponent, Fraction) or exponent <= 0:
                raise Undefined
            return Fraction(0)
        whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        if isinstance(base, Fraction) and whole:
            size = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * size <= WIDEST:
                return base ** int(exponent)
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator <= 64:
            root = self.do_root(base, Fraction(exponent.denominator)) if base > 0 else None
            if isinstance(root, Fraction) and root != base:
                return self.checked(self.do_pow(root, Fraction(exponent.numerator)))
        steep = self.bits(exponent) > 40 or abs(self.rounded(exponent)) * (abs(self.bits(base)) + 2) > STEEPEST
        if steep and abs(self.rounded(base)) != 1:
            raise Unreadable("too large")
        return self.mp.power(self.rounded(base), int(exponent) if whole else self.rounded(exponent))

    def do_root(self, body: Value, degree: Value) -> Value:
        if not isinstance(degree, Fraction) or degree.denominator != 1 or not 1 <= degree <= 1000:
            return self.do_pow(body, self.divided(Fraction(1), degree))
        n = int(degree)
        if isinstance(body, Fraction) and body >= 0:
            tops = [_whole_root(side, n) for side in (body.numerator, body.denominator)]
            if tops[0] is not None and tops[1] is not None:
                return Fraction(tops[0], tops[1])
        body = self.rounded(body)
        if n % 2 and body.imag == 0 and body.real < 0:  # the real root, as people mean \sqrt[3]{-8}
            return -self.mp.root(-body.real, n)
        return self.mp.root(body, n)

    def do_factorial(self, a: Value) -> Value:
        if not isinstance(a, Fraction):
            raise Unreadable("malformed")
        if a.denominator == 1 and 0 <= a <= 3000:
            return Fraction(math.factorial(int(a)))
        if abs(a) > 50_000:
            raise Unreadable("too large")
        return self.mp.factorial(self.rounded(a))

    def do_binom(self, n: Value, k: Value) -> Value:
        whole = isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1
        if whole and 0 <= k <= n <= 10_000:
            return Fraction(math.comb(int(n), int(k)))
        if self.bits(n) > 16 or self.bits(k) > 16:
            raise Unreadable("too large")
        return self.mp.binomial(self.rounded(n), self.rounded(k))

    def function(self, name: str, a: Value) -> Value:
        if name == "exp":
            return self.do_pow(+self.mp.e, a)
        if self.bits(a) > 500 and name not in ("ln", "log"):
            raise Unreadable("too large")
        if a == 0 and name in ("ln", "log", "cot", "csc"):
            raise Undefined
        if name in ("sinh", "cosh", "tanh") and self.bits(a) > 15:
            raise Unreadable("too large")
        names = {"ln": "ln", "log": "ln", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
        return getattr(self.mp, names.get(name, name))(self.rounded(a))


def _whole_root(value: int, n: int) -> int | None:
    """The n-th root of a whole number where that is whole."""
    if value < 2 or n == 1:
        return value
    if value.bit_length() > 2000:
        return None
    low, high = 1, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**n < value:
            low = middle + 1
        else:
            high = middle
    return low if low**n == value else None
