"""check-answer and code-feedback: what the policy learns after a wrong answer, and what a later try earns."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path

import pytest

from ponder.errors import PonderError
from ponder.protocols import Task
from ponder.runs import job_json
from ponder.tasks import Addition, AlphabetSort, CheckAnswer, CodeFeedback
from ponder.tasks.environments.scripted_play import gold_play, play, random_play
from ponder.types import Problem
from ponder.verify.sandbox import detect_isolation

jailed = pytest.mark.skipif(detect_isolation().isolation is None, reason="this kernel allows no jail")


def play_texts(task, problem, texts):
    left = iter(texts)
    return play(task, problem, lambda _: next(left), max_turns=len(texts))


@pytest.mark.parametrize("name", ["addition", "sorting", "sudoku", "zebra", "number-theory", "twenty-four"])
def test_check_answer_takes_gold_of_any_question_task(name):
    task = CheckAnswer(task=name, level=1)
    assert isinstance(task, Task) and task.test == task.inner.test
    for problem in task.test[:10]:
        assert gold_play(task, problem).reward == 1.0
        rng = random.Random(0)
        assert random_play(task, problem, rng).reward <= 1.0


def test_check_answer_discounts_later_tries():
    task = CheckAnswer(task=Addition(2), discount=0.5, max_turns=3)
    problem = task.test[0]
    gold, wrong = task.inner.gold(problem), task.inner.gold(problem) + "1"
    for tries, reward in ((0, 1.0), (1, 0.5), (2, 0.25)):
        assert play_texts(task, problem, [*[wrong] * tries, gold]).reward == reward
    lost = play_texts(task, problem, [wrong] * 9)
    assert lost.done and lost.reward == 0.0 and len(lost.actions) == 3


def test_check_answer_gives_away_the_verdict_only():
    task = CheckAnswer(task=Addition(3))
    problem = task.test[0]
    episode = play_texts(task, problem, ["0", "no idea", str(problem.answer)])
    said = [message["content"] for turn in episode.turns for message in turn.messages]
    assert said == ["That is wrong. Try again."] * 2


def test_level_is_the_inner_tasks():
    assert CheckAnswer(task="addition", level=3).inner == Addition(level=3)
    assert CheckAnswer(task=Addition(), level=3).inner == Addition(level=3)


@pytest.mark.parametrize("task", [CheckAnswer(task="sorting", level=2), CheckAnswer(task=Addition(3)), CodeFeedback()])
def test_a_run_keeps_the_task_with_its_inner_task(task):
    again = job_json.decode(json.loads(json.dumps(job_json.encode(task))))
    assert again == task == pickle.loads(pickle.dumps(task)) and again.inner == task.inner
    assert again.train[3] == task.train[3]


def test_undecided_verdict_is_an_error_and_no_wrong_answer():
    task = CheckAnswer(task=Addition(2))
    with pytest.raises(PonderError, match="could not decide"):
        play_texts(task, Problem("bad", task.test[0].messages, "no number"), ["4"])


@jailed
def test_code_feedback_shows_failed_tests_of_the_first_half_only():
    task = CodeFeedback(level=1, shown_tests=2)
    problem = task.test[0]
    episode = play_texts(task, problem, ["```python\ndef solve(x):\n    return 'wrong'\n```"])
    text = episode.turns[1].messages[0]["content"]
    lines = text.splitlines()
    assert lines[0] == "Some tests fail." and lines[-1] == "Try again." and len(lines) == 4
    tests = problem.answer["tests"]
    visible = [f"solve({t['args'][0]!r}) should return {t['expected']!r}; it returns 'wrong'" for t in tests[:6]]
    assert set(lines[1:3]) <= set(visible)


@jailed
def test_program_that_returns_the_shown_values_does_not_pass():
    task = CodeFeedback(level=2, shown_tests=12)
    problem = task.test[1]
    shown = {repr(t["args"][0]): t["expected"] for t in problem.answer["tests"][:6]}
    program = f"```python\ndef solve(x):\n    return {shown!r}.get(repr(x))\n```"
    episode = play_texts(task, problem, [program, task.inner.gold(problem)])
    assert "A hidden test fails" in episode.turns[1].messages[0]["content"]
    assert episode.reward == 0.5


@jailed
@pytest.mark.parametrize(
    ("program", "fault"),
    [("no program at all", "There is no program to test"),
     ("```python\ndef solve(x):\n    return 1 / 0\n```", "ZeroDivision"),
     pytest.param("```python\ndef solve(x):\n    while True: pass\n```", "timed out", marks=pytest.mark.nightly),
     ("```python\ndef other(x): return x\n```", "it "), ("```python\n)(\n```", "Syntax"),
     ("```python\nimport os; os._exit(0)\n```", "it ")],
)  # fmt: skip
def test_code_feedback_names_the_fault_of_a_bad_program(program, fault):
    task = CodeFeedback(level=1)
    turn = play_texts(task, task.test[0], [program]).turns[1]
    assert not turn.done and fault in turn.messages[0]["content"]
    assert len(turn.messages[0]["content"]) < 3000


@jailed
def test_code_feedback_on_mbpp_shows_its_asserts():
    if not (Path(os.environ.get("PONDER_DATA", "")) / "mbpp" / "mbpp.jsonl").is_file():
        pytest.skip("PONDER_DATA has no mbpp")
    task = CodeFeedback(task="mbpp")
    problem = task.test[0]
    entry = problem.answer["tests"][0].split("(")[0].removeprefix("assert ")
    episode = play_texts(task, problem, [f"```python\ndef {entry}(*x): return None\n```", task.inner.gold(problem)])
    assert problem.answer["tests"][0][:60] in episode.turns[1].messages[0]["content"]
    assert episode.reward == 0.5


def test_alphabet_sort_rewards_each_turn():
    task = AlphabetSort(words_per_turn=2, turns=2)
    problem = Problem("1", (), [["pear", "fig"], ["apple", "zebra"]])
    assert play_texts(task, problem, ["fig pear", "apple, fig, pear, zebra"]).reward == 1.0
    half = play_texts(task, problem, ["pear fig", "Apple\nFig\nPear\nZebra"])
    assert [turn.reward for turn in half.turns] == [None, 0.0, 0.5]
    assert half.turns[1].messages[0]["content"] == "apple zebra" and half.turns[2].reason == "1 of 2 lists are right"


def test_alphabet_sort_partial_credit_is_the_similarity():
    task = AlphabetSort(words_per_turn=2, turns=1, partial_credit=True)
    problem = Problem("1", (), [["b", "a", "d", "c"]])
    assert play_texts(task, problem, ["a b d c"]).reward == pytest.approx(2 * 3 / 8)  # three of four match
    assert play_texts(task, problem, ["x y"]).reward == 0.0
