"""Decide whether a number is evaluated: 85, 17/2, 2 1/2 and 8.5 x 10^3 are; 27 + 58, 84/2, 5! and \\sqrt{9} are not.

Only a gold that is itself a plain number requires it: where the gold is \\sqrt{2} or 2^{100}, any form of it counts.
"""

from __future__ import annotations

from fractions import Fraction

from ponder.verify.maths.expression_tree import ExpressionNode


def is_evaluated(node: ExpressionNode, gold: ExpressionNode | None = None) -> bool:
    """Whether nothing is left to evaluate. `gold`: if it is a plain number, 84/2 and the like are not."""
    while node.op == "neg":
        node = node.parts[0]
    if node.op == "div" and all(_signed_number(part) for part in node.parts):
        top, bottom = (abs(_number(part)) for part in node.parts)
        whole = bottom != 0 and (top / bottom).denominator == 1
        return not (whole and gold is not None and _plain(gold)) and top.denominator == bottom.denominator == 1
    return node.number is not None or node.name == "mixed" or _scientific(node)


def _plain(gold: ExpressionNode) -> bool:
    while gold.op == "neg":
        gold = gold.parts[0]
    return gold.number is not None


def _signed_number(node: ExpressionNode) -> bool:
    return node.number is not None or (node.op == "neg" and node.parts[0].number is not None)


def _number(node: ExpressionNode) -> Fraction:
    number = node.number if node.number is not None else node.parts[0].number
    assert number is not None
    return number


def _scientific(node: ExpressionNode) -> bool:
    """4.2 x 10^4, or 10^6."""
    if node.op == "mul" and node.parts[0].number is not None:
        node = node.parts[1]
    return node.op == "pow" and node.parts[0].number == 10 and _signed_number(node.parts[1])
