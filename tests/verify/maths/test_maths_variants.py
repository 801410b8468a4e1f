"""Wrong answers made by reading the grader, none of which passes, and honest ones, all of which do."""

import json
import os
from pathlib import Path

import pytest

from maths_variants import EXPLOITS, HONEST
from ponder.verify import MathAnswer
from ponder.verify.maths.equivalence import comparison_seed, draw_point, proportional, same_value
from ponder.verify.maths.expression_tree import parse_expression
from ponder.verify.maths.function_names import applied_function_names

VERIFIER = MathAnswer()
PATIENT = MathAnswer(timeout_seconds=120)  # where the jail decides, a busy machine must not


@pytest.mark.parametrize(("gold", "output"), EXPLOITS)
def test_exploits_of_the_grader_score_zero(gold, output):
    score = VERIFIER.grade(output, gold)
    assert score.value == 0.0, score


@pytest.mark.parametrize(("gold", "output"), HONEST)
def test_honest_answers_in_other_notations_score_one(gold, output):
    score = PATIENT.grade(output, gold)
    assert score.value == 1.0, score


def test_variant_lists_are_long_without_repeats():
    assert len(set(EXPLOITS)) == len(EXPLOITS) >= 150 and len(set(HONEST)) == len(HONEST) >= 150


def test_draw_point_is_deterministic_for_each_comparison():
    x, other = parse_expression("x"), parse_expression("x+0")
    first, second = comparison_seed(x, x), comparison_seed(other, x)
    assert draw_point({"x"}, 0, first) == draw_point({"x"}, 0, comparison_seed(x, x)) != draw_point({"x"}, 0, second)
    points = [draw_point({"x"}, n, first, beyond=100)["x"] for n in range(10)]
    assert min(points) < -(10**100) and max(points) > 10**100 and min(map(abs, points)) < 10**-100


def test_a_polynomial_with_chosen_roots_is_not_zero():
    """What the points of one comparison were is of no use in the next: the answer that uses them draws others."""
    x = parse_expression("x")
    known = [draw_point({"x"}, n, comparison_seed(x, x))["x"] for n in range(10)]
    factors = "".join(f"(x-({p.numerator})/({p.denominator}))" for p in known)
    assert same_value(parse_expression(f"x+0{factors}"), x) and not same_value(parse_expression(f"x+{factors}"), x)


def test_equations_with_tiny_differences_are_not_equal():
    gold = parse_expression(r"y-\pi x")
    assert proportional(parse_expression(r"2\pi x-2y"), gold) == -2.0
    assert proportional(parse_expression(r"(y-\pi x)(1+10^{-400}x)"), gold) is None


@pytest.mark.parametrize(
    ("gold", "answer", "functions"),
    [("f(x+y)", "f(x)+f(y)", {"f"}), ("n(n+1)", "n^2+n", set()), ("a(b+c)", "ab+ac", set()), ("P(1+r)^n", "P", set()),
     ("h(x+y)", "h(x)+h(y)", {"h"}), (r"\phi(2x)", r"2\phi(x)", {"phi"}), ("f_1(x)", "f_1(x)", {"f_1"}),
     ("x", "f(x)", set())],
)  # fmt: skip
def test_applied_function_names_by_example(gold, answer, functions):
    assert applied_function_names(gold, answer) == functions


def test_a_slow_answer_is_wrong_and_a_slow_gold_undecided():
    pytest.importorskip("math_verify")
    cheap, slow = r"\sum_{k=1}^{n} k^2", r"\prod_{k=1}^{10^{9}} k"
    judge = MathAnswer(timeout_seconds=0.5)
    PATIENT.grade(rf"\boxed{{{cheap}}} ", r"\sum_{j=1}^{n} j^2")  # the jail has started
    assert judge.grade(r"\boxed{\sum_{k=1}^{10^{9}} k^{k}}", cheap).value == 0.0
    assert judge.grade(r"\boxed{\prod_{k=1}^{10^{8}} k}", slow).value is None


def attacks(name):
    root = os.environ.get("PONDER_ATTACKS")
    path = Path(root, name) if root else None
    if path is None or not path.exists():
        pytest.skip(f"no {name}: PONDER_ATTACKS names no folder that holds it")
    return json.loads(path.read_text())


def test_shared_exploits_score_zero():
    wrong = [row for row in attacks("math_exploits_2.json") if not row["name"].startswith("(true")]
    accepted = [row for row in wrong if VERIFIER.grade(row["output"], row["gold"]).value == 1.0]
    assert [(row["gold"], row["output"]) for row in accepted] == [("1,2,3", r"\boxed{3,1,2}")]  # solutions have none


def test_shared_honest_answers_score_one():
    refused = [row for row in attacks("math_honest.json") if PATIENT.grade(row["output"], row["gold"]).value != 1.0]
    assert refused == []
