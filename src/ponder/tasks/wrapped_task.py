"""A task around another, which changes one thing about it."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.protocols import Scorer, Task
from ponder.types import Problem


class WrappedTask:
    """Hands on all of `task` as it is; the subclass replaces what it changes."""

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

    @property
    def verifier(self) -> Scorer:
        return self.task.verifier

    def gold(self, problem: Problem) -> str:
        return self.task.gold(problem)
