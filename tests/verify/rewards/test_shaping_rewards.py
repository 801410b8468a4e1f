"""Rewards beside the answer: length, repetition, language, arithmetic in the working."""

import asyncio
import json
import math
import os
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bad_answers
from ponder.errors import UnknownName, UsageError
from ponder.protocols import Scorer
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import (
    CosineLengthReward,
    FinalNumber,
    LanguageConsistency,
    OverlongPenalty,
    RepetitionPenalty,
    StepArithmetic,
    evaluate_arithmetic,
    weighted_reward,
)
from ponder.verify.rewards.language_consistency import detect_language, language_share
from ponder.verify.rewards.language_data import LANGUAGES
from ponder.verify.rewards.repetition import repeated_ngram_share
from ponder.verify.rewards.step_arithmetic import check_equations
from ponder.verify.rewards.token_length import soft_overlong_penalty


def sampled(parent, text, tokens):
    return Step(parent, text, ids(range(tokens)), np.zeros(tokens, np.float32))


def trace(*lengths, text="\\boxed{42}"):
    steps = [Step(None, "prompt", ids(range(100))), *(sampled(0, text, n) for n in lengths)]
    return Trace(Problem("p", user_messages("?"), "42"), steps)


def values(scorer, trace):
    return [s.value for s in asyncio.run(scorer(trace, range(1, len(trace.steps))))]


# --- length --------------------------------------------------------------------------------------------------------


def test_overlong_penalty_is_dapo_equation_13():
    # Yu et al. 2025: L_max 20480 with a cache of 4096: no penalty up to 16384, -1 past 20480
    assert [soft_overlong_penalty(n, 20480, 4096) for n in (0, 16384, 18432, 20480, 30000)] == [
        0.0,
        0.0,
        -0.5,
        -1.0,
        -1.0,
    ]
    assert values(OverlongPenalty(10, 4), trace(5, 6, 7, 8, 9, 10, 11)) == [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]


def test_sampled_length_counts_only_policy_tokens():
    steps = [
        Step(None, "prompt", ids(range(9))),
        sampled(0, "a", 6),
        Step(1, "tool", ids(range(50))),
        sampled(2, "b", 3),
    ]
    whole = Trace(Problem("p", user_messages("?"), "42"), steps)
    assert asyncio.run(OverlongPenalty(10, 4)(whole, [3]))[0].value == -0.75
    nobody = Trace(Problem("p", user_messages("?"), "42"), [steps[0], Step(0, "a", ids([1]))])
    assert asyncio.run(OverlongPenalty(10, 4)(nobody, [1]))[0].value is None


def test_cosine_length_reward_at_known_points():
    cosine = CosineLengthReward(
        FinalNumber(), 100
    )  # Yeo et al. 2025: 2 to 1 for right, -10 to 0 for wrong, -10 past the limit
    assert values(cosine, trace(0, 50, 100, 120)) == pytest.approx([2.0, 1.5, -10.0, -10.0])
    assert values(cosine, trace(0, 50, 100, text="\\boxed{7}")) == pytest.approx([-10.0, -5.0, -10.0])
    (third,) = values(cosine, trace(25))
    assert third == pytest.approx(1 + 0.5 * (2 - 1) * (1 + math.cos(25 * math.pi / 100)))
    t = trace(10, 20, text="\\boxed{7}")
    values(cosine, t)
    assert [t.score(i, "accuracy") for i in (1, 2)] == [0.0, 0.0]


def test_cosine_length_reward_prefers_short_right_answers():
    lengths = range(0, 100, 7)
    right, wrong = (
        values(CosineLengthReward(FinalNumber(), 100), trace(*lengths, text=t)) for t in ("\\boxed{42}", "no")
    )
    assert right == sorted(right, reverse=True) and wrong == sorted(wrong)


def test_cosine_length_reward_of_an_undecided_answer_is_undecided():
    t = trace(10, 100)
    t.problem = Problem("p", user_messages("?"), "not a number")
    decided = asyncio.run(CosineLengthReward(FinalNumber(), 100)(t, [1, 2]))
    assert decided[0].value is None and "accuracy is undecided" in decided[0].reason
    assert decided[1].value == -10.0  # too long whatever it says


