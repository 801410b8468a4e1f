"""MathAnswer: every way of writing the right answer, and every way of writing none that should look like it."""

import asyncio
import itertools
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from maths_cases import EXPLOITS, HOSTILE, RIGHT, TEXT_FORMS, UNEVALUATED
from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import ANSWER_FORMS, MathAnswer, format_answer
from ponder.verify.maths.equivalence import approximate_values, same_value
from ponder.verify.maths.expression_tree import parse_expression
from ponder.verify.maths.normalize_latex import OutsideGrammar
from processor_time import processor_time_below

VERIFIER = MathAnswer()
REASONS = {"wrong", "malformed", "hedged", "several answers", "no answer", "too long", "too large"}


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right_answers_in_other_notations_score_one(gold, answer):
    score = VERIFIER.grade(rf"So it is $\boxed{{{answer}}}$.", gold)
    assert (score.value, score.reason) == (1.0, "right")


@pytest.mark.parametrize(("gold", "answer"), EXPLOITS)
def test_exploits_score_zero(gold, answer):
    score = VERIFIER.grade(rf"\boxed{{{answer}}}", gold)
    assert score.value == 0.0 and score.reason in REASONS


@pytest.mark.parametrize(("gold", "answer"), UNEVALUATED)
def test_require_evaluated_rejects_unevaluated_numbers(gold, answer):
    assert VERIFIER.grade(rf"\boxed{{{answer}}}", gold).value == 0.0
    assert MathAnswer(require_evaluated=False).grade(rf"\boxed{{{answer}}}", gold).value == 1.0
    assert VERIFIER.grade(rf"\boxed{{({answer}, 1)}}", f"({gold}, 1)").value == 0.0


def test_a_percent_sign_after_the_box_is_part_of_the_answer():
    assert [VERIFIER.grade(r"$\boxed{42}\%$", gold).value for gold in ("42", r"42\%", "0.42", "4.2")] == [
        0.0,
        1.0,
        1.0,
        0.0,
    ]


@pytest.mark.parametrize("text", TEXT_FORMS)
def test_text_that_changes_the_answer_scores_zero(text):
    score = VERIFIER.grade(text.replace("\\n", "\n"), "42")
    assert score.value == 0.0 and score.reason in REASONS


@pytest.mark.parametrize(
    "text",
    [r"6 * 7 is \boxed{42}, which is the product of 6 and 7.", r"\boxed{42} percent", r"\boxed{42}^\circ",
     r"\boxed{42} \text{ kilometers}", r"\(\boxed{42}\) minutes.", "<answer> 42 </answer>", "6 * 7 = 42\n#### 42",
     "Answer: $42$", "**Final Answer:** 42", r"<think>41? \boxed{41}</think> \boxed{42}",
     r"<answer>\boxed{42}</answer>", r"2 is not prime. So \boxed{42}."],
)  # fmt: skip
def test_text_that_explains_the_answer_scores_one(text):
    assert VERIFIER.grade(text, "42").value == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]"),
     (r"\sqrt{51}", "√51"), ("6√2", r"6\sqrt{2}"), (r"6:30\text{ p.m.}", "6:30 p.m."),
     (r"6:30\text{ PM}", "6:30 p.m.")],
)  # fmt: skip
def test_unicode_signs_and_array_brackets_are_read(gold, answer):
    assert VERIFIER.grade(rf"\boxed{{{answer}}}", gold).value == 1.0


@pytest.mark.parametrize("form", ANSWER_FORMS)
@pytest.mark.parametrize("gold", ["42", r"\frac{1}{2}", "(1,2)", "x^2 + 1", r"\{1, 2\}", "Tuesday"])
def test_each_form_accepts_its_gold(form, gold):
    assert MathAnswer(forms=(form,)).grade(format_answer(gold, form), gold).value == 1.0


def test_allow_repeats_accepts_the_same_box_twice():
    text = r"\boxed{42}, and to check: \boxed{42}"
    assert VERIFIER.grade(text, "42").reason == "several answers"
    assert MathAnswer(allow_repeats=True).grade(text, "42").value == 1.0
    assert MathAnswer(allow_repeats=True).grade(r"\boxed{41}, or \boxed{42}", "42").reason == "several answers"


def test_tolerance_is_relative_and_off_by_default():
    assert VERIFIER.grade(r"\boxed{3.14}", r"\pi").value == 0.0
    close = MathAnswer(tolerance=1e-3)
    assert close.grade(r"\boxed{3.14}", r"\pi").value == 1.0
    assert close.grade(r"\boxed{3.13}", r"\pi").value == 0.0
    assert close.grade(r"\boxed{(1.0001, 2)}", "(1, 2)").value == 1.0
    assert close.grade(r"\boxed{0.0001}", "0").value == 0.0


