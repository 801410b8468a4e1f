"""Run a coroutine from synchronous code, also where an event loop is already running, as in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result. Inside a running event loop the coroutine gets a loop and a thread of its own."""
    return _run_in_thread(coroutine) if _is_loop_running() else asyncio.run(coroutine)


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> Result:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await coroutine

    with ThreadPoolExecutor(1, thread_name_prefix="ponder") as pool:
        future = pool.submit(contextvars.copy_context().run, asyncio.run, main())
        try:
            return future.result()
        except BaseException:  # Ctrl-C reaches this thread only: end the other one too
            if not future.done() and running:
                loop, task = running[0]
                loop.call_soon_threadsafe(task.cancel)
            raise
