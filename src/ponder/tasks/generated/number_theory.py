"""Whole numbers: common divisors and multiples, powers and inverses modulo m, divisors, remainders."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import NumberTask, check_kinds

Kind = Literal[
    "gcd", "lcm", "power", "inverse", "divisors", "divisor-sum", "totient", "prime-factors", "largest-prime",
    "remainders",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_DIGITS = 9  # what is factored by trial division, in a millisecond or so


class NumberTheoryItem(NamedTuple):
    kind: Kind
    numbers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NumberTheory(NumberTask[NumberTheoryItem]):
    """One question about numbers with up to so many `digits`, of one of these `kinds`."""

    LEVELS = (
        {"digits": 2, "kinds": ("gcd", "lcm", "divisors")},
        {"digits": 2, "kinds": KINDS},
        {"digits": 3, "kinds": KINDS},
        {"digits": 5, "kinds": KINDS},
        {"digits": 8, "kinds": KINDS},
    )

    digits: int = 3
    kinds: tuple[Kind, ...] = KINDS

    def check(self) -> None:
        require_at_least(2, digits=self.digits)
        require_at_most(MOST_DIGITS, digits=self.digits)
        check_kinds(self.kinds, KINDS)

    @property
    def name(self) -> str:
        return "number-theory"

    def draw(self, rng: random.Random) -> NumberTheoryItem:
        kind = rng.choice(self.kinds)
        return NumberTheoryItem(kind, _DRAW[kind](rng, 10**self.digits))

    def key(self, item: NumberTheoryItem) -> str:
        numbers = sorted(item.numbers) if item.kind in ("gcd", "lcm") else item.numbers
        return f"{item.kind} {numbers}"

    def question(self, item: NumberTheoryItem) -> str:
        if item.kind == "remainders":
            pairs = zip(item.numbers[::2], item.numbers[1::2], strict=True)
            leaves = [f"{remainder} when divided by {modulus}" for remainder, modulus in pairs]
            return f"What is the smallest non-negative integer that leaves {' and '.join(leaves)} as remainders?"
        return _QUESTIONS[item.kind].format(*item.numbers)

    def answer(self, item: NumberTheoryItem) -> str:
        return str(solve(item))

    def tags(self, item: NumberTheoryItem) -> dict[str, Any]:
        return {"kind": item.kind, "digits": self.digits}


_QUESTIONS: dict[Kind, str] = {
    "gcd": "What is the greatest common divisor of {0} and {1}?",
    "lcm": "What is the least common multiple of {0} and {1}?",
    "power": "What is the remainder when {0} to the power of {1} is divided by {2}?",
    "inverse": "Which integer x with 0 < x < {1} satisfies {0} * x = 1 modulo {1}?",
    "divisors": "How many positive divisors does {0} have?",
    "divisor-sum": "What is the sum of all positive divisors of {0}, including 1 and {0}?",
    "totient": "How many integers from 1 to {0} have no common divisor with {0} other than 1?",
    "prime-factors": "What is the sum of the prime factors of {0}, each added as often as it divides {0}?",
    "largest-prime": "What is the largest prime factor of {0}?",
}


def solve(item: NumberTheoryItem) -> int:
    """The answer, by the textbook's method."""
    kind, n = item
    if kind == "gcd":
        return math.gcd(*n)
    if kind == "lcm":
        return math.lcm(*n)
    if kind == "power":
        return pow(*n)
    if kind == "inverse":
        return pow(n[0], -1, n[1])
    if kind == "remainders":
        return _remainders(n)
    primes = factors(n[0])
    if kind == "prime-factors":
        return sum(prime * times for prime, times in primes.items())
    if kind == "largest-prime":
        return max(primes)
    return math.prod(_PER_PRIME[kind](prime, times) for prime, times in primes.items())


# Functions of n that are products over its prime powers p**k.
_PER_PRIME: dict[Kind, Callable[[int, int], int]] = {
    "divisors": lambda p, k: k + 1,
    "divisor-sum": lambda p, k: (p ** (k + 1) - 1) // (p - 1),
    "totient": lambda p, k: p ** (k - 1) * (p - 1),
}


def factors(n: int) -> dict[int, int]:
    """Each prime that divides n, and how often."""
    exponents: dict[int, int] = {}
    prime = 2
    while prime * prime <= n:
        while n % prime == 0:
            exponents[prime] = exponents.get(prime, 0) + 1
            n //= prime
        prime += 1 if prime == 2 else 2
    if n > 1:
        exponents[n] = exponents.get(n, 0) + 1
    return exponents


def _remainders(numbers: tuple[int, ...]) -> int:
    """Chinese remainder theorem, one congruence after the other."""
    at, step = 0, 1
    for remainder, modulus in zip(numbers[::2], numbers[1::2], strict=True):
        at += step * ((remainder - at) * pow(step, -1, modulus) % modulus)
        step *= modulus
    return at


def _number(rng: random.Random, below: int) -> tuple[int]:
    return (rng.randrange(below // 10, below),)


def _pair_with_common_divisor(rng: random.Random, below: int) -> tuple[int, int]:
    """Two numbers with a common divisor that is worth finding."""
    shared = rng.randrange(2, max(3, math.isqrt(below)))
    most = max(2, (below - 1) // shared)
    return shared * rng.randint(1, most), shared * rng.randint(1, most)


def _power(rng: random.Random, below: int) -> tuple[int, int, int]:
    return rng.randrange(2, below), rng.randrange(2, below), rng.randrange(3, below)


def _invertible(rng: random.Random, below: int) -> tuple[int, int]:
    while True:
        modulus = rng.randrange(5, below)
        number = rng.randrange(2, modulus)
        if math.gcd(number, modulus) == 1:
            return number, modulus


def _congruences(rng: random.Random, below: int) -> tuple[int, ...]:
    """As many congruences as there are digits, two to four, with moduli that share no divisor."""
    count = min(4, max(2, len(str(below)) - 2))
    highest = 5 * count + below // 1000
    while True:
        moduli = [rng.randint(3, min(highest, 99)) for _ in range(count)]
        if all(math.gcd(a, b) == 1 for a, b in combinations(moduli, 2)):
            return tuple(n for modulus in moduli for n in (rng.randrange(modulus), modulus))


_DRAW: dict[Kind, Callable[[random.Random, int], tuple[int, ...]]] = {
    "gcd": _pair_with_common_divisor, "lcm": _pair_with_common_divisor, "power": _power, "inverse": _invertible,
    "divisors": _number,
    "divisor-sum": _number, "totient": _number, "prime-factors": _number, "largest-prime": _number,
    "remainders": _congruences,
}  # fmt: skip
