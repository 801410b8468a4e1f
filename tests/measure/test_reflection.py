"""What is taken back, and what only sounds so."""

from __future__ import annotations

import pytest

from fakes import trace_group
from ponder.measure.diagnostics.reflection import find_correction, find_corrections, find_reflections
from ponder.reason.answer_extraction import extract_answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wait, let me check. Hmm, I was wrong.", ["wait", "let me check", "hmm", "i was wrong"]),
        ("The waiter actually waited.", ["actually"]),
        ("47 + 5 = 52", []),
        ("Let me recheck: double-checking", ["let me recheck", "double-checking"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert find_reflections(text) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("47 + 5 = 51\nWait, 7 + 5 is 12.\n#### 52", ("wait", "51", "52")),
        ("47 + 5 = 52\nWait, is it?\n#### 52", None),
        ("#### 52", None),
        ("Wait. It is\n#### 52", None),
        ("It is 51. Wait, it is 52.\n#### 52", ("wait", "51", "52")),
    ],
)
def test_a_correction_takes_something_back(text: str, expected: tuple[str, str, str] | None) -> None:
    assert find_correction(text, extract_answer) == expected


def test_an_attempt_may_be_read_by_its_own_reader() -> None:
    text = "so 51:52 wait\n#### 52"
    assert find_correction(text, extract_answer) is None, "the last number on the line is the answer"
    read = find_correction(text, extract_answer, lambda line: line.split(":")[0].split()[-1])
    assert read == ("wait", "51", "52")


def test_only_right_answers_count() -> None:
    trace = trace_group([5], [[1]] * 2, [1.0, 0.0])
    for step in trace.steps[1:]:
        step.text = "= 51\nWait.\n#### 52"
    (only,) = find_corrections([(7, trace)], "wanted", extract_answer)
    assert (only.step, only.before, only.after) == (7, "51", "52")


def test_it_does_not_hang() -> None:
    assert find_correction("7 " + "wait " * 100_000 + "#### 1", extract_answer) is None
    assert len(find_reflections("hmm" + "m" * 500_000)) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "The total is 1,234. Wait, let me check. Yes.\n\\boxed{1234}",
        "So it is 7.0. Wait, that is right: \\boxed{7}",
        "It costs $7. Hmm, yes. \\boxed{7}",
    ],
)
def test_the_same_number_in_other_clothes_is_not_taken_back(text: str) -> None:
    assert find_correction(text, extract_answer) is None


def test_a_difference_is_no_negative_number() -> None:
    result = find_correction("10-7. Wait: \\boxed{3}", extract_answer)
    assert result is not None and result[1] == "7"
