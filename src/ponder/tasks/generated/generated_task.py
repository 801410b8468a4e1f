"""The base class of generated tasks. Problem i of a split is a pure function of (task, split, seed, i).

So a run resumes from an integer, and no problem is in both splits: the hash of its canonical key decides the split,
whatever the seed. A problem is drawn again until it falls into the split that was asked for.

How hard the problems are is set field by field, or all at once by `level`: 1 is the easiest, and each task's
table `LEVELS` says which settings a level stands for.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from ponder import memory_check
from ponder.errors import TaskError, UsageError
from ponder.protocols import Scorer
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.split import hashes_to_test, stable_hash
from ponder.types import Problem

Item = TypeVar("Item")

MAX_DRAWS = 2_000  # draws without anything new before a space counts as exhausted


@dataclass(frozen=True, kw_only=True)
class GeneratedTask(ABC, Generic[Item]):
    """A task whose problems are drawn. `train` may repeat itself; `test` holds distinct problems only."""

    LEVELS: ClassVar[Sequence[Mapping[str, Any]]] = ()  # the settings of level 1, 2, ...; each names the same ones

    seed: int = 0
    size: int = 100_000
    test_size: int = 300
    system: str | None = None
    level: int | None = None  # None: the settings as they are given

    def __post_init__(self) -> None:
        require_at_least(1, size=self.size, test_size=self.test_size)
        if self.level is not None:
            self._apply_level(self.level)
        self.check()
        try:
            self.problem(self.draw(random.Random(0)), "check")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UsageError(
                f"the prompt of task {self.name!r} cannot be filled in ({error!r}); use only the fields of its"
                " default prompt, and write {{ }} for braces that shall stay"
            ) from error
        self.verifier  # noqa: B018  builds it, which checks its settings

    def _apply_level(self, level: int) -> None:
        """Apply the settings of a level. Raises an error where the same settings are also given themselves."""
        if not 1 <= level <= len(self.LEVELS):
            have = f"levels 1 to {len(self.LEVELS)}" if self.LEVELS else "no levels; leave it out"
            raise UsageError(f"level is {level}; task {self.name!r} has {have}")
        preset = self.LEVELS[level - 1]
        current = {name: getattr(self, name) for name in preset}
        if current not in (preset, self._level_defaults()):
            listed = ", ".join(f"{name}={value}" for name, value in preset.items())
            raise UsageError(f"give task {self.name!r} a level or {', '.join(preset)}; level {level} is {listed}")
        for name, value in preset.items():
            object.__setattr__(self, name, value)

    def _level_defaults(self) -> dict[str, Any]:
        return {f.name: f.default for f in fields(self) if f.name in self.LEVELS[0]}

    def at_level(self, level: int) -> Self:
        """This task at another level."""
        return replace(self, **self._level_defaults(), level=level) if self.LEVELS else replace(self, level=level)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def verifier(self) -> Scorer: ...

    def check(self) -> None:
        """Refuse settings that cannot work, once they stand."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Item:
        """What one problem is about, before it is put into words."""

    @abstractmethod
    def key(self, item: Item) -> str:
        """The same for items that are one problem to a learner, as a + b and b + a."""

    @abstractmethod
    def problem(self, item: Item, id: str) -> Problem: ...

    @abstractmethod
    def gold(self, problem: Problem) -> str:
        """A completion that the verifier accepts."""

    @property
    def train(self) -> Sequence[Problem]:
        return GeneratedProblems(self)

    @property
    def test(self) -> Sequence[Problem]:
        return self._test_problems

    @cached_property
    def _test_problems(self) -> Sequence[Problem]:
        memory_check.require_memory(self.test_size * memory_check.PROBLEM_BYTES, test_size=self.test_size)
        items = list(self._test_items())
        if not items:
            raise TaskError(f"task {self.name!r} has no held-out problems: its space is too small; widen its settings")
        return [self.problem(item, f"{self.name}/test/{i}") for i, item in enumerate(items)]

    def training_problem(self, index: int) -> Problem:
        rng = random.Random(stable_hash(f"{self.name}/train/{self.seed}/{index}"))
        for _ in range(MAX_DRAWS):
            if not self._is_test_item(item := self.draw(rng)):
                return self.problem(item, f"{self.name}/train/{index}")
        raise TaskError(f"task {self.name!r} has no training problems: its space is too small; widen its settings")

    def _test_items(self) -> Iterator[Item]:
        """Distinct items of the test side, until there are enough or no more."""
        rng = random.Random(stable_hash(f"{self.name}/test/{self.seed}"))
        seen: set[str] = set()
        idle = 0
        while len(seen) < self.test_size and idle < MAX_DRAWS:
            item = self.draw(rng)
            idle += 1
            if self._is_test_item(item) and (key := self.key(item)) not in seen:
                seen.add(key)
                idle = 0
                yield item

    def _is_test_item(self, item: Item) -> bool:
        return hashes_to_test(f"{self.name} {self.key(item)}", tenths=1)


class GeneratedProblems(LazyProblems):
    """The training problems of a task."""

    def __init__(self, task: GeneratedTask[Any]) -> None:
        self.task = task

    def __len__(self) -> int:
        return self.task.size

    def problem_at(self, index: int) -> Problem:
        return self.task.training_problem(index)


def require_at_least(lowest: int, /, **settings: int) -> None:
    """Refuse settings below what can work."""
    for name, value in settings.items():
        if value < lowest:
            raise UsageError(f"{name} is {value}; it must be at least {lowest}")


def require_at_most(highest: int, /, **settings: int) -> None:
    """Refuse settings above what can work."""
    for name, value in settings.items():
        if value > highest:
            raise UsageError(f"{name} is {value}; it must be at most {highest}")
