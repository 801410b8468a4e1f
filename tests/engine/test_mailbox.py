"""The mailbox with a fake step: callers, their errors, pause and close. No model and no torch."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ponder.engine.mailbox import Mailbox, TokenChunk
from ponder.errors import UsageError


@dataclass(eq=False)
class FakeSequence:
    """An item that a fake step finishes, with the fields that `emit` reads."""

    index: int = 0
    sampled_ids: array[int] = field(default_factory=lambda: array("i"))
    sampled_logprobs: array[float] = field(default_factory=lambda: array("f"))
    top_logprobs: list[Any] = field(default_factory=list)
    stop: str | None = None
    emitted_tokens: int = 0
    emitted_at: float = -math.inf

    @property
    def num_tokens(self) -> int:
        return len(self.sampled_ids)


class FakeWorker:
    """Finishes every item in the step in which it arrives, or after `steps` of them."""

    def __init__(self, steps: int = 1) -> None:
        self.mailbox = Mailbox(self.step, lambda: bool(self.mailbox.calls))
        self.steps, self.batches, self.weights_changed = steps, list[int](), list[bool]()
        self.cancelled = 0
        self.error: BaseException | None = None

    def step(self) -> None:
        new, cancelled, weights_changed = self.mailbox.take()
        self.batches.append(sum(len(call.items) for call in new))
        self.weights_changed.append(weights_changed)
        for call in cancelled:
            self.cancelled += len(self.mailbox.drop(call))
        if self.error is not None:
            error, self.error = self.error, None
            self.mailbox.fail_all(error)
            return
        finished: list[Any] = []
        items: list[Any] = list(self.mailbox.calls)
        for item in items:
            item.sampled_ids.append(7)
            item.sampled_logprobs.append(-0.5)
            if len(item.sampled_ids) >= self.steps:
                item.stop = "length"
                finished.append(item)
            self.mailbox.emit(item)
        self.mailbox.flush()
        self.mailbox.finish(*finished)


def items(n: int) -> list[FakeSequence]:
    return [FakeSequence(i) for i in range(n)]


async def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.001)


def test_the_mailbox_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, ponder.engine.mailbox; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_calls_that_are_ready_together_reach_the_worker_together() -> None:
    worker = FakeWorker()

    async def main() -> list[Any]:
        return list(await asyncio.gather(*(worker.mailbox.submit(items(n)) for n in (1, 2, 3))))

    results = asyncio.run(main())
    assert [len(result) for result in results] == [1, 2, 3]
    assert worker.batches[0] == 6
    assert not worker.mailbox.busy and not worker.mailbox.has_requests


@pytest.mark.parametrize(("seconds_per_chunk", "lengths"), [(0.0, [1, 1, 1]), (1e3, [1, 2])])
def test_emit_passes_each_token_once_and_steps_in_quick_succession_together(
    seconds_per_chunk: float, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponder.engine.mailbox._SECONDS_PER_CHUNK", seconds_per_chunk)
    worker = FakeWorker(steps=3)
    chunks: list[TokenChunk] = []

    async def main() -> None:
        await worker.mailbox.submit(items(2), chunks.append)

    asyncio.run(main())
    for i in (0, 1):
        heard = [chunk for chunk in chunks if chunk.sequence == i]
        assert heard == [TokenChunk(i, [7] * n, [-0.5] * n, []) for n in lengths]


def test_flush_wakes_an_event_loop_once_for_all_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.engine.mailbox._SECONDS_PER_CHUNK", 0.0)
    worker = FakeWorker(steps=4)
    wakes: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[..., Any], *args: Any) -> Any:
            wakes.append(getattr(callback, "__name__", ""))
            return wake(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await worker.mailbox.submit(items(16), lambda chunk: None)

    asyncio.run(main())
    assert wakes.count("_pass_on") == 4


def test_a_cancelled_call_leaves_no_item_in_flight() -> None:
    worker = FakeWorker(steps=10**9)

    async def main() -> None:
        task = asyncio.ensure_future(worker.mailbox.submit(items(4)))
        await wait_for(lambda: len(worker.mailbox.calls) == 4)
        task.cancel()
        await wait_for(lambda: not worker.mailbox.has_requests)

    asyncio.run(main())
    assert worker.cancelled == 4
    worker.mailbox.close()


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration("odd")])
def test_fail_all_reaches_every_caller_and_the_mailbox_works_on(error: BaseException) -> None:
    worker = FakeWorker()
    worker.error = error

    async def main() -> tuple[list[Any], Any]:
        calls = [worker.mailbox.submit(items(1)) for _ in range(3)]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        return failed, await worker.mailbox.submit(items(2))

    failed, later = asyncio.run(main())
    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    assert [type(f) for f in failed] == [expected] * 3
    assert len(later) == 2


def test_an_error_of_before_submit_reaches_the_callers() -> None:
    worker = FakeWorker()

    def broken() -> None:
        raise ValueError("before")

    worker.mailbox.before_submit = broken
    with pytest.raises(ValueError, match="before"):
        asyncio.run(worker.mailbox.submit(items(1)))
    assert not worker.mailbox.busy and not worker.batches


def test_no_step_runs_while_the_mailbox_is_paused() -> None:
    worker = FakeWorker(steps=10**9)

    async def main() -> None:
        task = asyncio.ensure_future(worker.mailbox.submit(items(1)))
        await wait_for(lambda: len(worker.batches) > 3)
        with worker.mailbox.paused():
            worker.mailbox.notify_weights_changed()
            before = len(worker.batches)
            await asyncio.sleep(0.05)
            assert len(worker.batches) == before
        await wait_for(lambda: len(worker.batches) > before)
        assert worker.weights_changed[before] and sum(worker.weights_changed) == 1, (
            "the next step knows it, and no other"
        )
        task.cancel()
        await wait_for(lambda: not worker.mailbox.has_requests)

    asyncio.run(main())
    worker.mailbox.close()


def test_pausing_inside_a_step_is_refused() -> None:
    worker = FakeWorker()
    errors: list[UsageError] = []

    def step() -> None:
        try:
            with worker.mailbox.paused():
                pass
        except UsageError as error:
            errors.append(error)
        FakeWorker.step(worker)

    worker.mailbox.step = step
    asyncio.run(worker.mailbox.submit(items(1)))
    assert errors and "pause from another thread" in str(errors[0])


def test_close_ends_the_thread_and_refuses_later_calls() -> None:
    worker = FakeWorker(steps=10**9)

    async def main() -> None:
        task = asyncio.ensure_future(worker.mailbox.submit(items(1)))
        await wait_for(lambda: worker.mailbox.has_requests and bool(worker.batches))
        await asyncio.to_thread(worker.mailbox.close)
        worker.mailbox.fail_all(UsageError("the engine was closed"))
        with pytest.raises(UsageError, match="the engine was closed"):
            await task
        with pytest.raises(UsageError, match="make a new one"):
            await worker.mailbox.submit(items(1))

    asyncio.run(main())

    assert worker.mailbox._thread is None


def test_an_idle_thread_ends_and_the_next_call_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.engine.mailbox._IDLE_SECONDS", 0.01)
    worker = FakeWorker()

    async def main() -> None:
        await worker.mailbox.submit(items(1))
        await wait_for(lambda: worker.mailbox._thread is None)
        assert len(await worker.mailbox.submit(items(2))) == 2

    asyncio.run(main())


def test_wait_for_calls_ends_when_one_comes() -> None:
    worker = FakeWorker(steps=2)
    waited: list[float] = []
    real = worker.mailbox.take

    def take() -> Any:
        began = time.perf_counter()
        if worker.batches:  # a second call comes while the worker waits; a third does not
            worker.mailbox.wait_for_calls(5.0 if len(worker.batches) == 1 else 0.01)
        waited.append(time.perf_counter() - began)
        return real()

    worker.mailbox.take = take  # type: ignore[method-assign]

    async def two() -> None:
        first = asyncio.ensure_future(worker.mailbox.submit([FakeSequence()]))
        while not worker.batches:
            await asyncio.sleep(0.001)
        await asyncio.gather(first, worker.mailbox.submit([FakeSequence()]))

    asyncio.run(asyncio.wait_for(two(), 20))
    worker.mailbox.close()
    assert worker.batches[:2] == [1, 1] and waited[1] < 5.0 and waited[2] >= 0.01
