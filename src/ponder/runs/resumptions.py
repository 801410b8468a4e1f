"""Which records of a run are valid: a mark that the run resumed from a step takes back earlier ones of it and later."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ValidRecords(Generic[T]):
    """Records in order, with their steps. Many marks cost no more than few: each record is taken back once."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[int, T]] = {}
        self._latest: list[tuple[int, int]] = []  # a heap: the highest step first
        self._count = 0

    def add(self, step: int, record: T) -> None:
        self._records[self._count] = (step, record)
        heapq.heappush(self._latest, (-step, self._count))
        self._count += 1

    def take_back(self, step: int) -> None:
        """Remove what was added of this step and later ones."""
        while self._latest and -self._latest[0][0] >= step:
            del self._records[heapq.heappop(self._latest)[1]]

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Each with its step."""
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)
