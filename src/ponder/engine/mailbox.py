"""Calls from any event loop or thread to one worker thread, and the answers back.

Calls that are ready in the same turn of an event loop reach the worker together. The worker thread starts with the
first call, runs `step` while there is work, waits `_IDLE_SECONDS` for more, and ends; the next call starts it again.
Whatever happens, every caller gets a result or an error.

This file imports neither torch nor numpy: `step` does the work, the mailbox only moves calls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder.errors import UsageError

if TYPE_CHECKING:
    from ponder.engine.request import ReadRequest, SequenceState

_IDLE_SECONDS = 1.0  # seconds that an idle thread waits for more work
_SECONDS_PER_CHUNK = 4e-4  # that an event loop may need for a chunk, with its share of what a request costs

TokenEvent = tuple[int, int, float]  # index of the sequence in its request, its next token, the token's log-probability


class TokenChunk(NamedTuple):
    """The tokens that one step, or one look at the device, added to a sequence."""

    sequence: int  # its index in its request
    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[tuple[Any, Any]]  # per token, where they were asked for: likeliest tokens, log-probabilities


@dataclass(eq=False)
class EngineCall:
    """The items of one call, and the future that its caller awaits."""

    items: Sequence[SequenceState] | Sequence[ReadRequest]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    on_chunk: Callable[[TokenChunk], None] | None = None
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.items)

    def set_exception(self, error: BaseException) -> None:
        """Fail the call, from any thread. Does nothing where the caller is gone."""

        def set_if_pending() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        with suppress(RuntimeError):  # the caller's loop is closed
            self.loop.call_soon_threadsafe(set_if_pending)


class Inbox(NamedTuple):
    """What arrived since the last step."""

    new: list[EngineCall]
    cancelled: list[EngineCall]
    weights_changed: bool


class Mailbox:
    """`step` runs in the worker thread; `has_work` says whether another step is due without a new call.

    `calls` and `_emitted` belong to the worker thread, like everything that `step` uses. `_condition` guards all other
    fields.
    """

    def __init__(self, step: Callable[[], None], has_work: Callable[[], bool]) -> None:
        self.step, self.has_work = step, has_work
        self.before_submit: Callable[[], None] = lambda: (
            None
        )  # called in the caller's thread, before calls are handed over
        self.worker: object = None  # kept alive; `step` sets it to what it belongs to, while another step is due
        self.calls: dict[SequenceState | ReadRequest, EngineCall] = {}  # of every item in flight
        self._emitted: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[TokenChunk], None], SequenceState]]] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._gathered: dict[asyncio.AbstractEventLoop, list[EngineCall]] = {}
        self._inbox: list[EngineCall] = []
        self._cancelled: list[EngineCall] = []
        self._weights_changed = self._closed = self._busy = False
        self._paused = 0

    # used by callers, in their own threads

    async def submit(self, items: Any, on_chunk: Callable[[TokenChunk], None] | None = None) -> Any:
        """Hand the items of one call to the worker and wait until all are finished."""
        loop = asyncio.get_running_loop()
        call = EngineCall(items, loop, loop.create_future(), on_chunk)
        with self._condition:
            if self._closed:
                raise UsageError("the engine was closed; make a new one")
            for other in [o for o in self._gathered if o.is_closed()]:  # closed before it could hand over its calls
                del self._gathered[other]
            gathered = self._gathered.setdefault(loop, [])
            gathered.append(call)
        if len(gathered) == 1:
            loop.call_soon(loop.call_soon, self._flush_gathered, loop)
        try:
            return await call.future
        except asyncio.CancelledError:
            with self._condition:
                self._cancelled.append(call)
                self._condition.notify_all()
            raise

    def _flush_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over all calls that were ready at once, so that which calls share a step does not depend on timing."""
        failure: Exception | None = None
        try:
            self.before_submit()
        except Exception as error:  # no caller may be left waiting
            failure = error
        with self._condition:
            calls = [call for call in self._gathered.pop(loop, []) if not call.future.done()]
            if self._closed:
                failure = UsageError("the engine was closed")
            elif failure is None and (self._thread is None or not self._thread.is_alive()):  # a fork loses threads
                self._thread = threading.Thread(target=self._run_thread, name="engine", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system has no more threads
                    self._thread, failure = None, error
            if failure is None:
                self._inbox += calls
            else:
                for call in calls:
                    call.set_exception(failure)
            self._condition.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step runs inside this context. Requests in flight continue afterwards."""
        if threading.current_thread() is self._thread:
            raise UsageError("on_tokens runs inside a step and cannot wait for its end: pause from another thread")
        with self._condition:
            self._paused += 1
        try:
            with self._condition:
                self._condition.wait_for(lambda: not self._busy)
            yield
        finally:
            with self._condition:
                self._paused -= 1
                self._condition.notify_all()

    def notify_weights_changed(self) -> None:
        with self._condition:
            self._weights_changed = True

    def close(self) -> None:
        """Refuse new calls and wait for the thread to end. Calls in flight stay: see `fail_all`."""
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def end(self) -> None:
        """`close`, without waiting: what `step` belonged to is gone, and nobody is left to call."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def busy(self) -> bool:
        """Requests are in flight, or about to be."""
        return self.has_requests or not all(loop.is_closed() for loop in list(self._gathered))

    @property
    def has_requests(self) -> bool:
        return bool(self.calls or self._inbox)

    # the worker thread

    def _run_thread(self) -> None:
        while self._wait_for_work():
            try:
                self.step()
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()

    def _wait_for_work(self) -> bool:
        """Wait until a step is due. False: the thread ends."""
        with self._condition:
            while True:
                if self._closed:
                    self._thread = None
                    return False
                if not self._paused and (self._inbox or self._cancelled or self.has_work()):
                    self._busy = True
                    return True
                if not self._condition.wait(_IDLE_SECONDS) and not (
                    self._inbox or self._cancelled or self.has_work() or self._paused
                ):
                    self._thread = None
                    return False

    # used by `step`, in the worker thread

    def wait_for_calls(self, seconds: float) -> bool:
        """Wait until calls come, or are cancelled, but not longer than this. False: none came."""

        def has_mail() -> bool:
            return bool(self._inbox or self._cancelled or self._closed or self._paused)

        with self._condition:
            return self._condition.wait_for(has_mail, seconds)

    def take(self) -> Inbox:
        """Empty the inbox. The new calls are registered in `calls` at once, so that no failure can lose them."""
        with self._condition:
            inbox = Inbox(self._inbox, self._cancelled, self._weights_changed)
            self._inbox, self._cancelled, self._weights_changed = [], [], False
            for call in inbox.new:
                self.calls |= dict.fromkeys(call.items, call)
        return inbox

    def emit(self, seq: SequenceState) -> None:
        """Pass the new tokens of a sequence to the caller's `on_chunk`, at the next `flush`."""
        call = self.calls[seq]
        if call.on_chunk is not None and seq.num_tokens > seq.emitted_tokens:
            self._emitted.setdefault(call.loop, []).append((call.on_chunk, seq))

    def flush(self) -> None:
        """Hand over what was emitted. Each event loop is woken once, however many sequences it has. Where there are
        many, tokens of several steps come together: a loop that must pass each chunk on would hold up the worker."""
        emitted, self._emitted = self._emitted, {}
        now = time.monotonic()
        for loop, heard in emitted.items():
            earlier = now - _SECONDS_PER_CHUNK * len(heard)
            chunks = [
                (on_chunk, _next_chunk(seq, now))
                for on_chunk, seq in heard
                if seq.emitted_at <= earlier or seq.stop is not None
            ]
            if chunks:
                with suppress(RuntimeError):  # the caller's loop is closed
                    loop.call_soon_threadsafe(_pass_on, chunks)

    def finish(self, *items: SequenceState | ReadRequest) -> None:
        """These items are finished. Calls of one loop resolve together, so that their next calls come together too."""
        ready: dict[asyncio.AbstractEventLoop, list[EngineCall]] = {}
        for item in items:
            call = self.calls.pop(item)
            call.unfinished -= 1
            if not call.unfinished:
                ready.setdefault(call.loop, []).append(call)
        for loop, calls in ready.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve_all, calls)

    def drop(self, call: EngineCall) -> list[SequenceState | ReadRequest]:
        """Forget a call. Returns its items that were still in flight."""
        return [item for item in call.items if self.calls.pop(item, None) is not None]

    def reject(self, call: EngineCall, error: BaseException) -> None:
        """Forget a call and raise an error in its caller."""
        self.drop(call)
        call.set_exception(error)

    def fail_all(self, error: BaseException) -> None:
        """Raise an error in every caller, those in the inbox included."""
        if isinstance(error, StopIteration):  # a future refuses it
            error = RuntimeError("the engine's on_tokens callback raised StopIteration")
        with self._condition:
            inbox, self._inbox, self._cancelled = self._inbox, [], []
        for call in dict.fromkeys([*self.calls.values(), *inbox]):
            call.set_exception(error)
        self.calls = {}


def _next_chunk(seq: SequenceState, now: float) -> TokenChunk:
    since, seq.emitted_tokens, seq.emitted_at = seq.emitted_tokens, seq.num_tokens, now
    token_ids, logprobs = seq.sampled_ids[since:].tolist(), seq.sampled_logprobs[since:].tolist()
    return TokenChunk(seq.index, token_ids, logprobs, seq.top_logprobs[since:])


def _pass_on(chunks: Sequence[tuple[Callable[[TokenChunk], None], TokenChunk]]) -> None:
    for on_chunk, chunk in chunks:
        on_chunk(chunk)


def _resolve_all(calls: Sequence[EngineCall]) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_result(call.items)
