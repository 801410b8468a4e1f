"""Several branches of thought at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ponder.errors import BudgetExhausted

T = TypeVar("T")


async def gather_within_budget(*work: Coroutine[Any, Any, T]) -> tuple[list[T | None], BudgetExhausted | None]:
    """What each returned, in order. Where a budget ran out the others still come to their end: they are paid for.

    None stands where it ran out, and the `BudgetExhausted` is given back. Any other error stops all, and is raised.
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
        await asyncio.gather(*tasks, return_exceptions=True)  # what they reserved is given back before anybody goes on
    errors = [t.exception() for t in tasks]
    spent = next((e for e in errors if isinstance(e, BudgetExhausted)), None)
    return [None if e is not None else t.result() for t, e in zip(tasks, errors, strict=True)], spent