@pytest.mark.parametrize("gold", [None, "", "  ", "$$", r"\boxed{}", "4\x002"])
def test_an_empty_gold_is_undecided(gold):
    score = VERIFIER.grade(r"\boxed{42}", gold)
    assert score.value is None and score.reason.startswith("bad data")


def test_gold_of_other_types_is_read_as_text():
    assert VERIFIER.grade(r"\boxed{42}", 42).value == 1.0
    assert VERIFIER.grade(r"\boxed{0.5}", 0.5).value == 1.0
    assert VERIFIER.grade(r"\boxed{42}", r"\boxed{42}").value == 1.0


@pytest.mark.parametrize(
    "bad",
    [{"forms": ("box",)}, {"tolerance": 1.0}, {"tolerance": -0.1}, {"answer_regex": "("}, {"answer_regex": "no group"},
     {"max_answer_chars": 0}, {"timeout_seconds": 0}],
)  # fmt: skip
def test_invalid_settings_are_refused(bad):
    with pytest.raises(UsageError):
        MathAnswer(**bad)


def test_math_answer_is_a_scorer():
    assert isinstance(VERIFIER, Scorer) and VERIFIER.name == "accuracy"
    steps = [Step(None, "", ids([])), *(Step(0, t, ids([])) for t in (r"\boxed{\frac12}", r"\boxed{2}", "?"))]
    scores = asyncio.run(VERIFIER(Trace(Problem("p", user_messages("?"), "0.5"), steps), [1, 2, 3]))
    assert [(s.value, s.reason) for s in scores] == [(1.0, "right"), (0.0, "wrong"), (0.0, "no answer")]


def test_extract_answer_normalizes_for_votes():
    assert VERIFIER.extract_answer(r"\boxed{0.5}") == VERIFIER.extract_answer(r"\boxed{\frac{1}{2}}") == "1/2"
    assert VERIFIER.extract_answer(r"\boxed{x + 1}") == VERIFIER.extract_answer("<answer>$x+1$</answer>") == "x+1"
    assert VERIFIER.extract_answer("no") is None and VERIFIER.extract_answer("\\boxed{\u200b5}") is None


@pytest.mark.parametrize("wrap", [r"\boxed{%s}", "<answer>%s</answer>", "Answer: %s", r"\boxed{(%s, 1)}"])
def test_grade_is_fast_on_hostile_answers(wrap):
    VERIFIER.grade(r"\boxed{\pi}", "5")  # the library that works out digits is imported once
    slow = []
    for answer in HOSTILE:
        for gold in ("5", "x+1", "(3, 1)"):
            before = time.thread_time()
            score = VERIFIER.grade(wrap.replace("%s", answer), gold)
            slow.append((time.thread_time() - before, answer[:40]))
            assert score.value in (0.0, None), (answer, gold, score)
    assert max(slow)[0] < 2, max(slow)


@pytest.mark.parametrize(
    "piece", ["$1,", "or ", "not ", "answer is ", "don't think ", "\\boxed{", "# ", " ", "\\text{", "wait"]
)
def test_grade_is_fast_on_long_texts(piece):
    text = piece * (200_000 // len(piece))
    before = time.thread_time()
    for whole in (text, "\\boxed{42}" + text, text + "\\boxed{42}", "\\boxed{" + text + "}", "Answer: " + text):
        VERIFIER.grade(whole, "42")
    assert time.thread_time() - before < 10


SYMBOLS = ["x", "y", "\\pi", "e", "2", "3", "10", "0.5", "\\frac{1}{2}", "\\sqrt{2}", "i"]


@st.composite
def expressions(draw, depth=2):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(SYMBOLS))
    a, b = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return draw(st.sampled_from([f"({a}+{b})", f"({a}-{b})", f"({a})({b})", rf"\frac{{{a}}}{{{b}}}", f"({a})^2"]))


