"""Compare two numbers too large to write out by their remainders modulo random primes.

2^82589933 - 1 and 2^82589933 differ at once. Numbers with equal remainders modulo three primes of 61 bits, which could
not be known in advance, count as equal.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

from ponder.verify.maths.expression_tree import ExpressionNode

N_PRIMES = 3
MAX_FACTORIAL_FACTORS = 60_000  # factors of a factorial
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # enough for all numbers below 2^64


def same_residues(one: ExpressionNode, other: ExpressionNode, seed: str) -> bool | None:
    """Whether both have equal remainders modulo each prime; None where one of them is not exact arithmetic."""
    try:
        return all(_residue(one, prime) == _residue(other, prime) for prime in _primes(seed))
    except (_CannotTell, ZeroDivisionError, ValueError):
        return None


class _CannotTell(Exception):
    pass


def _primes(seed: str) -> list[int]:
    primes: list[int] = []
    at = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 4 | 1 << 60 | 1
    while len(primes) < N_PRIMES:
        at += 2
        if _is_prime(at):
            primes.append(at)
            at = int.from_bytes(hashlib.sha256(f"{seed}{at}".encode()).digest()[:8]) >> 4 | 1 << 60 | 1
    return primes


def _is_prime(n: int) -> bool:
    """The Miller-Rabin test, exact for odd n below 2^64."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def _residue(node: ExpressionNode, m: int) -> int:
    """The value modulo m."""
    if node.number is not None:
        return _fraction(node.number, m)
    parts = node.parts
    if node.op == "add":
        return sum(_residue(part, m) for part in parts) % m
    if node.op == "mul":
        return _residue(parts[0], m) * _residue(parts[1], m) % m
    if node.op == "neg":
        return -_residue(parts[0], m) % m
    if node.op == "div":
        return _residue(parts[0], m) * pow(_residue(parts[1], m), -1, m) % m
    if node.op == "pow":
        return pow(_residue(parts[0], m), _exponent(parts[1]), m)
    if node.op == "factorial":
        product = 1
        for n in range(2, _small(parts[0]) + 1):
            product = product * n % m
        return product
    raise _CannotTell


def _fraction(number: Fraction, m: int) -> int:
    return number.numerator * pow(number.denominator, -1, m) % m


def _exponent(node: ExpressionNode) -> int:
    """A whole number of at most some thousand bits."""
    if node.number is not None and node.number.denominator == 1:
        return int(node.number)
    if node.op == "neg":
        return -_exponent(node.parts[0])
    if node.op == "pow" and (base := node.parts[0].number) is not None and base.denominator == 1:
        power = _exponent(node.parts[1])
        if 0 <= power * base.numerator.bit_length() <= 1 << 14:
            return int(base) ** power
    raise _CannotTell


def _small(node: ExpressionNode) -> int:
    if node.number is None or node.number.denominator != 1 or not 0 <= node.number <= MAX_FACTORIAL_FACTORS:
        raise _CannotTell
    return int(node.number)
