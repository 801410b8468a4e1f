"""Right final answers in sentences are read; several answers, candidates and hedges are not."""

import time

import pytest

from ponder.errors import UsageError
from ponder.verify import (
    ANSWER_FORMS,
    CountdownVerifier,
    FinalList,
    FinalNumber,
    FinalText,
    MathAnswer,
    MultipleChoice,
    extract,
)

READ = [
    ("15 * 3 + 9 = 45 + 9 = 54.", "54"),
    ("(3 - 4) * 2 = -1 * 2 = -2", "-2"),
    (r"To solve this, \(15 \times 3 + 9 = 45 + 9 = 54\).", "54"),
    ("3 * (4 + 5)\n= 3 * 9\n= 27", "27"),
    ("1,200 + 34 = 1,234.", "1,234"),
    ("you simply add them together: 90 + 87 = 177.", "177"),
    ("This is a practice question. 51 + 91 = 172.", "172"),
    ("No, no! This is not an equation. You should solve it as: 47 + 30 = 77.", "77"),
    ("47 + 30 = 77;", "77"),
    ("So, 57 + 76 equals 228.", "228"),
    ("The answer to 57 + 76 is 265.", "265"),
    ("The sum of 57 and 76 is **133**.", "133"),
    ("Adding 47 and 30 gives us 77.", "77"),
    ("Add 30 to 47 to get 77.", "77"),
    ("It's 201.", "201"),
    ("To add the numbers 41 and 32, we add them:\n\n41 + 32 = 73\n\nThis is how you can calculate it.", "73"),
    ("First 40 + 30 = 70. Then 7 + 0 = 7. 70 + 7 = 77.", "77"),
    ("The sum of the tens is 70. The sum of the ones is 7. The sum is 77.", "77"),
    ("47 + 30 = 77. I hope this helps!", "77"),
    ("47 + 30 = 77, which is the sum.", "77"),
    ("47 + 30 = 77. So 47 + 30 is 77.", "77"),
    ("Therefore, 12 - 20 = -8.", "-8"),
]

REFUSED = [
    ("47 + 30 = 75. 47 + 30 = 77.", "several answers"),
    ("47 + 30 = 75, 47 + 30 = 76, 47 + 30 = 77", "several answers"),
    ("47 + 30 = 75. 30 + 47 = 77.", "several answers"),
    ("47 + 30 = 76 and 30 + 47 = 77.", "several answers"),
    ("The sum is 75. The sum is 77.", "several answers"),
    ("15 * 3 + 9 = 44 + 9 = 54.", "several answers"),
    ("47 + 30 = 76 = 77", "several answers"),
    ("52 = 53 = 54", "several answers"),
    ("75, 76, 77", "several answers"),
    ("51 + 91 = 162, which equals 142 in decimal form.", "several answers"),
    ("47 + 30 = 77. No, 78.", "several answers"),
    ("47 + 30 = 77. Its double is one hundred and more.", "several answers"),
    ("47 + 30 = 77 or 78.", "no answer"),
    ("47 + 30 = 77. Wait, that is wrong.", "hedged"),
    ("47 + 30 = 77?", "hedged"),
    ("Maybe 47 + 30 = 77.", "hedged"),
    ("I am not sure, but 47 + 30 = 77.", "hedged"),
    ("I doubt that 47 + 30 = 77.", "hedged"),
    ("If 47 + 30 = 77.", "hedged"),
    ("It is wrong that 47 + 30 = 77.", "hedged"),
    ("It is 77 or 78.", "no answer"),
    ("The first number is 77.", "no answer"),
    ("The problem is 77.", "no answer"),
    ("77 = 47 + 30", "no answer"),
    ("47 + 30 = 77 thousand", "no answer"),
    ("45 + 44 equals 77 in hexadecimal.", "no answer"),
    ("= 77", "no answer"),
    ("47 + 30", "no answer"),
    ("What is 47 + 30?", "no answer"),
]


@pytest.mark.parametrize(("text", "answer"), READ)
def test_sentence_form_reads_the_last_stated_result(text, answer):
    assert extract(text, ("sentence",)).answer == answer
    assert extract(text, ANSWER_FORMS).answer == answer
    assert FinalNumber(ANSWER_FORMS).grade(text, answer).value == 1.0
    assert MathAnswer(("sentence",)).grade(text, answer).value == 1.0


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_sentence_form_rejects_conflicting_results(text, reason):
    assert extract(text, ("sentence",)).answer is None
    assert extract(text, ANSWER_FORMS).answer is None
    assert FinalNumber(ANSWER_FORMS).grade(text, "77").value == 0.0
    if reason != "no answer" and "52" not in text and "75, 76" not in text:
        assert extract(text, ("sentence",)).reason == reason


def test_explicit_forms_take_precedence_over_sentences():
    assert extract("10 + 54 = 64\n\nThe answer is 10.", ANSWER_FORMS).answer == "10"
    assert extract(r"10 + 54 = 64, so \boxed{10}", ANSWER_FORMS).answer == "10"
    assert extract("The answer is 64. 10 + 54 = 65.", ANSWER_FORMS).answer is None
    assert extract("you simply add them: 90 + 87 = 177.").answer is None  # it is a form that is asked for


@pytest.mark.parametrize("scorer", [MultipleChoice, FinalText, FinalList, CountdownVerifier])
def test_text_verifiers_refuse_the_sentence_form(scorer):
    with pytest.raises(UsageError, match="sentence"):
        scorer(forms=("sentence",))


@pytest.mark.parametrize("piece", ["1 + 1 = ", "1 = ", "1, a ", "is 1. ", "(1", "1x", "the sum of ", "\n= 1", "1 and "])
def test_find_stated_results_is_fast_on_hostile_text(piece):
    text = piece * (60_000 // len(piece))
    before = time.thread_time()
    for whole in (text, text + "= 5", "the sum is " + text + "5"):
        extract(whole, ("sentence",))
    assert time.thread_time() - before < 8
