"""`event_loop.run`: results and errors, with and without a running event loop."""

import asyncio
import contextvars
import threading

import pytest

from ponder import event_loop


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise ValueError("broken")


def test_run_without_a_loop_returns_the_result():
    assert event_loop.run(double(4)) == 8


def test_run_does_not_write_out_the_result():
    class Large:
        def __repr__(self) -> str:
            written.append(self)
            return "large"

    async def make() -> list[Large]:
        return [Large()]

    written: list[Large] = []
    assert len(event_loop.run(make())) == 1
    assert not written


def test_run_inside_a_loop_returns_the_result():
    async def notebook_cell() -> int:
        return event_loop.run(double(4))

    assert asyncio.run(notebook_cell()) == 8


def test_run_inside_a_loop_raises_the_error():
    async def notebook_cell() -> None:
        event_loop.run(fail())

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(notebook_cell())


def test_run_inside_a_loop_keeps_context_variables():
    variable = contextvars.ContextVar("variable", default=0)

    async def read() -> int:
        return variable.get()

    async def notebook_cell() -> int:
        variable.set(7)
        return event_loop.run(read())

    assert asyncio.run(notebook_cell()) == 7


def test_interrupt_cancels_the_coroutine_in_its_thread(monkeypatch):
    started, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    class Interrupted(event_loop.ThreadPoolExecutor):
        def submit(self, *args):
            future = super().submit(*args)

            def result(timeout=None):
                started.wait(60)
                raise KeyboardInterrupt

            future.result = result
            return future

    monkeypatch.setattr(event_loop, "ThreadPoolExecutor", Interrupted)

    async def notebook_cell() -> None:
        event_loop.run(wait())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook_cell())
    assert cancelled.wait(60)
