"""The maths grader: what equals the gold is right however it is written, what differs never is, and no text whatever
makes it crash."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.verify import MathAnswer
from ponder.verify.numeric import numbers as plain_numbers

VERIFIER = MathAnswer(timeout_seconds=10)  # where the jail decides, a busy machine must not
PLACES = (r"\boxed{%s}", "<answer>%s</answer>", "#### %s", r"So it is $\boxed{%s}$.", "</think>\\boxed{%s}")
INTEGERS = st.integers(-(10**12), 10**12)
SMALL = st.integers(-9, 9)
TOKENS = st.sampled_from([
    *"0123456789xyabinef+-*/^_=<>,;:.()[]{}|!?%$&~'\" \n", r"\frac", r"\sqrt", r"\pi", r"\cdot", r"\times", r"\text",
    r"\boxed", r"\left", r"\right", r"\{", r"\}", r"\infty", r"\cup", r"\in", r"\pm", r"\le", r"\%", r"\circ", r"\sum",
    r"\int", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", r"\pmod", r"\log", r"\sin", r"\overline", r"\mathbb{R}",
    "10^{", "!!", "e^", "999999", "0.", "or", "and", "apples", "cm", "½", "²", "−", "π", "∞", "٣", "\u200b", "\ud800",
    "<answer>", "</answer>", "####", "</think>", "answer is", "Answer:",
])  # fmt: skip
SOUP = st.lists(TOKENS, max_size=12).map("".join)
GOLDS = st.sampled_from([
    "42", "-1.5", r"\frac{1}{3}", "x^2+1", "(1,2)", "[0,1)", r"\{1,2,3\}", r"\sqrt{2}", r"2\pi", "A", "yes", "5\\%",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "y=2x+1", r"x\le 3", r"90^\circ", "3 cm", r"1 \pmod 5", "10^{100}", "",
])  # fmt: skip


def written(number: Fraction) -> list[str]:
    """Ways to write one number that every reader must know."""
    top, below = abs(number.numerator), number.denominator
    sign = "-" if number < 0 else ""
    if below == 1:
        return [f"{sign}{top}", f"{sign}{top:,}", f"{sign}{top}.0", f"{sign}{top}.", f"${sign}{top}$", f" {sign}{top} "]
    return [f"{sign}{top}/{below}", rf"{sign}\frac{{{top}}}{{{below}}}", rf"{sign}\dfrac{{{top}}}{{{below}}}",
            rf"\frac{{{sign}{top}}}{{{below}}}", rf"{sign}\frac{{{3 * top}}}{{{3 * below}}}"]  # fmt: skip


def verdict(output: str, gold: str) -> float | None:
    score = VERIFIER.grade(output, gold)
    assert score.value in (0.0, 1.0, None) and not score.reason.startswith("crashed"), (output, gold, score)
    return score.value


@pytest.mark.parametrize(("gold", "output", "wanted"), corpus("math_answer"))
def test_corpus_of_math_answer(gold: str, output: str, wanted: Any) -> None:
    score = verdict(output, gold)
    assert wanted == "any" or score == wanted


@fuzz(INTEGERS, INTEGERS.map(abs), st.data())
def test_a_number_scores_one_in_any_notation(above: int, below: int, data: st.DataObject) -> None:
    number = Fraction(above, below % 1000 + 1)
    gold, answer = (data.draw(st.sampled_from(written(number))) for _ in range(2))
    assert verdict(data.draw(st.sampled_from(PLACES)) % answer, gold) == 1.0


@fuzz(INTEGERS, INTEGERS, st.integers(1, 99), st.data())
def test_another_number_scores_zero(one: int, other: int, below: int, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([other, one + 1, -one, one * 10, one // 10, one + 10**6]))
    number, wrong = Fraction(one, below), Fraction(other, data.draw(st.sampled_from([below, 1, 100 * below])))
    assume(number != wrong)
    gold, answer = (data.draw(st.sampled_from(written(n))) for n in (number, wrong))
    place = data.draw(st.sampled_from(PLACES))
    assert verdict(place % answer, gold) == 0.0
    both = place % answer + "\n" + place % data.draw(st.sampled_from(written(number)))
    assert verdict(both, gold) == 0.0, "who gives two answers gives none"


def polynomial(coefficients: list[int]) -> str:
    terms = [f"{c:+d}" + ("", "x", f"x^{{{power}}}")[min(power, 2)] for power, c in enumerate(coefficients) if c]
    return "".join(reversed(terms)).removeprefix("+") or "0"


def product(a: list[int], b: list[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


@fuzz(st.lists(SMALL, min_size=2, max_size=3), st.lists(SMALL, min_size=2, max_size=3), SMALL)
def test_a_polynomial_equals_its_product_and_no_other(a: list[int], b: list[int], change: int) -> None:
    whole = product(a, b)
    assume(any(whole[1:]) and any(a[1:]) and any(b[1:]))  # a number is to be worked out, and x stays in it
    factors = f"({polynomial(a)})({polynomial(b)})"
    spoilt = [whole[0] + change, *whole[1:]]
    assert verdict(rf"\boxed{{{factors}}}", polynomial(whole)) == 1.0
    assert verdict(rf"\boxed{{{polynomial(whole)}}}", factors) == 1.0
    assert verdict(rf"\boxed{{{polynomial(spoilt)}}}", polynomial(whole)) == float(change == 0)
    assert verdict(rf"\boxed{{{polynomial(spoilt)}}}", factors) == float(change == 0)


@fuzz(SOUP, GOLDS)
def test_any_text_gets_a_deterministic_score(text: str, gold: str) -> None:
    for output in (text, rf"\boxed{{{text}}}"):
        assert verdict(output, gold) == verdict(output, gold)


@fuzz(SOUP, SOUP)
def test_any_gold_gets_a_score_or_is_undecided(text: str, gold: str) -> None:
    verdict(rf"\boxed{{{text}}}", gold)
    VERIFIER.extract_answer(text)


@fuzz(st.text(max_size=300) | SOUP)
def test_any_text_is_a_number_or_has_a_reason(text: str) -> None:
    number = plain_numbers.parse_plain_number(text)
    assert (number.value is None) == bool(number.reason)
    if number.value is not None:
        assert plain_numbers.same_number(number, number)
