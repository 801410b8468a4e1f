"""Several tasks as one, and a task with more rewards than its verifier's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from ponder.errors import UsageError
from ponder.protocols import Scorer, Task
from ponder.tasks.styled import with_style
from ponder.types import Problem, Score, Trace
from ponder.verify.rewards import weighted

_OF = "task"  # the tag that says which task a problem is of


@dataclass(frozen=True)
class Shaped:
    """A task whose reward is a weighted sum: `(("number", 1.0), ("format", 0.2))`, the verifier by its own name."""

    task: Task
    rewards: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        self.verifier  # noqa: B018  says at once which name is unknown

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
        return weighted(dict(self.rewards), self.task.verifier)

    def gold(self, problem: Problem) -> str:
        return self.task.gold(problem)

    def styled(self, style: str) -> Shaped:
        return replace(self, task=with_style(self.task, style))


@dataclass(frozen=True)
class Mixed:
    """Problems of several tasks in turn, each judged by its own task's verifier."""

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        names = [t.name for t in self.tasks]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"a mixture needs tasks with names of their own; these are {names}")

    @property
    def name(self) -> str:
        return "+".join(t.name for t in self.tasks)

    @property
    def train(self) -> Sequence[Problem]:
        return _Turns([(t.name, t.train) for t in self.tasks])

    @property
    def test(self) -> Sequence[Problem]:
        return _Turns([(t.name, t.test) for t in self.tasks])

    @property
    def verifier(self) -> Scorer:
        return Each(self.tasks)

    def gold(self, problem: Problem) -> str:
        return self._of(problem).gold(problem)

    def styled(self, style: str) -> Mixed:
        return replace(self, tasks=tuple(with_style(task, style) for task in self.tasks))

    def _of(self, problem: Problem) -> Task:
        return next(t for t in self.tasks if t.name == problem.tags[_OF])


@dataclass(frozen=True)
class Each:
    """The verdict of the task that a problem is of. Rewards of several tasks should lie in one range."""

    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        return "each"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        of = trace.problem.tags.get(_OF)
        for task in self.tasks:
            if task.name == of:
                return list(await task.verifier(trace, steps))
        return [Score(None, f"bad data: the problem is of {of!r}, which is none of the tasks")] * len(steps)


class _Turns(Sequence[Problem]):
    """One of each in turn, as long as all have one; then of those that have more."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[Problem]]]) -> None:
        self.parts = parts
        least = min(len(p) for _, p in parts)
        self.together = least * len(parts)
        self.rest = [(name, p, least) for name, p in parts if len(p) > least]

    def __len__(self) -> int:
        return sum(len(p) for _, p in self.parts)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        if at < self.together:
            name, problems = self.parts[at % len(self.parts)]
            return _marked(problems[at // len(self.parts)], name)
        at -= self.together
        for name, problems, first in self.rest:
            if at < len(problems) - first:
                return _marked(problems[first + at], name)
            at -= len(problems) - first
        raise AssertionError("counted above")


def _marked(problem: Problem, name: str) -> Problem:
    return replace(problem, id=f"{name}:{problem.id}", tags={**problem.tags, _OF: name})