def test_invalid_lengths_are_refused():
    for make in (
        lambda: OverlongPenalty(10, 0),
        lambda: OverlongPenalty(10, 11),
        lambda: CosineLengthReward(FinalNumber(), 0),
        lambda: CosineLengthReward(FinalNumber(), 9, right_rewards=(1.0, math.nan)),
        lambda: CosineLengthReward(CosineLengthReward(FinalNumber(), 9), 9),
    ):
        with pytest.raises(UsageError):
            make()


# --- repetition ----------------------------------------------------------------------------------------------------


def test_repetition_by_hand():
    # a b c a b c: the pairs ab bc ca ab bc, three distinct of five
    assert repeated_ngram_share("a b c A B C", 2) == pytest.approx(2 / 5)
    assert repeated_ngram_share("one two three four", 3) == 0.0
    assert repeated_ngram_share("", 3) == repeated_ngram_share("one two", 3) == 0.0
    assert RepetitionPenalty(2).grade("a b c a b c").value == pytest.approx(-0.4)


@pytest.mark.parametrize("loop", ["wait " * 500, "哈" * 800, "ab" * 3000, "a" * 9000, "no\n" * 400, "xyz1234" * 900])
def test_repetition_penalty_detects_loops_in_any_script(loop):
    assert RepetitionPenalty().grade(loop).value < -0.9


def test_repetition_penalty_is_small_for_prose():
    text = "Let us first find how many apples she has. There are three boxes, and each of them has twelve apples."
    assert RepetitionPenalty().grade(text).value == 0.0


@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=40))
def test_repetition_by_definition(words):
    grams = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    assert repeated_ngram_share(" ".join(words), 3) == pytest.approx(
        sum(g in grams[:i] for i, g in enumerate(grams)) / len(grams)
    )


# --- language ------------------------------------------------------------------------------------------------------

SAME = {
    "en": "Let us first find how many apples she has. There are three boxes, and each of them has twelve "
    "apples, so that is 36 apples. Then she gives 10 to her brother, which leaves 26.",
    "de": "Zuerst bestimmen wir, wie viele Äpfel sie hat. Es gibt drei Kisten, und in jeder sind zwölf "
    "Äpfel, also sind das 36 Äpfel. Dann gibt sie ihrem Bruder 10, so dass noch 26 übrig bleiben.",
    "fr": "Trouvons d'abord combien de pommes elle a. Il y a trois boîtes et chacune contient douze "
    "pommes, donc cela fait 36 pommes. Ensuite elle en donne 10 à son frère, ce qui en laisse 26.",
    "es": "Primero calculamos cuántas manzanas tiene. Hay tres cajas y en cada una hay doce manzanas, "
    "entonces son 36 manzanas. Luego le da 10 a su hermano, lo que deja 26.",
    "pt": "Primeiro vamos ver quantas maçãs ela tem. Há três caixas e cada uma tem doze maçãs, então são "
    "36 maçãs. Depois ela dá 10 ao irmão, o que deixa 26 para os pais.",
    "nl": "Eerst bepalen we hoeveel appels ze heeft. Er zijn drie dozen en in elke doos zitten twaalf "
    "appels, dus dat zijn 36 appels. Dan geeft ze er 10 aan haar broer, en er blijven 26 over.",
    "ru": "Сначала найдём, сколько у неё яблок. Есть три ящика, и в каждом по двенадцать яблок, так что "
    "это 36 яблок. Потом она отдаёт 10 брату, и если так, то остаётся 26.",
    "zh": "首先我们求她有多少个苹果。一共有三个箱子，每个箱子里有十二个苹果，所以是36个苹果。"
    "然后她给了弟弟10个，剩下26个。",
    "ja": "まず彼女が何個のりんごを持っているか求めます。箱が三つあり、"
    "それぞれに十二個のりんごが入っているので、36個です。",
    "ko": "먼저 그녀가 사과를 몇 개 가지고 있는지 구합니다. 상자가 세 개 있고 각 상자에 사과가 열두 개 "
    "있으므로 36개입니다.",
    "ar": "أولاً نحسب عدد التفاح لديها. هناك ثلاثة صناديق وفي كل صندوق اثنتا عشرة تفاحة.",
}


