"""The order in which a run takes its problems: an endless shuffled stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ponder import memory_check
from ponder.errors import TaskError
from ponder.types import Problem


def shuffled_problems(problems: Sequence[Problem], seed: int, first: int, count: int) -> list[Problem]:
    """Problems number `first`, first + 1, ... of an endless shuffled stream."""
    return [problems[i] for i in shuffled_indices(len(problems), seed, first, count)]


def shuffled_indices(size: int, seed: int, first: int, count: int) -> list[int]:
    """Indices number `first`, first + 1, ... of an endless shuffled stream: each epoch is a new permutation.

    A pure function of its arguments, so a run's place in its data is one integer.
    """
    if not size:
        raise TaskError("the task has no problems: check its settings or its data folder")
    memory_check.require_memory(size * memory_check.ORDER_INDEX_BYTES, size=size)
    chosen: list[int] = []
    while len(chosen) < count:
        epoch, place = divmod(first + len(chosen), size)
        chosen += _epoch_permutation(size, seed, epoch)[place : place + count - len(chosen)].tolist()
    return chosen


@lru_cache(maxsize=2)  # the problems of a step lie in one or two epochs, and so do those of the next
def _epoch_permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = np.random.default_rng([seed, epoch]).permutation(size)
    order.flags.writeable = False
    return order