@settings(max_examples=60, deadline=None)
@given(expressions(), expressions())
def test_equality_agrees_with_sympy(a, b):
    """An independent judge: at a point of its own, sympy finds no difference between the same two trees."""
    sympy = pytest.importorskip("sympy")
    known = {"x": sympy.Symbol("x"), "y": sympy.Symbol("y"), "pi": sympy.pi, "e": sympy.E, "i": sympy.I}

    def value(node):
        if node.number is not None:
            return sympy.Rational(node.number.numerator, node.number.denominator)
        if node.op == "symbol":
            return known[node.name]
        parts = [value(part) for part in node.parts]
        if node.op == "add":
            return sympy.Add(*parts)
        if node.op == "mul":
            return sympy.Mul(*parts)
        if node.op == "neg":
            return -parts[0]
        if node.op == "root":
            return sympy.root(parts[0], parts[1])
        return parts[0] / parts[1] if node.op == "div" else parts[0] ** parts[1]

    first, second = parse_expression(a), parse_expression(b)
    try:
        verdict = same_value(first, second)
    except OutsideGrammar:
        return
    there = {known["x"]: sympy.Rational(7, 5), known["y"]: sympy.Rational(-11, 3)}
    difference = sympy.N((value(first) - value(second)).subs(there), 40)
    if difference.is_finite:
        assert verdict == (abs(difference) < 1e-30)


@settings(max_examples=150, deadline=None)
@given(expressions(), st.sampled_from(["({})", "{}", "  {} ", r"\left({}\right)", "1*({})", "({})/1", "0+({})"]))
def test_an_expression_equals_itself_rewritten(text, rewrite):
    assume(approximate_values(parse_expression(text)))  # not where it divides by zero
    score = MathAnswer(require_evaluated=False).grade(rf"\boxed{{{rewrite.replace('{}', text)}}}", text)
    assert score.value == 1.0


PIECES = ["\\boxed{", "}", "{", "(", ")", "[", "]", "\\{", "\\}", ",", ";", "=", "<", "\\le", "\\in", "\\cup", "\\pm",
          "x", "42", ".", "\\frac", "\\sqrt", "^", "_", "!", "|", "%", "\\%", "\\text{", " or ", "and", "\\pi",
          "\\infty", "\\sin",
          "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", ":", "-", "+", "/", "*", "\\", "$", "٥", "\x00", "\ud800",
          "\\overline{", "\\log_", "\\circ", "i", "e"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.sampled_from(["42", "x", "(1,2)", "x=1", "y>2"]),
)
def test_random_answers_neither_raise_nor_score(text, gold):
    score = VERIFIER.grade(rf"\boxed{{{text}}}", gold)
    assert score.value is not None, score
    assert score.value == 0.0 or gold.strip("()")[0] in text, (text, gold)


def test_grade_is_thread_safe():
    wrong = []

    def work():
        for _ in range(30):
            for gold, answer in RIGHT[:20]:
                if VERIFIER.grade(rf"\boxed{{{answer}}}", gold).value != 1.0:
                    wrong.append((gold, answer))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def folder(*parts):
    root = os.environ.get("PONDER_DATA")
    path = Path(root, *parts) if root else None
    if path is None or not path.exists():
        pytest.skip(f"no {'/'.join(parts)} under PONDER_DATA")
    return path


def test_shared_exploit_list_scores_zero():
    for row in json.loads(folder("..", "attacks", "math_exploits.json").read_text()):
        if row["correct"] is not None:
            unworked = row["name"] in ("sqrt sign", "sum of choices", "unevaluated")  # right in value, and restated
            score = MathAnswer(require_evaluated=not unworked).grade(row["output"], row["gold"])
            assert (score.value == 1.0) == row["correct"], (row, score)


def test_shared_hostile_list_is_graded():
    for row in json.loads(folder("..", "attacks", "math_hostile.json").read_text()):
        for text in (row["output"], rf"\boxed{{{row['output'].strip('$')}}}"):
            with processor_time_below(20, row["name"]):
                assert VERIFIER.grade(text, row["gold"]).value in (0.0, None), row["name"]


def test_math500_accepts_its_golds_and_nothing_of_its_neighbours():
    rows = [json.loads(line) for line in folder("math500", "test.jsonl").read_text().splitlines()]
    golds = [row["answer"] for row in rows]
    assert [g for g in golds if VERIFIER.grade(rf"\boxed{{{g}}}", g).value != 1.0] == []
    refused = [
        row["answer"]
        for row in rows
        if MathAnswer(allow_repeats=True).grade(row["solution"], row["answer"]).value != 1.0
    ]
    assert len(refused) <= 5, refused  # 1 %
    for gold, other in itertools.pairwise(golds):
        if gold.rpartition("=")[2] != other.rpartition("=")[2]:
            assert VERIFIER.grade(rf"\boxed{{{other}}}", gold).value == 0.0, (gold, other)


def test_gsm8k_accepts_its_golds():
    for line in folder("gsm8k", "test.jsonl").read_text().splitlines():
        answer = json.loads(line)["answer"]
        gold = answer.rpartition("####")[2].strip()
        assert VERIFIER.grade(answer, gold).value == 1.0, gold