@pytest.mark.parametrize("code", SAME)
def test_language_share_is_highest_for_the_own_language(code):
    share = {other: language_share(SAME[code], other)[0] for other in LANGUAGES}
    assert detect_language(SAME[code]) == code
    assert share[code] > 0.85 and max(v for k, v in share.items() if k != code) < 0.5


def test_language_share_falls_with_mixing():
    english, chinese, german = SAME["en"], SAME["zh"], SAME["de"]
    assert 0.3 < language_share(english + chinese, "en")[0] < 0.8
    assert 0.3 < language_share(english + " " + german, "en")[0] < 0.8
    assert language_share(english + " 所以答案是二十六。", "en")[0] < language_share(english, "en")[0]


@pytest.mark.parametrize(
    "text", ["$x^2 + y = 42$ \\frac{1}{2}", "42", "", "```python\nfor the in of: and is\n```", "x y z"]
)
def test_language_share_ignores_code_and_maths(text):
    assert language_share(text, "zh")[0] == 1.0


def test_chinese_is_not_japanese():
    assert language_share(SAME["zh"], "ja")[0] == 0.0 and detect_language("苹果三个") == "zh"


def test_language_consistency_uses_the_question_language():
    problem = Problem("p", user_messages(SAME["de"]), None)
    t = Trace(problem, [Step(None, "", ids([])), Step(0, SAME["de"], ids([])), Step(0, SAME["en"], ids([]))])
    german, english = values(LanguageConsistency(), t)
    assert german > 0.9 and english < 0.4
    t.problem = Problem("p", user_messages("42?"), None, {"language": "en"})
    assert values(LanguageConsistency(), t)[1] == 1.0
    t.problem = Problem("p", user_messages("42?"), None)
    score = asyncio.run(LanguageConsistency()(t, [1]))[0]
    assert score.value is None and score.reason.startswith("bad data: the language of the question is unclear")
    with pytest.raises(UnknownName):
        LanguageConsistency("english")


@pytest.mark.parametrize(
    ("written", "least", "most"),
    [
        (SAME["en"], 1.0, 1.0),
        ("7+8=15, 15+9=24, #### 24", 1.0, 1.0),
        (f"<think>{SAME['en']} {SAME['zh']}</think><answer>26</answer>", 0.3, 0.8),
        (f"<think>{SAME['zh']}</think><answer>26</answer>", 0.0, 0.0),
        (f"<think>{SAME['de']}</think><answer>26</answer>", 0.0, 0.3),
    ],
)
def test_language_consistency_penalizes_mixed_reasoning(written, least, most):
    """As a reward beside the verifier's, for a question that is in no language."""
    t = Trace(Problem("p", user_messages("12*3-10="), "26"), [Step(None, "", ids([])), Step(0, written, ids([]))])
    reward = weighted_reward({"accuracy": 1.0, "language:en": 0.1}, FinalNumber())
    (score,) = asyncio.run(reward(t, [1]))
    share = t.steps[1].scores["language"].value
    assert least <= share <= most
    assert score.value == pytest.approx(t.steps[1].scores["accuracy"].value + 0.1 * share)
    with pytest.raises(UnknownName):
        weighted_reward({"accuracy": 1.0, "language:klingon": 0.1}, FinalNumber())


