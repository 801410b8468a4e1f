"""Compare an answer with the gold one, part by part, structure first.

Verdicts are the reasons of a score: "right", "wrong", "several answers" and so on. Where a part of the gold is outside
the grammar of `expression_tree`, `OutsideGrammar` is raised: only a symbolic library can tell, in the sandbox.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from ponder.verify.maths.answer_value import AnswerValue, parse_answer_value
from ponder.verify.maths.equivalence import approximate_values, proportional, same_value
from ponder.verify.maths.expression_tree import ExpressionNode
from ponder.verify.maths.function_names import applied_function_names
from ponder.verify.maths.is_evaluated import is_evaluated
from ponder.verify.maths.normalize_latex import OutsideGrammar, UnreadableAnswer, remove_spaces
from ponder.verify.maths.structures import AnswerStructure, Relation, ValueGroup
from ponder.verify.numeric.units import conversion_factors, parse_unit

RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    tolerance: float = 0.0  # as a share of the gold; 0: exact
    require_evaluated: bool = True  # if the gold is a plain number, so must the answer be: 27 + 58 is not 85


def compare_answers(gold: AnswerStructure, answer: AnswerStructure, rules: ComparisonRules = ComparisonRules()) -> str:
    """The verdict on the whole answer."""
    if isinstance(answer, Relation):
        return _compare_relation(gold, answer, rules)
    if isinstance(gold, Relation):
        # x = 42 says 42, and x \in S says S; an equation between expressions says neither side.
        assigns_name = bool(gold.name) and gold.op in ("=", r"\in", r"\equiv")
        return compare_answers(gold.right, answer, rules) if assigns_name else WRONG
    if isinstance(gold, ValueGroup) and isinstance(answer, ValueGroup):
        return _compare_groups(gold, answer, rules)
    if isinstance(gold, AnswerValue) and isinstance(answer, AnswerValue):
        return RIGHT if _same_leaf(gold, answer, rules) else WRONG
    if isinstance(answer, ValueGroup) and answer.kind in ("list", "set", "union"):
        return "several answers"
    return WRONG


def _compare_groups(gold: ValueGroup, answer: ValueGroup, rules: ComparisonRules) -> str:
    answer, gold = _as_tuple(gold, answer), _as_tuple(answer, gold)
    # A vector may be written as a tuple; a pair that is written as a vector may have been meant as an interval.
    alike = {gold.kind, answer.kind} <= {"list", "set"} or (gold.kind, answer.kind) == ("<>", "()")
    if not alike and gold.kind != answer.kind:
        return WRONG
    if (len(gold.parts), gold.rows) != (len(answer.parts), answer.rows):
        return WRONG
    if not gold.unordered:
        pairs = zip(gold.parts, answer.parts, strict=True)
        return RIGHT if all(_same_part(g, a, rules) for g, a in pairs) else WRONG
    left = list(answer.parts)
    for part in gold.parts:
        match = next((n for n, other in enumerate(left) if _same_part(part, other, rules)), None)
        if match is None:
            return WRONG
        left.pop(match)
    return RIGHT


def _as_tuple(gold: ValueGroup, answer: ValueGroup) -> ValueGroup:
    """Accept x = 1, y = 2 for (1, 2), and x_1 = 1, x_2 = 2 for 1, 2: names in their usual order assign the parts."""
    parts = [part for part in answer.parts if isinstance(part, Relation) and part.op == "=" and part.name]
    if answer.kind != "list" or len(parts) < len(answer.parts) or any(isinstance(p, Relation) for p in gold.parts):
        return answer
    names, values = [part.name for part in parts], tuple(part.right for part in parts)
    if gold.kind == "()" and names == sorted(set(names)) and all(re.fullmatch("[a-z]", name) for name in names):
        return ValueGroup("()", values)
    stems = {name.partition("_")[0] for name in names}
    return (
        ValueGroup("list", values)
        if gold.kind in ("list", "set") and len(stems) == 1 and len(set(names)) > 1
        else answer
    )


def _same_part(gold: AnswerStructure, answer: AnswerStructure, rules: ComparisonRules) -> bool:
    """Whether two parts are equal. Here a = 1 is not 1, because the name says which part it is."""
    if isinstance(gold, Relation) != isinstance(answer, Relation) or not _may_match(gold, answer, rules):
        return False
    return compare_answers(gold, answer, rules) == RIGHT


def _may_match(gold: AnswerStructure, answer: AnswerStructure, rules: ComparisonRules) -> bool:
    """A cheap filter, so that sets of many expressions are matched quickly: False only where the parts differ."""
    if (
        rules.tolerance
        or not (isinstance(gold, AnswerValue) and isinstance(answer, AnswerValue))
        or gold.percent
        or answer.percent
    ):
        return True
    if gold.unit or answer.unit:
        return True
    if not gold.approximate_values or not answer.approximate_values or gold.symbols != answer.symbols:
        return True
    return all(
        abs(g - a) <= 1e-6 * max(abs(g), abs(a), 1e-9)
        for g, a in zip(gold.approximate_values, answer.approximate_values, strict=True)
    )


def _compare_relation(gold: AnswerStructure, answer: Relation, rules: ComparisonRules) -> str:
    if not isinstance(gold, Relation):
        if answer.op == r"\in" and answer.name:
            return compare_answers(gold, answer.right, rules) if _is_set(gold) else WRONG
        if answer.op != "=":
            return "hedged" if answer.op in (r"\approx", r"\sim", r"\ne") else WRONG
        # Only a name may precede the value: 42=41 and 41+1=42 give two values.
        return compare_answers(gold, answer.right, rules) if answer.name else "several answers"
    if gold.op == answer.op and gold.name and gold.name == answer.name:
        return compare_answers(gold.right, answer.right, rules)
    return RIGHT if _equivalent_relations(gold, answer) else WRONG


def _is_set(shape: AnswerStructure) -> bool:
    if isinstance(shape, AnswerValue):
        return shape.words == r"\emptyset"
    return isinstance(shape, ValueGroup) and shape.kind in ("set", "union", "()", "[]", "(]", "[)")


_MIRROR = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def _equivalent_relations(gold: Relation, answer: Relation) -> bool:
    """Two forms of one equation or inequality: what is zero in one is a constant times what is zero in the other."""
    if gold.op not in ("=", *_MIRROR) or answer.op not in ("=", *_MIRROR):
        return gold.op == answer.op and all(
            compare_answers(g, a) == RIGHT for g, a in ((gold.left, answer.left), (gold.right, answer.right))
        )
    if gold.name and gold.op == "=" and not _symbols(gold.right):
        return False  # 2x = 10 for x = 5 is the question, not its answer
    factor = proportional(_difference(answer), _difference(gold, is_gold=True))
    if factor is None:
        return False
    if "=" in (gold.op, answer.op):
        return gold.op == answer.op
    return answer.op == (gold.op if factor > 0 else _MIRROR[gold.op])


def _symbols(shape: AnswerStructure) -> frozenset[str]:
    return shape.symbols if isinstance(shape, AnswerValue) else frozenset()


def _difference(relation: Relation, is_gold: bool = False) -> ExpressionNode:
    sides = (relation.left, relation.right)
    if not all(isinstance(side, AnswerValue) for side in sides):
        raise OutsideGrammar if is_gold else UnreadableAnswer("malformed")
    left, right = (_tree(side, is_gold) for side in sides if isinstance(side, AnswerValue))
    return ExpressionNode("add", (left, ExpressionNode("neg", (right,))))


def _tree(value: AnswerValue, is_gold: bool) -> ExpressionNode:
    try:
        return value.tree
    except UnreadableAnswer as unreadable:
        if is_gold:
            raise OutsideGrammar from unreadable
        raise


_LETTER_UNIT = re.compile(r"(.*[0-9}])\s?(?:\\text\{)?([mgshlLVWJN])\}?")


def _same_leaf(gold: AnswerValue, answer: AnswerValue, rules: ComparisonRules) -> bool:
    if gold.words or answer.words:
        if gold.choice_letter and answer.choice_letter:
            return gold.choice_letter == answer.choice_letter
        return bool(gold.words) and gold.words == answer.comparable_words
    if remove_spaces(gold.text) == remove_spaces(answer.text):
        return True
    if gold.base or answer.base:
        return (gold.body, gold.base) == (answer.body, answer.base)
    if gold.choice_letter:
        return gold.choice_letter == answer.choice_letter
    truth = _tree(gold, True)
    answer = _match_symbols(gold, answer, truth)
    functions = applied_function_names(gold.body, answer.body)
    if functions:
        truth = gold.applied(functions)
    tree = answer.applied(functions)
    if not tree.symbols() <= truth.symbols():
        return False  # x - x + 42 is not evaluated
    if gold.degrees != answer.degrees and (gold.radians or answer.radians):
        return same_value(_in_radians(tree, answer), _in_radians(truth, gold), rules.tolerance)
    if rules.require_evaluated and is_evaluated(truth) and not is_evaluated(tree, truth):
        return False
    if gold.percent != answer.percent and (gold.unit or answer.unit):
        return False
    return any(
        _same_value(truth, gold.percent, _scale(tree, factor), answer.percent, rules.tolerance)
        for factor in conversion_factors(gold.unit, answer.unit)
    )


def _in_radians(node: ExpressionNode, of: AnswerValue) -> ExpressionNode:
    """The node as an angle in radians."""
    return ExpressionNode("degrees", (node,)) if of.degrees else node


def _scale(node: ExpressionNode, factor: Fraction) -> ExpressionNode:
    return node if factor == 1 else ExpressionNode("mul", (ExpressionNode("number", number=factor), node))


def _match_symbols(gold: AnswerValue, answer: AnswerValue, truth: ExpressionNode) -> AnswerValue:
    """The answer with its letters as the gold means them: 5 m is a length where the gold has no variable, j is the
    imaginary unit where the gold has i, and c the constant of integration where the gold has C."""
    if not answer.symbols or answer.symbols <= truth.symbols():
        return answer
    if not truth.symbols() and (match := _LETTER_UNIT.fullmatch(answer.body)):
        return replace(parse_answer_value(match[1]), unit=parse_unit(match[2]) or ())
    others = answer.symbols - truth.symbols()
    if others == {"j"} and re.search(r"(?<![A-Za-z\\])i(?![A-Za-z])", gold.body) and "i" not in answer.body:
        return parse_answer_value(re.sub(r"(?<![A-Za-z\\])j(?![A-Za-z])", "i", answer.text))
    if others == {"c"} and truth.symbols() - answer.symbols == {"C"}:
        return parse_answer_value(re.sub(r"(?<![A-Za-z\\])c(?![A-Za-z])", "C", answer.text))
    return answer


def _same_value(
    gold: ExpressionNode, gold_percent: bool, answer: ExpressionNode, answer_percent: bool, tolerance: float
) -> bool:
    """Compare values with or without a percent sign, by the rules of `numbers.same_number`."""
    if gold_percent == answer_percent:
        return same_value(answer, gold, tolerance)
    hundred = parse_answer_value("100").tree
    if not answer_percent:
        return same_value(answer, gold, tolerance) or same_value(
            answer, ExpressionNode("div", (gold, hundred)), tolerance
        )
    if same_value(ExpressionNode("div", (answer, hundred)), gold, tolerance):
        return True
    is_share = all(abs(value) < 1 for value in approximate_values(gold))
    return not is_share and same_value(answer, gold, tolerance)
