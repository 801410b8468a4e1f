"""The one unit of work: solve(problem) -> Trace. Training, evaluation and answering differ in who consumes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ponder.errors import TaskError
from ponder.protocols import Policy, Scorer, Strategy
from ponder.types import Problem, Trace, prompt_trace


async def solve(problem: Problem, strategy: Strategy, policy: Policy, scorer: Scorer | None = None) -> Trace:
    trace = prompt_trace(problem, policy.encode(problem.messages))
    await strategy(trace, policy, scorer)
    return trace


async def solve_all(
    problems: Sequence[Problem], strategy: Strategy, policy: Policy, scorer: Scorer | None = None
) -> list[Trace]:
    """All at once: the policy batches what waits together. The first failure stops the rest."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(solve(p, strategy, policy, scorer)) for p in problems]
    return [t.result() for t in tasks]


def pick(problems: Sequence[Problem], seed: int, first: int, count: int) -> list[Problem]:
    """Problems number `first`, first + 1, ... of an endless shuffled stream."""
    return [problems[i] for i in stream(len(problems), seed, first, count)]


def stream(size: int, seed: int, first: int, count: int) -> list[int]:
    """Indices number `first`, first + 1, ... of an endless shuffled stream: each epoch is a new permutation.

    A pure function of its arguments, so a run's place in its data is one integer.
    """
    if not size:
        raise TaskError("the task has no problems: check its settings or its data folder")
    chosen: list[int] = []
    while len(chosen) < count:
        epoch, place = divmod(first + len(chosen), size)
        chosen += _epoch(size, seed, epoch)[place : place + count - len(chosen)].tolist()
    return chosen


@lru_cache(maxsize=2)  # a step's problems lie in one epoch or two, and the next step's in the same
def _epoch(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = np.random.default_rng([seed, epoch]).permutation(size)
    order.flags.writeable = False
    return order
