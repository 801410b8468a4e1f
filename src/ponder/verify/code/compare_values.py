"""Compare a program's return value with the expected one, outside the sandbox, on the decoded tree (sandbox/codec.py).

Python's own equality, with four differences that a grader needs:

- nan equals nan, because it is the right answer where it is expected
- True is not 1 and False is not 0; but 1.0 is 1, and -0.0 is 0.0
- a list equals a tuple with the same items, because test files written as JSON cannot tell them apart
- two floats may differ by a relative 1e-9, or by 1e-12 where 0.0 is expected; integers, and floats as keys, may not

No part of the value is hashed or called. It is compared item by item, in time proportional to its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ponder.verify.sandbox.codec import NotPlainData, Plain, Tree, decode, encode

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-9, 1e-12
_TAGS: dict[type[Any], str] = {
    list: "lt",
    tuple: "lt",
    set: "sz",
    frozenset: "sz",
    dict: "d",
    bytes: "b",
    bytearray: "b",
}


def values_equal(tree: Tree, expected: Plain, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Whether this answer equals the expected value. `tolerance=0` compares floats exactly."""
    kind = type(expected)
    if expected is None or kind is bool:
        return tree is expected
    if kind is str:
        return type(tree) in (str, list) and bool(tree == encode(expected))
    if kind in (int, float, complex, Decimal, Fraction):
        return _same_number(tree, expected, tolerance)
    tagged = type(tree) is list and len(tree) > 0 and type(tree[0]) is str and len(tree[0]) == 1
    if kind is range:
        return tagged and tree[0] == "r" and bool(tree == encode(expected))
    if not tagged or tree[0] not in _TAGS.get(kind, ""):
        return False
    rest: list[Any] = tree[1:]
    if kind in (bytes, bytearray):
        return rest == [bytes(expected).hex()]
    if len(rest) != len(expected):
        return False
    if kind in (list, tuple):
        return all(values_equal(answer, value, tolerance) for answer, value in zip(rest, expected, strict=True))
    if kind is dict:
        return _same_dict(rest, expected, tolerance)
    return _sorted(rest) == _sorted([encode(value) for value in expected])


def _same_number(tree: Tree, expected: Any, tolerance: float) -> bool:
    if type(tree) is list:
        if not tree or tree[0] not in ("i", "f", "c", "m", "q"):
            return False
        try:
            tree = decode(tree)
        except NotPlainData:
            return False
    if type(tree) not in (int, float, complex, Decimal, Fraction):
        return False
    try:
        if tree == expected:
            return True
        parts = [(z.real, z.imag) if isinstance(z, complex) else (z,) for z in (tree, expected)]
        return len(parts[0]) == len(parts[1]) and all(_close(a, b, tolerance) for a, b in zip(*parts, strict=True))
    except (ArithmeticError, ValueError):  # a signalling nan, or a number too large to compare
        return False


def _close(answer: Any, expected: Any, tolerance: float) -> bool:
    if answer == expected:
        return True
    if not (isinstance(answer, float) and isinstance(expected, float)):
        return (
            isinstance(answer, (float, Decimal))
            and type(answer) is type(expected)
            and answer != answer != expected != expected
        )
    if math.isnan(answer) or math.isnan(expected):
        return math.isnan(answer) and math.isnan(expected)
    if math.isinf(answer) or math.isinf(expected):
        return False
    return abs(answer - expected) <= (tolerance * abs(expected) if expected else min(tolerance, ABSOLUTE_TOLERANCE))


def _same_dict(pairs: Sequence[Any], expected: dict[Any, Any], tolerance: float) -> bool:
    if not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        return False
    answer_keys = sorted(((_canonical(key), at) for at, (key, _) in enumerate(pairs)))
    expected_keys = sorted((_canonical(encode(key)), at) for at, key in enumerate(expected))
    if [key for key, _ in answer_keys] != [key for key, _ in expected_keys]:
        return False
    values = list(expected.values())
    return all(
        values_equal(pairs[a][1], values[b], tolerance)
        for (_, a), (_, b) in zip(answer_keys, expected_keys, strict=True)
    )


def _sorted(trees: Sequence[Tree]) -> list[str]:
    return sorted(map(_canonical, trees))


def _canonical(tree: Tree, depth: int = 0) -> str:
    """Text that is the same for equal keys, and only for them. Text sorts without being hashed."""
    if depth > 100:
        return "deep"
    if type(tree) is list and tree:
        tag, rest = tree[0], tree[1:]
        if tag in ("l", "t"):
            return "(" + ",".join(_canonical(value, depth + 1) for value in rest) + ")"
        if tag in ("s", "z"):
            return "{" + ",".join(sorted(_canonical(value, depth + 1) for value in rest)) + "}"
        if tag == "d":
            return "malformed"
        try:
            tree = decode(tree)
        except NotPlainData:
            return "malformed"
    if type(tree) is complex and tree.imag == 0:
        tree = tree.real
    if type(tree) in (float, Decimal) and math.isfinite(tree):
        tree = Fraction(tree)
    if type(tree) is Fraction:
        return f"{tree.numerator:x}/{tree.denominator:x}"
    return f"{tree:x}/1" if type(tree) is int else f"{type(tree).__name__} {tree!r}"
