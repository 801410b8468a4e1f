"""A task around another: the same problems and gold answers, judged in another way."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.protocols import Task
from ponder.types import Problem


class WrappedTask:
    """What a task around `task` hands on as it is; the subclass brings the verifier."""

    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def train(self) -> Sequence[Problem]:
        return self.task.train

    @property
    def test(self) -> Sequence[Problem]:
        return self.task.test

    def gold(self, problem: Problem) -> str:
        return self.task.gold(problem)
