"""Tasks together: every problem once, each judged by its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from fakes import DigitTask
from ponder.errors import TaskError, UnknownName, UsageError
from ponder.runs import job_json
from ponder.tasks import Addition, Mastermind
from ponder.tasks.datasets.custom import CustomTask
from ponder.tasks.mixture import PerTaskVerifier, TaskMixture, WeightedRewardTask
from ponder.types import Problem, Step, ids, prompt_trace, user_messages


@dataclass(frozen=True)
class Letters(DigitTask):
    @property
    def name(self) -> str:
        return "letters"

    def _problem(self, part: str, i: int) -> Problem:
        asked = super()._problem(part, i)
        return replace(asked, id=f"letters/{part}/{i}", messages=user_messages(f"letter {asked.question}"))


BOTH = TaskMixture((DigitTask(3), Letters(5, "a")))


def test_mixture_alternates_its_tasks() -> None:
    result = list(BOTH.train)
    assert [p.tags["task"] for p in result] == ["digits", "letters"] * 3 + ["letters"] * 2
    assert len({p.id for p in result}) == len(BOTH.train) == 8
    assert result == [BOTH.train[i] for i in range(8)] == BOTH.train[:8] and BOTH.train[-1] == result[-1]
    assert [p.answer for p in result[-2:]] == ["a", "a"] and BOTH.gold(result[0]) == "0"
    with pytest.raises(IndexError):
        BOTH.train[8]


def test_balanced_mixture_gives_every_task_the_same_share() -> None:
    both = replace(BOTH, balanced=True)
    result = list(both.train)
    assert [p.tags["task"] for p in result] == ["digits", "letters"] * 5
    digits = [p.id for p in result[::2]]
    assert digits == [*digits[:3], *digits[:2]] and len(set(digits)) == 3, "the shorter one begins again"
    assert [p.id for p in result[1::2]] == [p.id for p in BOTH.train if p.tags["task"] == "letters"]
    assert list(both.test) == list(BOTH.test), "tests have each problem once"


def test_tasks_of_one_size_are_mixed_alike_when_balanced() -> None:
    even = TaskMixture((DigitTask(3), Letters(3, "a")))
    assert list(replace(even, balanced=True).train) == list(even.train)


@pytest.mark.parametrize(("at", "message", "score"), [(0, "0", 1.0), (0, "a", 0.0), (1, "a", 1.0), (1, "0", 0.0)])
def test_mixture_grades_by_each_tasks_verifier(at: int, message: str, score: float) -> None:
    trace = prompt_trace(BOTH.test[at], ids([1]))
    trace.add(Step(0, message, ids([1]), stop="eos"))
    (result,) = asyncio.run(BOTH.verifier(trace, [1]))
    assert result.value == score


def test_problem_of_no_task_is_undecided() -> None:
    trace = prompt_trace(DigitTask().test[0], ids([1]))
    (result,) = asyncio.run(PerTaskVerifier(BOTH.tasks)(trace, [0]))
    assert result.value is None and "none of the tasks" in result.reason


def test_mixture_keeps_extra_rewards() -> None:
    task = Addition(digits=1)
    shaped = WeightedRewardTask(task, ((task.verifier.name, 1.0), ("format", 0.25)))
    problem = shaped.train[0]
    trace = prompt_trace(problem, ids([1]))
    gold = task.gold(problem)
    for text in (gold, f"<think>so</think><answer>{gold}</answer>", "<think>so</think><answer>none</answer>"):
        trace.add(Step(0, text, ids([1]), stop="eos"))
    result = [s.value for s in asyncio.run(shaped.verifier(trace, [1, 2, 3]))]
    assert result == [1.0, 1.25, 0.25]
    assert shaped.test == task.test and shaped.gold(problem) == gold
    with pytest.raises(UnknownName):
        WeightedRewardTask(task, (("formta", 1.0),))
    assert job_json.decode(job_json.encode(shaped)) == shaped


@dataclass(frozen=True)
class Drawn(DigitTask):
    """Asks what the letters are tested with, among others; made when asked for."""

    @property
    def name(self) -> str:
        return "drawn"

    @property
    def train(self) -> Sequence[Problem]:
        asked = ["letter 0=", " LETTER 4=", "other 1=", "other 2="]
        return tuple(Problem(f"drawn/train/{i}", user_messages(f"What is {q}?"), "0") for i, q in enumerate(asked))

    prompt: str = "What is {question}?"


def test_mixture_removes_test_questions_from_other_tasks_training() -> None:
    rows = [{"prompt": q} for q in ("Letter  3=", "another", "one more", "a third", "and a last one", "sixth")]
    own = CustomTask(data=rows, rewards=(len_reward,), test_data=[{"prompt": "quite another test"}], name="own")
    letters = Letters(5)
    asked = [p.question for p in TaskMixture((letters, own)).train]
    assert "Letter  3=" in [p.question for p in own.train] and "Letter  3=" not in asked
    assert len(asked) == 5 + 5 and "another" in asked
    drawn = [p for p in TaskMixture((letters, Drawn())).train if p.tags["task"] == "drawn"]
    assert len(drawn) == 4 and {p.question for p in drawn} == {"What is other 1=?", "What is other 2=?"}
    with pytest.raises(TaskError, match="are test problems of the others"):
        TaskMixture((DigitTask(3), Other(3))).train[0]


@dataclass(frozen=True)
class Other(DigitTask):
    """The same questions under another name."""

    @property
    def name(self) -> str:
        return "other"


def len_reward(completions: Sequence[str], **_: object) -> list[float]:
    return [float(len(c)) for c in completions]


def test_names_must_differ() -> None:
    with pytest.raises(UsageError, match="names of their own"):
        TaskMixture((DigitTask(), DigitTask()))


def test_task_with_an_environment_is_refused():
    """Its episodes would be played as one turn, and no verdict would come of them."""
    with pytest.raises(UsageError, match="'mastermind' is played in turns, and a mixture has single questions"):
        TaskMixture((Addition(), Mastermind()))
    with pytest.raises(UsageError, match="'mastermind' is played in turns, and its reward is the episode's"):
        WeightedRewardTask(Mastermind(), (("accuracy", 1.0), ("format", 0.2)))
