"""Are two expressions the same? Exactly where fractions can say it, else to as many digits as it takes.

Variables take values that are drawn for each comparison from a hash of both expressions: whoever writes an answer
cannot know where it will be looked at, and the same two always meet at the same points. Some are large, small or
negative. Digits follow from what is in the expressions: a part of the size 10^-500 makes for more than a thousand of
them, so that nothing can hide below a tolerance, and agreement is relative. Every operation is bounded in the size of
its operands, so no expression takes long: a power tower is refused, not computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from ponder.verify.maths.evaluate import DIGITS, Evaluator, Undefined, Value, close, context, minus, size
from ponder.verify.maths.residues import same_residues
from ponder.verify.maths.tree import Node
from ponder.verify.maths.typeset import NoValue, Unreadable

ORDINARY, SCALED = 5, 3  # points of ordinary size, and far from it
CAREFUL = 200  # decimal digits, at least, before two values count as the same
MOST_DIGITS = 12_000  # of which an expression without functions can be worked out in milliseconds
MOST_WORK = 60_000  # digits times functions

_NO_VALUE = (Undefined, ArithmeticError, ValueError)


def rough(node: Node) -> tuple[complex, ...]:
    """A few digits of the value at each point, to tell most expressions apart at once; empty where there are none."""
    names = node.symbols()
    found: list[complex] = []
    try:
        for point in range(2 if names else 1):
            found.append(complex(Evaluator(_drawn(names, point, ""), DIGITS).value(node)))
    except (*_NO_VALUE, Unreadable):
        return ()
    return tuple(found)


def same(answer: Node, gold: Node, tolerance: float = 0.0) -> bool:
    """Whether the answer has the gold's value wherever the gold has one; `NoValue` where the gold has none."""
    names = answer.symbols() | gold.symbols()
    if not names:
        return _same_number(answer, gold, tolerance)
    if _has_steps(answer) and not _has_steps(gold):
        return False  # between two steps it can be anything
    seed, met = _seed(answer, gold), 0
    for point in range(ORDINARY + SCALED):
        if point >= ORDINARY and _functions(answer) + _functions(gold):
            break
        try:
            verdict = _agree(answer, gold, _drawn(names, point, seed), tolerance)
        except NoValue:
            if point < ORDINARY:
                raise
            continue
        if verdict is False:
            return False
        met += verdict is True
    if met < 3:
        raise NoValue
    return True


def _same_number(answer: Node, gold: Node, tolerance: float) -> bool:
    try:
        verdict = _agree(answer, gold, {}, tolerance)
    except NoValue:
        by_residues = None if tolerance else same_residues(answer, gold, _seed(answer, gold))
        if by_residues is None:
            raise
        return by_residues
    if verdict is None:
        raise NoValue
    return verdict


