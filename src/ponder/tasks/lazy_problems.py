"""A sequence of problems each of which is made when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, overload

from ponder.types import Problem


class LazyProblems(Sequence[Problem]):
    """The base of such sequences. A subclass says how many problems there are, and makes the one at an index."""

    @abstractmethod
    def problem_at(self, index: int) -> Problem:
        """The problem at an index from 0 up to the length."""

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        indices = range(len(self))[index]
        return self.problem_at(indices) if isinstance(indices, int) else [self.problem_at(i) for i in indices]


class MappedProblems(LazyProblems):
    """One problem for each item, made by a function of it."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Problem]) -> None:
        self._items, self._make = items, make

    def __len__(self) -> int:
        return len(self._items)

    def problem_at(self, index: int) -> Problem:
        return self._make(self._items[index])
