"""Parts of word-problem sets: one set of a collection, and solved examples for a prompt."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ponder.protocols import Task
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem

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


def solved_examples(task: Task, shots: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Questions and gold answers of training problems with a short solution: the same problems in every style."""
    train = task.train
    pool = [train[i] for i in range(min(POOL, len(train)))]
    short = [p for p in pool if len(p.tags.get("solution", "")) <= MAX_WORKED_CHARS]
    return tuple((p.question, task.gold(p)) for p in random.Random(seed).sample(short, shots))