def proportional(answer: Node, gold: Node) -> Fraction | float | None:
    """The constant that the answer is times the gold (two forms of one equation); None where there is none."""
    names = answer.symbols() | gold.symbols()
    if not names or (_has_steps(answer) and not _has_steps(gold)):
        return None
    seed = _seed(answer, gold)
    ratios: list[Value] = []
    sure = CAREFUL
    for point in range(ORDINARY + (0 if _functions(answer) + _functions(gold) else SCALED)):
        given = _drawn(names, point, seed)
        try:
            first = Evaluator(given, DIGITS)
            first.value(answer), first.value(gold)
            digits = max(CAREFUL, _digits_for(first))
            if digits > MOST_DIGITS:
                return None
            sure = max(sure, digits - int(first.weight) - 30)
            evaluator = Evaluator(given, digits)
            ratios.append(evaluator.divided(evaluator.value(answer), evaluator.value(gold)))
        except _NO_VALUE:
            continue
    if len(ratios) < 3 or any(not close(ratio, ratios[0], sure // 2) for ratio in ratios) or size(ratios[0]) == 0:
        return None
    ratio = ratios[0]
    if isinstance(ratio, Fraction):
        return ratio
    return float(ratio.real) if abs(ratio.imag) <= abs(ratio.real) * 1e-40 else None


def _agree(answer: Node, gold: Node, given: Mapping[str, Fraction], tolerance: float) -> bool | None:
    """At one point; None where the gold has no value, or no real one and the answer another."""
    try:
        quick = Evaluator(given, DIGITS)
        truth = quick.value(gold)
    except _NO_VALUE:
        return None
    except Unreadable as unreadable:
        raise NoValue from unreadable
    needed = _digits_for(quick)
    if needed > MOST_DIGITS:
        raise NoValue
    try:
        found = quick.value(answer)
    except _NO_VALUE:
        return False
    if tolerance:
        return bool(size(minus(found, truth)) <= tolerance * size(truth))
    if isinstance(found, Fraction) and isinstance(truth, Fraction):
        return found == truth
    sure = DIGITS - 15 - quick.lost
    if sure > 0 and size(minus(found, truth)) > max(size(found), size(truth)) * context(DIGITS).mpf(10) ** -sure:
        # Branches may differ for a variable where the gold is not real.
        return None if given and not isinstance(truth, Fraction) and truth.imag != 0 else False
    return _agree_closely(answer, gold, given, quick)


def _agree_closely(answer: Node, gold: Node, given: Mapping[str, Fraction], quick: Evaluator) -> bool | None:
    """With the digits that it takes; what the answer alone makes too many to work out is not the gold."""
    digits = max(CAREFUL, _digits_for(quick))
    if digits > MOST_DIGITS or digits * (_functions(answer) + _functions(gold)) > MOST_WORK:
        raise Unreadable("too large")
    evaluator = Evaluator(given, digits)
    found, truth = evaluator.value(answer), evaluator.value(gold)
    difference = size(minus(found, truth, digits), digits)
    mp = context(digits)
    near = mp.mpf(10) ** -(digits - int(quick.weight) - 30)
    noise = mp.mpf(10) ** -(digits - int(quick.weight) - 10)
    if difference <= near * max(size(found, digits), size(truth, digits)) or difference <= noise:
        return True
    return None if given and not isinstance(truth, Fraction) and truth.imag != 0 else False


def _digits_for(evaluator: Evaluator) -> int:
    """So that even what is lost by every number met so far leaves more than it takes to tell."""
    return 60 + 3 * int(evaluator.weight)


def _walk(node: Node) -> Iterable[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)


_PLAIN = frozenset(("number", "symbol", "add", "mul", "div", "neg", "abs", "floor", "ceil", "pow", "root", "apply"))


def _functions(node: Node) -> int:
    """How many parts take work to work out; powers count where their exponents are no whole numbers."""
    return sum(each.op not in _PLAIN or (each.op == "pow" and each.parts[1].number is None) for each in _walk(node))


def _has_steps(node: Node) -> bool:
    return any(each.op in ("floor", "ceil") and each.symbols() for each in _walk(node))


def _seed(answer: Node, gold: Node) -> str:
    return hashlib.sha256(repr((answer, gold)).encode()).hexdigest()


def _drawn(names: Iterable[str], point: int, seed: str) -> dict[str, Fraction]:
    return {name: _chosen(name, point, seed) for name in names}


@lru_cache(maxsize=4096)
def _chosen(name: str, point: int, seed: str) -> Fraction:
    """Between 0.3 and 2.3 in size with 40 odd bits, negative at every second point; the last ones many times as large,
    or as small."""
    digest = hashlib.sha256(f"{seed}/{name}/{point}".encode()).digest()
    value = Fraction(3, 10) + Fraction(2 * int.from_bytes(digest[:5]) + 1, 1 << 40)
    if point >= ORDINARY:
        lowest, spread = ((2, 6), (10, 60), (-30, 20))[point - ORDINARY]
        value *= Fraction(10) ** (lowest + digest[5] % spread)
    return -value if point % 2 else value
