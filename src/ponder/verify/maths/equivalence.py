"""Decide whether two expressions are equal: exactly where fractions suffice, else to as many digits as needed.

Variables take values drawn for each comparison from a hash of both expressions. The author of an answer cannot know
them, and the same pair always gets the same points. Some are large, small or negative. The precision follows from the
expressions: a term of size 10^-500 needs more than a thousand digits, so nothing can hide below a tolerance, and the
tolerance is relative. Every operation bounds the size of its operands, so no expression takes long: a power tower is
refused, not computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from ponder.verify.maths.evaluator import (
    DEFAULT_DIGITS,
    Evaluator,
    Undefined,
    Value,
    close,
    mpmath_context,
    size,
    subtract,
)
from ponder.verify.maths.expression_tree import ExpressionNode
from ponder.verify.maths.normalize_latex import OutsideGrammar, UnreadableAnswer
from ponder.verify.maths.residues import same_residues

ORDINARY_POINTS, LARGE_POINTS, FAR_POINTS = (
    5,
    2,
    3,
)  # points of ordinary size, in the tens to thousands, and beyond all numbers written
MAX_FAR_POINT = 1000  # expressions with functions are not compared at points beyond this
MIN_DIGITS_TO_AGREE = 200  # decimal digits, at least, before two values count as the same
MAX_DIGITS = 12_000  # decimal digits: an expression without functions takes milliseconds
# Decimal digits of a gold at a large or far point; a gold that needs more is not compared there.
MAX_DIGITS_AT_FAR_POINT = 1_500
MAX_DIGITS_TIMES_FUNCTIONS = 60_000  # digits times functions

_NO_VALUE = (Undefined, ArithmeticError, ValueError)


def approximate_values(node: ExpressionNode) -> tuple[complex, ...]:
    """The value to a few digits at each point, which tells most expressions apart; empty where there is none."""
    names = node.symbols()
    values: list[complex] = []
    try:
        for point in range(2 if names else 1):
            values.append(complex(Evaluator(draw_point(names, point, ""), DEFAULT_DIGITS).value(node)))
    except (*_NO_VALUE, UnreadableAnswer):
        return ()
    return tuple(values)


def same_value(answer: ExpressionNode, gold: ExpressionNode, tolerance: float = 0.0) -> bool:
    """Whether the answer has the gold's value at every point where the gold has one.

    Raises `OutsideGrammar` where the gold has a value at too few points.
    """
    names = answer.symbols() | gold.symbols()
    if not names:
        return _same_number(answer, gold, tolerance)
    if _may_differ_between_points(answer, gold):
        return False
    seed, agreements = comparison_seed(answer, gold), 0
    beyond = _largest_literal(answer) + _largest_literal(gold)
    for point in range(_points(answer, gold)):
        try:
            limit = MAX_DIGITS if point < ORDINARY_POINTS else MAX_DIGITS_AT_FAR_POINT
            verdict = _agree(answer, gold, draw_point(names, point, seed, beyond), tolerance, limit)
        except OutsideGrammar:
            if point < ORDINARY_POINTS:
                raise
            continue
        if verdict is False:
            return False
        agreements += verdict is True
    if agreements < 3:
        raise OutsideGrammar
    return True


def _same_number(answer: ExpressionNode, gold: ExpressionNode, tolerance: float) -> bool:
    try:
        verdict = _agree(answer, gold, {}, tolerance)
    except OutsideGrammar:
        by_residues = None if tolerance else same_residues(answer, gold, comparison_seed(answer, gold))
        if by_residues is None:
            raise
        return by_residues
    if verdict is None:
        raise OutsideGrammar
    return verdict


def proportional(answer: ExpressionNode, gold: ExpressionNode) -> Fraction | float | None:
    """The constant c with answer = c * gold, as between two forms of one equation; None where there is none."""
    names = answer.symbols() | gold.symbols()
    if not names or _may_differ_between_points(answer, gold):
        return None
    seed, beyond = comparison_seed(answer, gold), _largest_literal(answer) + _largest_literal(gold)
    ratios: list[Value] = []
    sure = MIN_DIGITS_TO_AGREE
    for point in range(_points(answer, gold)):
        coordinates = draw_point(names, point, seed, beyond)
        try:
            first = Evaluator(coordinates, DEFAULT_DIGITS)
            first.value(answer), first.value(gold)
            digits = max(MIN_DIGITS_TO_AGREE, _digits_for(first))
            if digits > MAX_DIGITS:
                return None
            sure = max(sure, digits - int(first.weight) - 30)
            evaluator = Evaluator(coordinates, digits)
            ratios.append(evaluator.divided(evaluator.value(answer), evaluator.value(gold)))
        except _NO_VALUE:
            continue
        except UnreadableAnswer:
            if point < ORDINARY_POINTS:
                raise
    if len(ratios) < 3 or any(not close(ratio, ratios[0], sure // 2) for ratio in ratios) or size(ratios[0]) == 0:
        return None
    ratio = ratios[0]
    if isinstance(ratio, Fraction):
        return ratio
    return float(ratio.real) if abs(ratio.imag) <= abs(ratio.real) * 1e-40 else None


def _agree(
    answer: ExpressionNode,
    gold: ExpressionNode,
    coordinates: Mapping[str, Fraction],
    tolerance: float,
    limit: int = MAX_DIGITS,
) -> bool | None:
    """Whether both agree at one point. None where the gold has no value there, or a complex one that differs."""
    try:
        quick = Evaluator(coordinates, DEFAULT_DIGITS)
        truth = quick.value(gold)
    except _NO_VALUE:
        return None
    except UnreadableAnswer as unreadable:
        raise OutsideGrammar from unreadable
    if not isinstance(truth, Fraction) and _digits_for(quick) > limit:
        raise OutsideGrammar
    try:
        value = quick.value(answer)
    except _NO_VALUE:
        return False
    if tolerance:
        return bool(size(subtract(value, truth)) <= tolerance * size(truth))
    if isinstance(value, Fraction) and isinstance(truth, Fraction):
        return value == truth
    sure = DEFAULT_DIGITS - 15 - quick.lost
    if (
        sure > 0
        and size(subtract(value, truth))
        > max(size(value), size(truth)) * mpmath_context(DEFAULT_DIGITS).mpf(10) ** -sure
    ):
        # Branches may differ for a variable where the gold is not real.
        return None if coordinates and not isinstance(truth, Fraction) and truth.imag != 0 else False
    return _agree_closely(answer, gold, coordinates, quick)


def _agree_closely(
    answer: ExpressionNode, gold: ExpressionNode, coordinates: Mapping[str, Fraction], quick: Evaluator
) -> bool | None:
    """Compare with as many digits as needed. An answer that needs too many is refused as too large."""
    digits = max(MIN_DIGITS_TO_AGREE, _digits_for(quick))
    if digits > MAX_DIGITS or digits * (_functions(answer) + _functions(gold)) > MAX_DIGITS_TIMES_FUNCTIONS:
        raise UnreadableAnswer("too large")
    evaluator = Evaluator(coordinates, digits)
    value, truth = evaluator.value(answer), evaluator.value(gold)
    difference = size(subtract(value, truth, digits), digits)
    mp = mpmath_context(digits)
    near = mp.mpf(10) ** -(digits - int(quick.weight) - 30)
    noise = mp.mpf(10) ** -(digits - int(quick.weight) - 10)
    if difference <= near * max(size(value, digits), size(truth, digits)) or difference <= noise:
        return True
    return None if coordinates and not isinstance(truth, Fraction) and truth.imag != 0 else False


def _digits_for(evaluator: Evaluator) -> int:
    """Digits of precision that suffice even if every number evaluated so far cancels."""
    return 60 + 3 * int(evaluator.weight)


def _walk(node: ExpressionNode) -> Iterable[ExpressionNode]:
    yield node
    for part in node.parts:
        yield from _walk(part)


_PLAIN = frozenset(("number", "symbol", "add", "mul", "div", "neg", "abs", "floor", "ceil", "pow", "root", "apply"))


def _functions(node: ExpressionNode) -> int:
    """How many nodes are costly to evaluate; powers count where the exponent is not a literal."""
    return sum(each.op not in _PLAIN or (each.op == "pow" and each.parts[1].number is None) for each in _walk(node))


_GAMMA = ("factorial", "binom")  # at other than whole numbers they are the gamma function, which is slow


def _points(answer: ExpressionNode, gold: ExpressionNode) -> int:
    """How many points to compare at. At far points a function has no digits left, or is too large."""
    if _has(answer, _GAMMA) or _has(gold, _GAMMA):
        return ORDINARY_POINTS
    return ORDINARY_POINTS + LARGE_POINTS + (0 if _functions(answer) + _functions(gold) else FAR_POINTS)


def _may_differ_between_points(answer: ExpressionNode, gold: ExpressionNode) -> bool:
    """Whether the answer has steps that the gold lacks, or bends beyond the points where functions are compared."""
    if _has(answer, ("floor", "ceil")) and not _has(gold, ("floor", "ceil")):
        return True
    bends = ("abs", "root", "floor", "ceil")
    far = any(abs(each.number) > MAX_FAR_POINT for each in _walk(answer) if each.number is not None) or any(
        each.op == "pow" and not each.symbols() for each in _walk(answer)
    )
    return far and _has(answer, bends) and bool(_functions(answer) + _functions(gold)) and answer != gold


def _has(node: ExpressionNode, ops: tuple[str, ...]) -> bool:
    return any(each.op in ops and each.symbols() for each in _walk(node))


def _largest_literal(node: ExpressionNode) -> int:
    """Decimal digits of all numbers in it together, powers evaluated: a bound on any literal's size."""
    evaluator = Evaluator({}, DEFAULT_DIGITS)
    for each in _walk(node):
        try:
            if not each.symbols() and (each.number is not None or each.op == "pow"):
                evaluator.weigh(evaluator.value(each))
        except (*_NO_VALUE, UnreadableAnswer):
            continue
    return min(5000, int(evaluator.weight))