# --- arithmetic in the working -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 + 4 = 7", [True]),
        ("3 + 4 = 8", [False]),
        ("3 + 4 = 7 * 2 = 14", [False, True]),
        ("10 / 3 = 3.33", [True]),
        ("10 / 3 = 3.34", [False]),
        ("10 / 3 = 3", [False]),
        ("2/3 = 0.667 is 5/3 - 1 = 0.67", [True, True]),
        ("48/2 = <<48/2=24>>24", [True]),
        ("5 * $3 = $15.", [True]),
        ("1. 3 + 4 = 8", [False]),
        ("(3 + 4 = 7)", [True]),
        ("$3 \\times 4 = 12$, and 5*3 = 15, 4·2 = 9", [True, True, False]),
        ("1,200 + 300 = 1,500", [True]),
        ("-3 + 4 = 1", [True]),
        ("1/2 + 1/4 = 3/4", [True]),
        ("2 × 3.5 = 7 apples", [True]),
        ("0.1 + 0.2 = 0.3", [True]),
        ("8 - (3 - 1) = 6", [True]),
        ("12 ÷ 4 = 3", [True]),
    ],
)
def test_check_equations_evaluates_each_equation(text, expected):
    assert [e.right for e in check_equations(text)] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 7",
        "7 = 7",
        "x - 3 + 4 = 7",
        "2x + 3 = 7",
        "3^2 + 1 = 10",
        "2 times 5 + 3 = 13",
        "3 + 4 == 8",
        "3 + 4 != 8",
        "3 + 4 ≈ 8",
        "50% * 20 = 11",
        "1/0 = 5",
        "3 + 4 = 8x",
        "3 + 4 = 80%",
        "a1 + 4 = 8",
        "٣ + 4 = 8",
        "3 + 4 = ",
        "3! + 4 = 8",
    ],
)
def test_check_equations_skips_unreadable_text(text):
    assert list(check_equations(text)) == []


@given(st.integers(0, 999), st.sampled_from("+-*/"), st.integers(1, 999), st.integers(-3, 3))
def test_check_equations_agrees_with_fractions(a, sign, b, off):
    result = {"+": Fraction(a + b), "-": Fraction(a - b), "*": Fraction(a * b), "/": Fraction(a, b)}[sign] + off
    (equations,) = check_equations(f"so we have {a} {sign} {b} = {result} and go on")
    assert equations.right is (off == 0)


def test_step_arithmetic_counts_each_equation_once():
    score = StepArithmetic().grade("1 + 1 = 2. " * 50 + "2 + 2 = 5. <answer>5</answer>")
    assert score.value == 0.5 and "2 + 2 = 5" in score.reason
    assert StepArithmetic().grade("I just know it is 5.").value == 0.0


@pytest.mark.parametrize(
    "text", ["=" * 200_000, "1+1=" * 50_000, "(" * 200_000, "1" * 99_999 + "=1", "$" * 99_999 + "="]
)
def test_step_arithmetic_is_fast_on_hostile_text(text):
    begin = time.thread_time()
    assert StepArithmetic().grade(text).value is not None
    assert time.thread_time() - begin < 2.0


def test_step_arithmetic_accepts_gsm8k_annotations():
    folder = os.environ.get("PONDER_DATA")
    path = Path(folder or "") / "gsm8k" / "train.jsonl"
    if not folder or not path.exists():
        pytest.skip("PONDER_DATA names no folder with gsm8k/train.jsonl")
    texts = [json.loads(line)["answer"] for line in path.read_text().splitlines()[:1500]]
    checked = [e.right for text in texts for e in check_equations(text)]
    assert len(checked) > 4000 and sum(checked) / len(checked) > 0.995  # a few of them are wrong indeed


def test_allow_decimals_enables_decimals():
    assert evaluate_arithmetic("1.5 * 2", allow_decimals=True).value == 3 and evaluate_arithmetic(
        ".5 + .25", allow_decimals=True
    ).value == Fraction(3, 4)
    assert evaluate_arithmetic("1.5 * 2").value is None
    for text in ("1.5.2", "1.", ".", "1..5", "1.5 2"):
        assert evaluate_arithmetic(text, allow_decimals=True).value is None


# --- all of them ---------------------------------------------------------------------------------------------------


def test_rewards_are_scorers_and_serialize():
    for scorer in (
        OverlongPenalty(9, 3),
        CosineLengthReward(FinalNumber(), 9),
        RepetitionPenalty(),
        LanguageConsistency("en"),
        StepArithmetic(),
    ):
        assert isinstance(scorer, Scorer) and decode(encode(scorer)) == scorer


def test_rewards_are_fast_on_hostile_text():
    bad_answers.refused(RepetitionPenalty().grade, None)
    bad_answers.refused(StepArithmetic().grade, None)
    bad_answers.refused(LanguageConsistency("en").grade, "en", below=1.1)
