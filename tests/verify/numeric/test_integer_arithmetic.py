from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.types import Score
from ponder.verify import CountdownVerifier, evaluate_arithmetic

GOLD = {"numbers": [3, 4, 2], "target": 14}


@pytest.mark.parametrize(
    ("text", "value", "used"),
    [("(3 + 4) * 2", 14, (3, 4, 2)), ("3+4*2", 11, (3, 4, 2)), ("8/4/2", 1, (8, 4, 2)), ("1/3", "1/3", (1, 3)),
     ("10-3-2", 5, (10, 3, 2)), (r"3 \times (4 \div 2)", 6, (3, 4, 2)), ("-(2 - 5)", 3, (2, 5)), ("7", 7, (7,)),
     (r"\frac{6}{1 - \dfrac{3}{4}}", 24, (6, 1, 3, 4))],
)  # fmt: skip
def test_evaluate_arithmetic_is_exact(text, value, used):
    result = evaluate_arithmetic(text)
    assert (result.value, result.used_integers) == (Fraction(value), used)


@pytest.mark.parametrize(
    "text",
    ["", "3 4", "3 +", "(3", "3)", "()", "3 ** 4", "9**9**9", "3 // 2", "1.5", "x", "3 = 3", "__import__('os')", "1/0",
     "4/(2-2)", "(" * 90 + "1" + ")" * 90, "-" * 150 + "1", "1" * 16, "1+" * 200 + "1", "٣+4", "3,4", "2^3", "3!",
     r"\frac{1}{2", r"\frac{1}", r"\frac12", r"2\frac{1}{2}", "{3}", r"\frac{1}{0}", r"\frac{}{2}"],
)  # fmt: skip
def test_evaluate_arithmetic_gives_a_reason(text):
    assert evaluate_arithmetic(text).value is None and evaluate_arithmetic(text).reason


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda e: st.tuples(e, st.sampled_from("+-*"), e).map("({0[0]}{0[1]}{0[2]})".format),
        max_leaves=8,
    )
)
def test_evaluate_arithmetic_agrees_with_python(text):
    assert evaluate_arithmetic(text).value == eval(text)


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=30), st.text("0123456789+-*/() ", max_size=60)))
def test_evaluate_arithmetic_never_raises(text):
    result = evaluate_arithmetic(text)
    assert (result.value is None) == bool(result.reason)


@pytest.mark.parametrize(
    "text", ["<answer>(3 + 4) * 2</answer>", r"\boxed{2 * (4 + 3) = 14}", "<think>3</think><answer>2*(3+4)</answer>"]
)
def test_countdown_accepts_solutions(text):
    assert CountdownVerifier().grade(text, GOLD) == Score(1.0, "right")


@pytest.mark.parametrize(
    "text",
    ["<answer>14</answer>", "<answer>7 * 2</answer>", "<answer>4 * 3 + 2 + 0</answer>", "<answer>3 + 4 * 2</answer>",
     "<answer>(3 + 4) * 2 = 15</answer>", "<answer>(3 + 4) * 2 = 7 * 2 = 14</answer>",
     "<answer>3 * 4 + 2 or 1</answer>",
     "<think><answer>(3 + 4) * 2</answer></think>", "<answer>(3+4)*2</answer><answer>2*(3+4)</answer>", "(3 + 4) * 2",
     "<answer>(3 + 4) * 2 * 2 / 2</answer>", "<answer>2 * (4 + 3) = x</answer>", "<answer>Use 3, 4 and 2</answer>"],
)  # fmt: skip
def test_countdown_rejects_wrong_answers(text):
    assert CountdownVerifier().grade(text, GOLD).value == 0.0


def test_countdown_use_all_false_allows_unused_numbers():
    gold = {"numbers": [7, 2, 5], "target": 14}
    assert CountdownVerifier().grade("<answer>7 * 2</answer>", gold).value == 0.0
    assert CountdownVerifier(use_all=False).grade("<answer>7 * 2</answer>", gold).value == 1.0
    assert CountdownVerifier(use_all=False).grade("<answer>7 + 7</answer>", gold).value == 0.0


def test_countdown_reads_a_bare_expression():
    grade = CountdownVerifier(forms=("bare",)).grade
    assert grade("<think>hm</think> (3 + 4) * 2 = 14.", GOLD).value == 1.0
    assert grade("I say (3 + 4) * 2", GOLD).value == 0.0
    assert grade("<think>(3 + 4) * 2", GOLD).value == 0.0
    assert grade("(3 + 4) * 2\n2 * (3 + 4)", GOLD).value == 0.0


@pytest.mark.parametrize("gold", [None, 14, {"numbers": [1]}])
def test_an_unreadable_gold_is_undecided(gold):
    assert CountdownVerifier().grade("<answer>14</answer>", gold).value is None