def comparison_seed(answer: ExpressionNode, gold: ExpressionNode) -> str:
    return hashlib.sha256(repr((answer, gold)).encode()).hexdigest()


def draw_point(names: Iterable[str], point: int, seed: str, beyond: int = 0) -> dict[str, Fraction]:
    return {name: _draw_coordinate(name, point, seed, beyond) for name in names}


@lru_cache(maxsize=4096)
def _draw_coordinate(name: str, point: int, seed: str, beyond: int) -> Fraction:
    """A coordinate of size 0.3 to 2.3 with 40 random bits, negative at every second point. Large points multiply it by
    10 to 1,000; far points by a power of ten beyond `beyond` digits, or its inverse."""
    digest = hashlib.sha256(f"{seed}/{name}/{point}".encode()).digest()
    value = Fraction(3, 10) + Fraction(2 * int.from_bytes(digest[:5]) + 1, 1 << 40)
    if point >= ORDINARY_POINTS + LARGE_POINTS:
        far = 10 + beyond + digest[5] % 40
        value *= Fraction(10) ** (far if point < ORDINARY_POINTS + LARGE_POINTS + 2 else -far)
    elif point >= ORDINARY_POINTS:
        value *= 10 + int.from_bytes(digest[5:7]) % 990
    return -value if point % 2 else value
