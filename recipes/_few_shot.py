"""Few-shot prompts: solved problems before the question, as turns of a conversation."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ponder.protocols import Task
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Message, Problem

POOL = 1000  # training problems that examples are drawn from
MAX_WORKED_CHARS = 300  # of an example's solution


@dataclass(frozen=True)
class FewShot(WrappedTask):
    """The test problems of a task after `shots` solved training problems of `examples`, which may be another task."""

    task: Task
    examples: Task
    shots: int = 8
    seed: int = 0

    @cached_property
    def turns(self) -> tuple[Message, ...]:
        """The examples, each asked and answered."""
        train = self.examples.train
        pool = [train[i] for i in range(min(POOL, len(train)))]
        short = [p for p in pool if len(p.tags.get("solution", "")) <= MAX_WORKED_CHARS]  # the same in every style
        out: list[Message] = []
        for problem in random.Random(self.seed).sample(short, self.shots):
            out += [*problem.messages, {"role": "assistant", "content": self.examples.gold(problem)}]
        return tuple(out)

    @property
    def test(self) -> Sequence[Problem]:
        return [replace(p, messages=(*self.turns, *p.messages)) for p in self.task.test]


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
