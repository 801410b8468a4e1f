"""Where the answer is, and every way of giving none."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.verify import ANSWER_FORMS, FinalNumber, extract, format_answer, strip_thinking
from ponder.verify.answers.extract import ANSWER_LINE, find_answer_lines

GIVEN = [
    (r"So it is \boxed{42}.", "42"),
    (r"6 * 7 is 42, so \boxed{x = 42}", "x = 42"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("<answer> 42 </answer>", "42"),
    ("<answer>\n\\boxed{42}\n</answer>", "42"),
    ("48 / 2 = 24\n#### 24", "24"),
    ("#### 1. Set up\nThere are 7.\n#### 24", "24"),
    (r"#### \boxed{24}", "24"),
    ("Answer: 42", "42"),
    ("So the answer is 42.", "42"),
    ("**Final Answer:** 42", "42"),
    ("**The answer is 42.**", "42"),
    ("6 * 7 = 42. The answer is $42.50.", "$42.50"),
    ("Answer:\n42", "42"),
    ("Therefore, the answer is $42$.", "42"),
    (r"<think>41? \boxed{41}</think> The answer is \boxed{42}.", "42"),
    (r"41? no </think> \boxed{42}", "42"),
    (r"The answer is 42. \boxed{42}", "42"),
    (r"Answer: 42 apples" + "\n#### 42", "42"),
    (r"The answer is the sum of 40 and 2. \boxed{42}", "42"),
    (r"\boxed{42}. So she has 42 apples.", "42"),
    (r"\boxed{1,234}", "1,234"),
]

NOT_GIVEN = [
    ("", "no answer"),
    ("The problem mentions 42 apples. I give up.", "no answer"),
    (r"<think>\boxed{42}</think> Done.", "no answer"),
    (r"<think>\boxed{42}", "no answer"),
    (r"<think>a</think>\boxed{42}</think>", "no answer"),
    (r"I doubt the answer is 42", "no answer"),
    (r"\boxed{}", "no answer"),
    ("<answer> </answer>", "no answer"),
    (r"\boxed{7}\boxed{42}", "several answers"),
    (r"\boxed{42} or \boxed{42}", "several answers"),
    ("<answer>41</answer> <answer>42</answer>", "several answers"),
    (r"\boxed{41} <answer>42</answer>", "several answers"),
    ("The answer is 41.\nThe answer is 42.", "several answers"),
    (r"The answer is 41. \boxed{42}", "several answers"),
    ("#### 41\n#### 42", "several answers"),
    (r"\boxed{40, 41, 42}", "several answers"),
    (r"\boxed{40,41,42}", "several answers"),
    (r"\boxed{41 and 42}", "several answers"),
    (r"\boxed{x \in \{41, 42\}}", "several answers"),
    (r"\boxed{42=41}", "several answers"),
    (r"\boxed{1=2=42}", "several answers"),
    (r"\boxed{42}, though 41 is close", "several answers"),
    (r"\boxed{42}, or forty-one", "several answers"),
    ("The answer is 42. Check: 6 * 7.", "several answers"),
    (r"\boxed{42 or 41}", "hedged"),
    (r"\boxed{42 \text{ or } 41}", "hedged"),
    (r"\boxed{\pm 42}", "hedged"),
    (r"\boxed{\approx 42}", "hedged"),
    ("The answer is not 42.", "hedged"),
    (r"41 or \boxed{42}", "hedged"),
    (r"\boxed{42} - wait, that is wrong.", "hedged"),
    (r"\boxed{42}? I am not sure.", "hedged"),
    (r"\boxed{7 \boxed{42}}", "malformed"),
    (r"\boxed{\boxed{42}}", "malformed"),
    (r"<answer>so \boxed{42}</answer>", "malformed"),
    (r"\boxed{42", "malformed"),
    ("<answer>42", "malformed"),
    ("42</answer>", "malformed"),
    (r"\boxed{" + "1" * 201 + "}", "too long"),
]


@pytest.mark.parametrize(("text", "answer"), GIVEN)
def test_extract_finds_the_one_answer(text, answer):
    assert extract(text).answer == answer


@pytest.mark.parametrize(("text", "reason"), NOT_GIVEN)
def test_extract_gives_a_reason_without_an_answer(text, reason):
    extracted = extract(text)
    assert (extracted.answer, extracted.reason) == (None, reason)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("85", "85"), (" 85.\n", "85"), ("$85", "$85"), ("-3.5", "-3.5"), ("27 + 58 = 85.", "85"),
     ("$27 + 58 = 85$", "85"),
     ("(3 - 4) * 2 = -2", "-2"), ("<think>84?</think>85", "85"), ("1,234", "1,234"), ("27 + 58 = **85**", "85")],
)  # fmt: skip
def test_bare_form_accepts_a_number_or_an_equation(text, answer):
    assert extract(text, ("bare",)).answer == answer


@pytest.mark.parametrize(
    "text",
    ["", "It is 85", "85 apples", "27 + 58", "27 + 58 = 85 = 84", "84 = 85", "84 85", "84, 85", "84\n85", "85 or 84",
     "85!",
     "What is 27 + 58? 85", "27 + 58 = 80 + 5", "<think>85</think>", "8<think></think>5", r"\boxed{85}", "= 85", "--5",
     "27 + 58 = 8**5"],
)  # fmt: skip
def test_bare_form_rejects_other_text(text):
    assert extract(text, ("bare",)).answer is None


def test_extract_reads_only_accepted_forms():
    assert extract("<answer>42</answer>", ("boxed",)).answer is None
    assert extract(r"<answer>\boxed{42}</answer>", ("boxed",)).answer == "42"
    assert extract(r"\boxed{42}", ("bare", "boxed")).answer == "42"


def test_strip_thinking_does_not_join_the_text_around_it():
    assert strip_thinking("4<think>x</think>2") == "4\n2"
    assert strip_thinking("<think> <think> </think> 42") == "\n 42"


@pytest.mark.parametrize("forms", [(), ("box",), "boxed"])
def test_check_forms_refuses_unknown_forms(forms):
    with pytest.raises(UsageError, match="form"):
        FinalNumber(forms=forms)


@given(st.integers(-(10**9), 10**9), st.sampled_from(ANSWER_FORMS))
def test_format_answer_is_the_inverse_of_extract(number, form):
    assert extract(format_answer(str(number), form), (form,)).answer == str(number)


PIECES = ["\\boxed{", "}", "{", "<think>", "</think>", "<answer>", "</answer>", "####", "answer is ", "Answer:", "\n",
          ". ",
          "42", ",", "=", "\\frac", "$", "**", " ", "-", "/", "\\", "٥", "\x00", "\ud800", "or"]  # fmt: skip


@settings(max_examples=100)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=20).map("".join))
def test_extract_never_raises(text):
    for forms in (ANSWER_FORMS, *((form,) for form in ANSWER_FORMS)):
        extracted = extract(text, forms)
        assert (extracted.answer is None) == bool(extracted.reason)
        assert FinalNumber(forms).grade(text, "42").value in (0.0, 1.0)


SENTENCES = [
    "The answer is ",
    "the best option: ",
    "So, my final Answer is: ",
    "ANſWER = ",
    "answer",
    ": ",
    "? ",
    "!\t",
    "\n\n",
]


@settings(max_examples=200)
@given(st.lists(st.one_of(st.sampled_from([*PIECES, *SENTENCES]), st.text(max_size=3)), max_size=16).map("".join))
def test_find_answer_lines_equals_a_full_pattern_search(text):
    whole = [(match.start(), match.end()) for match in ANSWER_LINE.finditer(text)]
    assert [(line.start, line.end) for line in find_answer_lines(text)] == whole


@pytest.mark.parametrize(
    "piece", [*PIECES, "\\boxed{\\boxed{", "The answer is ", ". . ", "\\text{", "1,", "#### 1 \n", "(("]
)
def test_extract_is_fast_on_hostile_text(piece):
    text = piece * (60_000 // len(piece))
    before = time.thread_time()
    for whole in (text, "\\boxed{" + text, "The answer is " + text, "\\boxed{42}" + text):
        extract(whole, ANSWER_FORMS)
    assert time.thread_time() - before < 8
