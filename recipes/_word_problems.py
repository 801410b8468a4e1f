"""Parts of word-problem sets: one set of a collection, the first problems of a set, solved examples for a prompt, and a
verifier that reads the last number."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ponder.protocols import Scorer, Task
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem, Score, Trace
from ponder.verify import FinalNumber
from ponder.verify.base import grade_steps

POOL = 1000  # training problems that examples are drawn from
MAX_WORKED_CHARS = 300  # of an example's solution


@dataclass(frozen=True)
class OnlySet(WrappedTask):
    """The problems of one part of a collection, by their tag."""

    task: Task
    part: str

    @property
    def name(self) -> str:
        return self.part

    @cached_property
    def test(self) -> Sequence[Problem]:
        return [p for p in self.task.test if p.tags["set"] == self.part]


@dataclass(frozen=True)
class FirstProblems(WrappedTask):
    """A task with its first held-out problems alone."""

    task: Task
    limit: int

    @cached_property
    def test(self) -> Sequence[Problem]:
        return list(self.task.test[: self.limit])


_NUMBER = re.compile(r"-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?")


@dataclass(frozen=True)
class LastNumber:
    """1 where an answer in one of the forms is right; of a text without one, where its last number is. Papers on chains
    of thought read answers so. It is for measuring: a reward would teach a policy to end on any number."""

    stated: FinalNumber

    @property
    def name(self) -> str:
        return self.stated.name

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return grade_steps(trace, steps, lambda text: self.grade(text, trace.problem.answer))

    def extract_answer(self, text: str) -> str | None:
        return self.stated.extract_answer(self._as_stated(text))

    def grade(self, text: str, gold: Any) -> Score:
        return self.stated.grade(self._as_stated(text), gold)

    def _as_stated(self, text: str) -> str:
        """The text, or its last number in a form."""
        if self.stated.extract_answer(text) is not None:
            return text
        numbers = _NUMBER.findall(text)
        return f"\\boxed{{{numbers[-1].rstrip(',')}}}" if numbers else text


@dataclass(frozen=True)
class ReadLastNumber(WrappedTask):
    """Word problems whose answer is the last number of a text that gives none in a form."""

    task: Task

    @property
    def verifier(self) -> Scorer:
        stated = self.task.verifier
        assert isinstance(stated, FinalNumber)
        return LastNumber(stated)


def solved_examples(task: Task, shots: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Questions and gold answers of training problems with a short solution: the same problems in every style."""
    train = task.train
    pool = [train[i] for i in range(min(POOL, len(train)))]
    short = [p for p in pool if len(p.tags.get("solution", "")) <= MAX_WORKED_CHARS]
    return tuple((p.question, task.gold(p)) for p in random.Random(seed).sample(short, shots))
