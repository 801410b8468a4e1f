"""Is this answer the gold one? Part by part, by shape first.

Verdicts are the reasons of a score: "right", "wrong", "several answers" and so on. Where a part of the gold is
outside the grammar of `tree`, `NoValue` is raised: only a symbolic reader can tell, in its own process.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ponder.verify.maths.leaf import Leaf, leaf
from ponder.verify.maths.shape import Group, Relation, Shape
from ponder.verify.maths.tree import Node
from ponder.verify.maths.typeset import NoValue, Unreadable, squeezed
from ponder.verify.maths.value import proportional, rough, same
from ponder.verify.units import differ

RIGHT, WRONG = "right", "wrong"


def compare(gold: Shape, answer: Shape, tolerance: float = 0.0) -> str:
    """The verdict on the whole answer."""
    if isinstance(answer, Relation):
        return _relation(gold, answer, tolerance)
    if isinstance(gold, Relation):
        # x = 42 says 42, and x \in S says S; an equation between expressions says neither side.
        named = bool(gold.name) and gold.op in ("=", r"\in")
        return compare(gold.right, answer, tolerance) if named else WRONG
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _groups(gold, answer, tolerance)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return RIGHT if _leaves(gold, answer, tolerance) else WRONG
    if isinstance(answer, Group) and answer.kind in ("list", "set", "union"):
        return "several answers"
    return WRONG


def _groups(gold: Group, answer: Group, tolerance: float) -> str:
    collections = {gold.kind, answer.kind} <= {"list", "set"}
    if not collections and gold.kind != answer.kind:
        return WRONG
    if (len(gold.parts), gold.rows) != (len(answer.parts), answer.rows):
        return WRONG
    if not gold.unordered:
        pairs = zip(gold.parts, answer.parts, strict=True)
        return RIGHT if all(_part(g, a, tolerance) for g, a in pairs) else WRONG
    left = list(answer.parts)
    for part in gold.parts:
        found = next((n for n, other in enumerate(left) if _part(part, other, tolerance)), None)
        if found is None:
            return WRONG
        left.pop(found)
    return RIGHT


def _part(gold: Shape, answer: Shape, tolerance: float) -> bool:
    """One part against one: here a = 1 is not 1, since the name tells which part it is."""
    if isinstance(gold, Relation) != isinstance(answer, Relation) or not _may_match(gold, answer, tolerance):
        return False
    return compare(gold, answer, tolerance) == RIGHT


def _may_match(gold: Shape, answer: Shape, tolerance: float) -> bool:
    """Cheap, so that sets of many expressions are matched in little time: False only where they differ."""
    if tolerance or not (isinstance(gold, Leaf) and isinstance(answer, Leaf)) or gold.percent or answer.percent:
        return True
    if not gold.rough or not answer.rough or gold.symbols != answer.symbols:
        return True
    return all(abs(g - a) <= 1e-6 * max(abs(g), abs(a), 1e-9) for g, a in zip(gold.rough, answer.rough, strict=True))


def _relation(gold: Shape, answer: Relation, tolerance: float) -> str:
    if not isinstance(gold, Relation):
        if answer.op == r"\in" and answer.name:
            return compare(gold, answer.right, tolerance) if _is_set(gold) else WRONG
        if answer.op != "=":
            return "hedged" if answer.op in (r"\approx", r"\sim", r"\ne") else WRONG
        # Only a name may stand before the value: 42=41 and 41+1=42 are uneven.
        return compare(gold, answer.right, tolerance) if answer.name else "several answers"
    if gold.op == answer.op and gold.name and gold.name == answer.name:
        return compare(gold.right, answer.right, tolerance)
    return RIGHT if _equivalent(gold, answer) else WRONG


def _is_set(shape: Shape) -> bool:
    if isinstance(shape, Leaf):
        return shape.words == r"\emptyset"
    return isinstance(shape, Group) and shape.kind in ("set", "union", "()", "[]", "(]", "[)")


_MIRROR = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def _equivalent(gold: Relation, answer: Relation) -> bool:
    """Two forms of one equation or inequality: what is zero in one is a constant times what is zero in the other."""
    if gold.op not in ("=", *_MIRROR) or answer.op not in ("=", *_MIRROR):
        return gold.op == answer.op and all(
            compare(g, a) == RIGHT for g, a in ((gold.left, answer.left), (gold.right, answer.right))
        )
    if gold.name and gold.op == "=" and not _symbols(gold.right):
        return False  # 2x = 10 for x = 5 is the question, not its answer
    factor = proportional(_difference(answer), _difference(gold, is_gold=True))
    if factor is None:
        return False
    if "=" in (gold.op, answer.op):
        return gold.op == answer.op
    return answer.op == (gold.op if factor > 0 else _MIRROR[gold.op])


def _symbols(shape: Shape) -> frozenset[str]:
    return shape.symbols if isinstance(shape, Leaf) else frozenset()


def _difference(relation: Relation, is_gold: bool = False) -> Node:
    sides = (relation.left, relation.right)
    if not all(isinstance(side, Leaf) for side in sides):
        raise NoValue if is_gold else Unreadable("malformed")
    left, right = (_tree(side, is_gold) for side in sides if isinstance(side, Leaf))
    return Node("add", (left, Node("neg", (right,))))


def _tree(value: Leaf, is_gold: bool) -> Node:
    try:
        return value.tree
    except Unreadable as unreadable:
        if is_gold:
            raise NoValue from unreadable
        raise


_LETTER_UNIT = re.compile(r"(.*[0-9}])\s?(?:\\text\{)?([mgshlLVWJNK])\}?")


def _leaves(gold: Leaf, answer: Leaf, tolerance: float) -> bool:
    if gold.words or answer.words:
        if gold.letter and answer.letter:
            return gold.letter == answer.letter
        return bool(gold.words) and gold.words == answer.said
    if squeezed(gold.text) == squeezed(answer.text):
        return True
    if gold.base or answer.base:
        return (gold.body, gold.base) == (answer.body, answer.base)
    if differ(gold.measure, answer.measure):
        return False
    if gold.letter:
        return gold.letter == answer.letter
    truth = _tree(gold, True)
    if answer.symbols and not truth.symbols() and (match := _LETTER_UNIT.fullmatch(answer.body)):
        answer = replace(leaf(match[1]), unit=match[2])  # 5 m is a length where the gold has no variable
    if answer.unit == "degree" and not gold.unit and "\\pi" in gold.body:
        return False  # radians
    if not answer.tree.symbols() <= truth.symbols():
        return False  # x - x + 42 is not worked out
    return _same_value(truth, gold.percent, answer.tree, answer.percent, tolerance)


def _same_value(gold: Node, gold_percent: bool, answer: Node, answer_percent: bool, tolerance: float) -> bool:
    """As `numbers.same` has it."""
    if gold_percent == answer_percent:
        return same(answer, gold, tolerance)
    hundred = leaf("100").tree
    if not answer_percent:
        return same(answer, gold, tolerance) or same(answer, Node("div", (gold, hundred)), tolerance)
    if same(Node("div", (answer, hundred)), gold, tolerance):
        return True
    is_share = all(abs(value) < 1 for value in rough(gold))
    return not is_share and same(answer, gold, tolerance)
