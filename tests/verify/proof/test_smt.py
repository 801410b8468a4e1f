"""Assignments and invariants against formulas without quantifiers."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.types import Score
from ponder.verify.proof import SmtAssignment, SmtInvariant
from ponder.verify.proof import smt as module
from ponder.verify.proof.smt import MalformedSmt, parse_formula, parse_sexprs, to_smtlib
from verify.proof.grading import block, grade_all, need

FORMULA = """
(declare-const x Int) (declare-const y Real) (declare-fun b () (_ BitVec 8)) (declare-const p Bool)
(assert (and p (= (* x x) 9) (< y 0.5) (= (bvadd b #x01) #x00)))  ; four of a kind
"""
RIGHT = ["x = -3\ny = 1/3\nb = 255\np = true", "p = true\n\n b=255 \ny = -2.5\nx = 3"]
WRONG = [
    "x = 2\ny = 1/3\nb = 255\np = true", "x = 3\ny = 0.5\nb = 255\np = true", "x = 3\ny = 0\nb = 254\np = true",
    "x = 3\ny = 0\nb = 255\np = false",
]  # fmt: skip
MALFORMED = [
    "x = 3\ny = 0\nb = 255", "x = 3\nx = 3\ny = 0\nb = 255\np = true", "x = (+ 1 2)\ny = 0\nb = 255\np = true",
    "x = y\ny = 0\nb = 255\np = true", "x = 3\ny = 1/0\nb = 255\np = true", "x = 3\ny = 0\nb = 256\np = true",
    "x = 3\ny = 0\nb = 255\np = 1", "x = 3)) (assert false\ny = 0\nb = 255\np = true", "sat", "z = 1", "x = 3.0", "x 3",
    "x = ٣\ny = 0\nb = 255\np = true", "(define-fun x () Int 3)",
]  # fmt: skip

COUNTER = {
    "state": {"x": "Int", "n": "Int"},
    "initial": "(and (= x 0) (>= n 0))",
    "step": "(and (< x n) (= x.next (+ x 1)) (= n.next n))",
    "safe": "(<= x n)",
}
INVARIANTS = ["(<= x n)", "(and (>= x 0) (<= x n))", "(not (> x n)) ; the loop's bound"]
NO_INVARIANTS = {
    "(>= x 0)": "allows what is not safe",
    "true": "allows what is not safe",
    "(=> (>= n 0) (<= x n))": "allows what is not safe",
    "false": "does not hold at the start",
    "(= x 0)": "a step does not keep it",
    "(and x 1)": "error",
    "(<= x)) (assert false": "malformed",
    "(<= x n) (<= x n)": "malformed",
    "(let ((x 0)) (<= x n))": "malformed",
    "(forall ((z Int)) (<= x n))": "malformed",
    "(<= x.next n)": "malformed",
    "|x|": "malformed",
    "(exit)": "malformed",
    '(echo "unsat")': "malformed",
    "": "no answer",
    "(" * 300 + ")" * 300: "malformed",
}


@pytest.fixture(scope="module")
def assignments() -> dict[str, Score]:
    return grade_all(SmtAssignment(), {text: (text, {"formula": FORMULA}) for text in (*RIGHT, *WRONG, *MALFORMED)})


@pytest.fixture(scope="module")
def invariants() -> dict[str, Score]:
    return grade_all(SmtInvariant(), {text: (text, COUNTER) for text in (*INVARIANTS, *NO_INVARIANTS)})


def test_smt_assignment_scores(assignments):
    assert {assignments[text] for text in RIGHT} == {Score(1.0, "right")}
    assert {assignments[text] for text in WRONG} == {Score(0.0, "wrong: the formula does not hold")}
    for text in MALFORMED:
        assert assignments[text].value == 0.0 and assignments[text].reason.startswith("malformed: "), text


def test_smt_assignment_equals_a_truth_table():
    """Against Python's own arithmetic."""
    formula = "(declare-const a Int) (declare-const b Bool) (assert (= (mod (+ (* 3 a) (ite b 1 0)) 4) 1))"
    asked = {
        f"{a} {b}": (f"a = {a}\nb = {str(b).lower()}", {"formula": formula})
        for a, b in product(range(-4, 4), (True, False))
    }
    for name, score in grade_all(SmtAssignment(), asked).items():
        a, b = name.split()
        assert (score.value == 1.0) == ((3 * int(a) + (b == "True")) % 4 == 1), name


@pytest.mark.parametrize("text", INVARIANTS)
def test_smt_invariant_scores(invariants, text):
    assert invariants[text] == Score(1.0, "right")


@pytest.mark.parametrize("text", NO_INVARIANTS)
def test_smt_invariant_rejects_malformed_formulas(invariants, text):
    assert invariants[text].value == 0.0 and NO_INVARIANTS[text] in invariants[text].reason


def test_smt_invariant_reports_a_counterexample(invariants):
    assert invariants["(= x 0)"].reason == "wrong: a step does not keep it: ((x 0)  (x.next 1)  (n 1)  (n.next 1))"


@pytest.mark.parametrize(
    "gold",
    [{}, {"formula": "(declare-const x Int) (assert (forall ((y Int)) (= x y)))"},
     {"formula": "(declare-fun f (Int) Int)"}, {"formula": "(declare-const x String)"},
     {"formula": "(declare-const x Int) (assert (= x"}, {"formula": "(declare-const x Int) (assert (= x z))"}],
)  # fmt: skip
def test_a_bad_formula_is_undecided(gold):
    need(SmtAssignment())
    score = SmtAssignment().grade(block("x = 1"), gold)
    assert score.value is None and score.reason.startswith("bad data: "), score


@pytest.mark.parametrize(
    "changed",
    [{"state": 1}, {"state": {"x y": "Int"}}, {"safe": "(<= x zz)"}, {"step": "(exists ((z Int)) true)"}],
)
def test_a_bad_system_is_undecided(changed):
    need(SmtInvariant())
    score = SmtInvariant().grade(block("(<= x n)"), {**COUNTER, **changed})
    assert score.value is None and score.reason.startswith("bad data: "), score


def test_what_z3_cannot_decide_is_undecided():
    need(SmtInvariant())
    cubes = {"state": {"x": "Int", "y": "Int", "z": "Int"}, "initial": "true", "step": "true",
             "safe": "(not (= (+ (* x x x) (* y y y) (* z z z)) 114))"}  # fmt: skip
    hard = "(not (= (+ (* x x x) (* y y y) (* z z z)) 114))"
    score = SmtInvariant(module.checker_limits(1)).grade(block(hard), cubes)
    assert score.value is None, score


def test_missing_z3_is_undecided(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    score = SmtAssignment().grade(block("x = 1"), {"formula": FORMULA})
    assert score.value is None and "pip install z3-solver" in score.reason


ATOMS = st.sampled_from(["x", "n", "1", "2.5", "and", "<="])


@given(st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_to_smtlib_is_the_inverse_of_parse_sexprs(tree):
    assert parse_sexprs(to_smtlib(tree)) == [tree]
    assert parse_formula(to_smtlib(tree), frozenset({"x", "n"})) == tree


@given(st.text('()x1 ;|"\n', max_size=30))
def test_parse_formula_reads_all_text(text):
    with suppress(MalformedSmt):
        assert parse_sexprs(to_smtlib(parse_formula(text, frozenset("x")))) == parse_sexprs(text)
