"""Run several coroutines concurrently under one budget."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ponder.errors import BudgetExhausted

T = TypeVar("T")


async def gather_within_budget(*work: Coroutine[Any, Any, T]) -> tuple[list[T | None], BudgetExhausted | None]:
    """The results in order. If the budget is exhausted in one, the others still finish: they are paid for.

    Its result is then None, and the `BudgetExhausted` is returned too. Any other error cancels all and is raised.
    """
    if len(work) == 1:
        try:
            return [await work[0]], None
        except BudgetExhausted as empty:
            return [None], empty
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if (error := task.exception()) is not None and not isinstance(error, BudgetExhausted):
                    raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, return_exceptions=True
        )  # their reservations are returned before anything continues
    errors = [t.exception() for t in tasks]
    spent = next((e for e in errors if isinstance(e, BudgetExhausted)), None)
    return [None if e is not None else t.result() for t, e in zip(tasks, errors, strict=True)], spent
