"""What stands around an answer, or behind its figure, can make another answer of it."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.verify import FinalNumber, FinalText, MathAnswer, MultipleChoice
from ponder.verify.answers import hedging
from ponder.verify.answers.hedging import is_denied, is_part_of_expression
from ponder.verify.numeric.units import NO_UNIT, Unit, conversion_factors, parse_unit
from processor_time import processor_time_below

VERIFIERS = [FinalNumber(), MathAnswer()]

OTHER_VALUES = [
    r"-\boxed{42}", r"$-\boxed{42}$", r"$=-\boxed{42}$", r"the answer is -\boxed{42}", r"1 - \boxed{42}",
    r"$x - \boxed{42}$", r"$2\cdot\boxed{42}$", r"2\boxed{42}", r"2*\boxed{42}", r"$\pm\boxed{42}$",
    r"$\frac{1}{\boxed{42}}$", r"$\frac1{\boxed{42}}$", r"$\frac{\boxed{42}}{2}$", r"$\sqrt{\boxed{42}}$",
    r"$\sqrt[3]{\boxed{42}}$", r"$\ln\boxed{42}$", r"$10^{\boxed{42}}$", r"$x_\boxed{42}$", r"$x > \boxed{42}$",
    r"$\boxed{42}!$", r"${\boxed{42}}^2$", r"$\boxed{42}x$", r"$\boxed{42}i$", r"$\boxed{42}\pi$",
    r"$\boxed{42}\sqrt{2}$", r"\boxed{42}e3",
    r"\boxed{42}.5", r"$\boxed{42} \text{ thousand}$", r"$\boxed{42} \ne x$", r"$x \neq \boxed{42}$",
]  # fmt: skip
TAKEN_BACK = [
    r"Either \boxed{42}.", r"Not \boxed{42}", r"$\neg\boxed{42}$", r"The answer isn't \boxed{42}",
    r"I doubt that it is \boxed{42}", r"It is wrong to say it is \boxed{42}", r"\boxed{42} (if not, then 41)",
    r"\boxed{42}. Sorry, I meant 41.", r"\boxed{42}, but 41 is also possible", "My answer: 41. Answer: 42",
]  # fmt: skip
OTHER_FIGURES = [
    "42^2", "42^{3}", "42²", "~42", r"42\text{ lakh}", r"42\text{ bn}", r"42\text{ M}", r"42\text{ per mille}",
    r"42\text{ basis points}", r"42\text{ doubled}", r"42\text{ twice}", r"42\text{ unless even}", r"42\text{ versus}",
    r"42\text{ minimum}", r"42\text{ max}", r"42\text{ excluded}", r"42\text{ never}", r"42\text{ no}",
]  # fmt: skip
SAME = [
    r"- \boxed{42}", "Sum:\n- \\boxed{42}", r"* $\boxed{42}$", r"**\boxed{42}**", r"*\boxed{42}*", r"=> \boxed{42}",
    r"--> \boxed{42}", r"Final answer - \boxed{42}", r"Final answer – \boxed{42}", r"1. \boxed{42}", r"$=\boxed{42}$",
    r"\$\boxed{42}", r"$\approx \boxed{42}$", r"$\boxed{42}^\circ$", r"$\boxed{42}\text{ cm}^2$", r"\boxed{42}cm",
    r"\boxed{42}!", r"$\boxed{42}$-th", r"{\boxed{42}}", r"\textbf{\boxed{42}}", r"\boxed{42\,\text{km}}",
    r"\boxed{42~\text{km}}", r"\boxed{42 ~\mathrm{~cm}}", r"\boxed{42°C}", r"\boxed{42^\circ\text{F}}", r"\boxed{€42}",
    r"\boxed{42\text{ cm}^2}", r"\boxed{42 \text{ sit ups}}", "The best answer is 42.", "Our answer is 42.",
    "6 * 7 = 42<answer>42</answer>", "= 6 * <answer>42</answer>",
]  # fmt: skip


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("text", [*OTHER_VALUES, *TAKEN_BACK, *(rf"\boxed{{{figure}}}" for figure in OTHER_FIGURES)])
def test_hedged_or_changed_answers_score_zero(verifier, text):
    score = verifier.grade(text, "42")
    assert score.value == 0.0 and score.reason, score


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("text", SAME)
def test_honest_answers_with_surrounding_text_score_one(verifier, text):
    assert verifier.grade(text, "42").value == 1.0, verifier.grade(text, "42")


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [(r"10\text{ cm}", r"10\text{ m}", False), (r"10\text{ cm}", r"10\text{ cm}^2", False),
     (r"10\text{ cm}", r"10\%", False), (r"10\text{ cm}", "10 centimeters", True), ("10", r"10\text{ m}", True),
     (r"\$5", r"5\text{ cents}", False), (r"\$5", r"5\%", False), (r"\$5", r"5\text{ dollars}", True),
     (r"\$5", "5", True), ("5 euros", r"\$5", False), ("20°C", "20°F", False), ("20°C", r"20^\circ", True),
     (r"3\text{ cm}^2", "3 cm²", True), (r"3\text{ cm}^2", "3 cm³", False),
     ("0.5", r"0.5\%", False), ("0.5", r"50\%", True), (r"\frac{1}{3}", r"\frac{1}{3}\%", False),
     (r"0.5\%", "0.5", True), ("5", r"5\%", True), (r"5\%", "0.05", True)],
)  # fmt: skip
def test_a_unit_or_percent_sign_changes_the_quantity(verifier, gold, answer, right):
    assert verifier.grade(rf"\boxed{{{answer}}}", gold).value == float(right)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [(r"2:00\text{ PM}", r"2:00\text{ AM}", False), (r"2:00\text{ PM}", r"2:00\text{ p.m.}", True),
     (r"\frac{\pi}{2}", r"\frac{\pi}{2}^\circ", False), (r"\frac{\pi}{2}", r"\frac{\pi}{2}\text{ radians}", True),
     (r"\frac{\sqrt{2}}{2}", r"\frac{\sqrt{2}}{2}\%", False), (r"3\sqrt{2}", r"~3\sqrt{2}", False)],
)  # fmt: skip
def test_hedged_expressions_score_zero(gold, answer, right):
    assert MathAnswer().grade(rf"\boxed{{{answer}}}", gold).value == float(right)


@pytest.mark.parametrize(
    "after",
    [". No, it is A.", ". On reflection, A.", ". However, A is better.", " (A)", ", A", "/A", "; second choice: A",
     ". C fits too."],
)  # fmt: skip
def test_a_second_choice_letter_is_a_second_answer(after):
    assert MultipleChoice().grade(rf"\boxed{{B}}{after}", "B").value == 0.0


@pytest.mark.parametrize(
    "text",
    [r"\boxed{B}. A fish lives in water.", r"\boxed{B}, as I said.", r"\boxed{B}: option B it is.",
     "The correct option is B.", "The best answer is (B)."],
)  # fmt: skip
def test_words_after_a_choice_are_not_letters(text):
    assert MultipleChoice().grade(text, "B").value == 1.0


def test_final_text_rejects_a_denied_answer():
    verifier = FinalText(forms=("tag", "line"))
    for text in ("I don't think the answer is yes.", "not <answer>yes</answer>", "It is false that the answer is yes"):
        assert verifier.grade(text, "yes").value == 0.0, text


@pytest.mark.parametrize("piece", ["-", "not ", "\\frac{", "{1}", "\\sqrt[", "1 - ", "doubt ", "don't think ", "$)]\\"])
def test_hedging_rules_are_fast_on_long_text(piece):
    text = piece * 10_000
    with processor_time_below(1.0):
        for _ in range(200):
            is_denied(text), is_part_of_expression(text, text)


WORDS = [
    "or", "OR", "either", "neıther", "not", "n't", "n’t", "≠", "¬", r"\ne", r"\neg", r"\not", "do not", "think",
    "thinK", "say", "ſay", "wrong", "falſe", "to", "that", "doubt", "unlikely", "unlİkely", "-", "−", "+", "*", "×",
    "<", ">", "^", "_", "{", "(", "[3]", "]", "=", "1", "٣", r"\frac", r"\sqrt", r"\cdot", r"\ln", "x", ".", "\n",
]  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.one_of(st.sampled_from([*WORDS, " ", " "]), st.text(max_size=2)), max_size=12).map("".join))
def test_prefilters_do_not_change_verdicts(text):
    """The patterns alone are the rule; what is asked before them only saves their time."""
    patterns = ((hedging._ALTERNATIVE_BEFORE, 20), (hedging._DOUBT_BEFORE, 120), (hedging._VALUE_MODIFIER, 60))
    readings = list(hedging._readings(text))
    assert is_denied(text) == any(pattern.search(r[-near:]) for pattern, near in patterns for r in readings)
    operator = hedging._OPERATOR_BEFORE.search(readings[0][-100:]) or hedging._THIN_SPACE_BEFORE.search(text)
    assert is_part_of_expression(text, "") == bool(operator)


def test_parse_unit_gives_dimensions_and_sizes():
    assert parse_unit("square centimeters") == parse_unit("cm", "²") == parse_unit("sq. cm") == parse_unit("cm^2")
    assert parse_unit("m s^{-1}") == parse_unit("meters per second") == parse_unit("m/s")
    assert conversion_factors(parse_unit("m/s"), parse_unit("km/h")) == (Fraction(5, 18),)
    assert (
        conversion_factors(parse_unit("lb"), parse_unit("pounds"))
        == conversion_factors(parse_unit("gbp"), parse_unit("pounds"))
        == (1,)
    )
    assert (
        conversion_factors(parse_unit("cm"), parse_unit("cm^2"))
        == conversion_factors(parse_unit("dollars"), parse_unit("rupees"))
        == ()
    )
    assert conversion_factors((), parse_unit("cm")) == conversion_factors(parse_unit("liters"), ()) == (1,)
    assert conversion_factors(parse_unit("cubic decimeters") or (NO_UNIT,), parse_unit("liters")) == (1,)


def test_parse_unit_accepts_only_counted_nouns_beside_units():
    assert parse_unit("red apples") == parse_unit("apples") == (Unit(counted_noun="apple"),)
    assert conversion_factors(parse_unit("apples"), parse_unit("oranges")) == ()
    for words in ("in octal", "repeating", "ish", "halved", "pairs", "quarters", "K", "rounded up", "of them doubled"):
        assert parse_unit(words) is None, words


SPACES = [
    "   ",
    "\t",
    "\u00a0",
    "\u2009",
    " \t ",
    r"\,",
    r"\;",
    "~",
    "~~",
    r"\ ",
    r"\quad ",
    "\n",
    " \n",
    "&nbsp;",
    " " * 130,
]
DENYING = ["not", "less than", "anything but", "the opposite of", "I don't think it is", "It is wrong to say it is"]
CHANGING = ["in binary", "in base 7", "or so", "and a half", "to the power of 2", "below zero"]
RETRACTING = [
    ". On second thoughts, no.",
    ". That is wrong.",
    " isn't right",
    ", but not sure",
    ". I made a mistake",
    " is a lie",
]


def spaced(words: str, space: str) -> str:
    return words.replace(" ", space)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_hedges_count_whatever_spaces_separate_them(verifier, space: str) -> None:
    texts = [f"{spaced(words, space)}{space}\\boxed{{42}}" for words in DENYING]
    texts += [f"\\boxed{{42}}{space}{spaced(words, space)}" for words in CHANGING]
    texts += [f"\\boxed{{42}}{spaced(words, space)}" for words in RETRACTING]
    assert {text: score for text in texts if (score := verifier.grade(text, "42")).value != 0.0} == {}
    assert verifier.grade(f"It{space}is \\boxed{{42}}{space}.", "42").value == 1.0


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    "text",
    [r"$2\,\boxed{42}$", r"$2\!\boxed{42}$", r"$1 -\,\boxed{42}$", r"$1 -  \boxed{42}$", r"$2 \times~\boxed{42}$",
     r"$\boxed{42}\,x$", r"$\boxed{42}\!!$", r"$\boxed{42}~\times 2$", r"$\boxed{42}\,\text{thousand}$",
     r"$\boxed{42}\text{ in}~\text{binary}$", r"$\boxed{42}\;\text{in}\;\mathrm{base}\;7$"],
)  # fmt: skip
def test_spaces_do_not_hide_an_operator(verifier, text: str) -> None:
    assert verifier.grade(text, "42").value == 0.0


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    "text",
    ["So 41 does not\n#### 42", "So 41 does not\n\n\\boxed{42}", "It is divisible by 7 or\n- less\n\nAnswer: 42",
     r"$\boxed{42}\,\text{km}$", r"$\boxed{42}~\mathrm{cm}^2$", "So 41 is wrong\n<answer>42</answer>",
     "The total\nis \\boxed{42}\n", r"$x =\,\boxed{42}$", r"Step 2: $\quad\boxed{42}$"],
)  # fmt: skip
def test_line_breaks_and_thin_spaces_keep_honest_answers(verifier, text: str) -> None:
    assert verifier.grade(text, "42").value == 1.0, verifier.grade(text, "42")


def test_a_line_that_ends_in_times_is_not_a_product():
    from ponder.verify import FinalNumber, MathAnswer

    text = "we should ride at least 25+1=26 times\n\\boxed{26}"
    assert MathAnswer().grade(text, "26").value == FinalNumber().grade(text, "26").value == 1.0
    assert MathAnswer().grade("we get 3 times \\boxed{26}", "26").value == 0.0
