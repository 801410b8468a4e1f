"""Evaluate an expression at one point: as a fraction where possible, else to a given number of digits.

The evaluator also records what the needed precision depends on: `weight`, the decimal digits in the size of every
number met, and `lost`, how many of them cancelled.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ponder.verify.maths.expression_tree import ExpressionNode
from ponder.verify.maths.normalize_latex import UnreadableAnswer

DEFAULT_DIGITS = 60  # decimal digits
MAX_INTEGER_BITS = 1 << 20  # bits in an exact whole number, before it is rounded
MAX_FRACTION_BITS = 1 << 17  # bits in an exact fraction
MAX_TOTAL_BITS = 1 << 24  # bits of all results together
MAX_EXPONENT_BITS = 1 << 20  # bits in the exponent of a rounded number
DIGITS_PER_BIT = math.log10(2)
Value = Any  # Fraction, or mpmath's mpf or mpc


class Undefined(Exception):
    """No value at this point: a division by zero, the logarithm of zero."""


def close(a: Value, b: Value, digits: int) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return bool(size(subtract(a, b)) <= max(size(a), size(b)) * mpmath_context(digits).mpf(10) ** (15 - digits))


def subtract(a: Value, b: Value, digits: int = 400) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a - b
    mp = mpmath_context(digits)
    return _rounded(mp, a) - _rounded(mp, b)


def size(value: Value, digits: int = 400) -> Value:
    return _rounded(mpmath_context(digits), abs(value))


def _rounded(mp: Any, value: Value) -> Value:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mp.mpmathify(value)


_contexts = threading.local()


def mpmath_context(digits: int) -> Any:
    """A context of this thread's own: mpmath changes the precision of a context while it works."""
    digits = DEFAULT_DIGITS if digits <= DEFAULT_DIGITS else 200 if digits <= 200 else -(-digits // 400) * 400
    context = getattr(_contexts, f"digits{digits}", None)
    if context is None:
        from mpmath import MPContext  # type: ignore[import-untyped, import-not-found, unused-ignore]

        context = MPContext()
        context.dps = digits
        setattr(_contexts, f"digits{digits}", context)
    return context


class Evaluator:
    def __init__(self, coordinates: Mapping[str, Fraction], digits: int) -> None:
        self.coordinates, self.mp = coordinates, mpmath_context(digits)
        self.weight = self.lost = 0.0  # decimal digits
        self.work = 0  # bits

    def value(self, node: ExpressionNode) -> Value:
        if node.number is not None:
            bits = max(node.number.numerator.bit_length(), node.number.denominator.bit_length())
            self.weight += (
                max(0, bits - 8) * DIGITS_PER_BIT
            )  # all its digits: it may come as near to something as it has them
            return node.number
        if node.op == "symbol":
            return self.symbol(node.name)
        parts = [self.value(part) for part in node.parts]
        if node.op == "apply":
            return self.applied(node.name, parts[0])
        rule = getattr(self, f"do_{node.op}", None)
        return self.checked(rule(*parts) if rule else self.function(node.op, parts[0]))

    def weigh(self, value: Value) -> None:
        if value != 0:
            self.weight += max(0, abs(self.bits(value)) - 8) * DIGITS_PER_BIT

    def applied(self, name: str, a: Value) -> Value:
        """An unknown function: a pseudo-random number, the same for the same argument."""
        shown = str(a) if isinstance(a, Fraction) else self.mp.nstr(a, 25)
        return Fraction(2 * int.from_bytes(hashlib.sha256(f"{name}({shown})".encode()).digest()[:5]) + 1, 1 << 40)

    def symbol(self, name: str) -> Value:
        if name in self.coordinates:
            return self.coordinates[name]
        return {"pi": +self.mp.pi, "e": +self.mp.e, "i": self.mp.mpc(0, 1)}[name]

    def rounded(self, value: Value) -> Value:
        return _rounded(self.mp, value)

    def checked(self, value: Value) -> Value:
        """The value within bounds: wide fractions are rounded, too large numbers refused."""
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            self.work += bits
            if self.work > MAX_TOTAL_BITS:
                raise UnreadableAnswer("too large")
            whole = value.denominator == 1 or value.numerator in (1, -1)
            if bits > (MAX_INTEGER_BITS if whole else MAX_FRACTION_BITS):
                value = self.rounded(value)
        elif not self.mp.isfinite(value):
            raise Undefined
        self.weigh(value)
        return value

    def bits(self, value: Value) -> int:
        """The size of a number as a power of two, for bounds."""
        if isinstance(value, Fraction):
            return value.numerator.bit_length() - value.denominator.bit_length()
        if value == 0:
            return 0
        size = int(self.mp.mag(value))
        if abs(size) > MAX_EXPONENT_BITS:
            raise UnreadableAnswer("too large")
        return size

    def both(self, a: Value, b: Value, do: Callable[[Value, Value], Value]) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return do(a, b)
        return do(self.rounded(a), self.rounded(b))

    def do_add(self, *terms: Value) -> Value:
        total = terms[0]
        for term in terms[1:]:
            largest = max(self.bits(total), self.bits(term))
            total = self.checked(self.both(total, term, lambda a, b: a + b))
            if not isinstance(total, Fraction):
                self.lost += DEFAULT_DIGITS if total == 0 else max(0, largest - self.bits(total)) * DIGITS_PER_BIT
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
        """The value as a real of moderate size, which can be rounded to a whole number."""
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
            wide = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * wide <= (MAX_INTEGER_BITS if base.denominator == 1 else MAX_FRACTION_BITS):
                return base ** int(exponent)
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator <= 64:
            root = self.do_root(base, Fraction(exponent.denominator)) if base > 0 else None
            if isinstance(root, Fraction) and root != base:
                return self.checked(self.do_pow(root, Fraction(exponent.numerator)))
        steep = self.bits(exponent) > 40 or abs(self.rounded(exponent)) * (abs(self.bits(base)) + 2) > MAX_EXPONENT_BITS
        if steep and abs(self.rounded(base)) != 1:
            raise UnreadableAnswer("too large")
        self.lost += max(0, self.bits(exponent) + 4) * DIGITS_PER_BIT
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
            raise UnreadableAnswer("malformed")
        if a.denominator == 1 and 0 <= a <= 20_000:
            return Fraction(_factorial(int(a)))
        if abs(a) > 50_000:
            raise UnreadableAnswer("too large")
        return self.gamma("factorial", a)

    def do_binom(self, n: Value, k: Value) -> Value:
        whole = isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1
        if whole and 0 <= k <= n <= 40_000:
            a, b = int(n), int(k)  # by factorials: `comb` takes seconds for large ones
            return Fraction(_factorial(a) // (_factorial(b) * _factorial(a - b)) if b > 100 else math.comb(a, b))
        if isinstance(n, Fraction) and isinstance(k, Fraction) and k.denominator == 1 and 0 <= k <= 100:
            return math.prod((n - i for i in range(int(k))), start=Fraction(1)) / math.factorial(int(k))
        if self.bits(n) > 16 or self.bits(k) > 16:
            raise UnreadableAnswer("too large")
        return self.gamma("binomial", n, k)

    def gamma(self, name: str, *values: Value) -> Value:
        """A function of mpmath that needs the gamma function. It is slow, so precision is limited to 800 digits."""
        if self.mp.dps > 800:
            raise UnreadableAnswer("too large")
        return getattr(self.mp, name)(*map(self.rounded, values))

    def function(self, name: str, a: Value) -> Value:
        if name == "exp":
            return self.do_pow(+self.mp.e, a)
        if self.bits(a) > 500 and name not in ("ln", "log"):
            raise UnreadableAnswer("too large")
        if a == 0 and name in ("ln", "log", "cot", "csc"):
            raise Undefined
        if name in ("sinh", "cosh", "tanh") and self.bits(a) > 15:
            raise UnreadableAnswer("too large")
        names = {"ln": "ln", "log": "ln", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
        inside = max(0, self.bits(a)) * DIGITS_PER_BIT
        # What the argument's own size takes, and where a function comes near to its limit: tanh(99) is 1 - 10^-86.
        self.weight += 2 * inside if name != "tanh" else float(abs(self.rounded(a).real)) + inside
        result = getattr(self.mp, names.get(name, name))(self.rounded(a))
        self.lost += inside + (0 if result == 0 else max(0, -self.bits(result)) * DIGITS_PER_BIT)
        return result


@lru_cache(maxsize=64)
def _factorial(n: int) -> int:
    return math.factorial(n)


def _whole_root(value: int, n: int) -> int | None:
    """The n-th root of a whole number, if it is whole too; else None."""
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
