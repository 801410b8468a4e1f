"""Sampling and scoring for many callers at once, in a thread of its own.

Calls come from any event loop or thread, join the others at the next pass and leave when they are done. The thread
works while there is work, lingers a little, and ends; a call starts it again. Whatever happens, every caller gets an
answer or an error. What host code raises for one text is the error of its own call; the others go on.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from ponder.engine import request_errors
from ponder.engine.adapters import Adapters
from ponder.engine.kv_cache import bytes_per_token
from ponder.engine.model_runner import ModelRunner, PendingTokens
from ponder.engine.request import ReadRequest, Request, SequenceState, check_request, check_tokens
from ponder.engine.runner_factory import MIN_CACHE_BYTES, cache_budget, make_runner
from ponder.engine.sampler import exact_log_softmax
from ponder.engine.sampling_step import StopCheck, append_sampled, sample_and_append
from ponder.engine.scheduler import Scheduler, StepPlan
from ponder.errors import ModelError, UsageError
from ponder.nets.decoder import Decoder

_IDLE_SECONDS = 1.0  # seconds that an idle thread waits for more work
_PREFILL_CHUNK_TOKENS = {
    "cpu": 512,
    "mps": 1024,
}  # tokens of prefixes filled in one pass; on a GPU more fit in the same time
_PREFILL_CHUNK_TOKENS_GPU = 8192

TokenEvent = tuple[int, int, float]  # which continuation, its next token, the token's log-probability

_engines: WeakSet[Engine] = WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread that the interpreter's end meets inside torch aborts the process."""
    for engine in list(_engines):
        engine.close()


@dataclass(eq=False)
class _EngineCall:
    """What one caller asked for, and how to tell him."""

    items: Sequence[SequenceState] | Sequence[ReadRequest]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    on_token: Callable[[TokenEvent], None] | None = None
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.items)

    def notify(self, set_it: Callable[[Any], None], value: Any) -> None:
        def told() -> None:
            if not self.future.done():
                set_it(value)

        with suppress(RuntimeError):  # the caller's loop is closed: nobody listens
            self.loop.call_soon_threadsafe(told)


@dataclass(slots=True)
class InFlight:
    """Passes that the device has been told to run."""

    seqs: list[SequenceState]
    steps: int
    results: PendingTokens
    version: int
    began: float
    ended: bool = False  # a row ended in the flight before: others may take its place


class Engine:
    """Over a decoder whose weights it uses in place. `watch` is told of tokens as they are written; where it raises,
    all calls in hand fail with what it raised, and the engine works on."""

    def __init__(
        self,
        net: Decoder,
        eos: frozenset[int] = frozenset(),
        stop_check: StopCheck = lambda seq: False,
        *,
        cache_bytes: int | None = None,  # None: PONDER_CACHE_GIB, or 2 GiB, on a GPU a quarter of what is free there
        max_num_seqs: int = 1024,
        prefill_chunk_tokens: int = 0,
        cuda_graphs: bool = True,  # on a GPU: whole passes as CUDA graphs
        quantization: str = "",  # "int8" or "fp8": sample from weights of one byte each, rounded from the network's
    ) -> None:
        self.net, self.eos, self.stop_check = net, eos, stop_check
        self.cache_bytes, self.max_num_seqs, self.prefill_chunk_tokens, self.cuda_graphs = (
            cache_bytes,
            max_num_seqs,
            prefill_chunk_tokens,
            cuda_graphs,
        )
        self.quantization = quantization
        self._cache_tokens = self._token_bytes = 0
        self.adapters = Adapters(net, self.paused, self.refresh_weights)
        self.version = 0
        self.before_submit: Callable[[], None] = lambda: None  # called before new calls are looked at
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        self._condition = threading.Condition()  # guards all below but the schedule, which is the thread's
        self._thread: threading.Thread | None = None
        self._gathered: dict[asyncio.AbstractEventLoop, list[_EngineCall]] = {}
        self._inbox: list[_EngineCall] = []
        self._cancelled: list[_EngineCall] = []  # whose callers do not wait any more
        self._weights_changed = self._closed = self._busy = False
        self._paused = 0
        self._calls: dict[SequenceState | ReadRequest, _EngineCall] = {}
        self._scheduler: Scheduler | None = None
        self._runner: ModelRunner | None = None
        self._run_in_flight: InFlight | None = None
        self._collected_at = 0.0
        _engines.add(self)

    # what callers use, in their own threads

    async def generate(self, request: Request) -> list[SequenceState]:
        """All continuations of a prefix, each at its end."""
        seqs: list[SequenceState] = await self._submit(self._make_sequences(request))
        return seqs

    async def stream(self, request: Request) -> AsyncIterator[TokenEvent | list[SequenceState]]:
        """Each token as it is drawn, and at last all rows."""
        seqs = self._make_sequences(request)
        on_token: asyncio.Queue[TokenEvent | None] = asyncio.Queue()
        asking = asyncio.ensure_future(self._submit(seqs, on_token.put_nowait))
        asking.add_done_callback(lambda _: on_token.put_nowait(None))
        try:
            while (event := await on_token.get()) is not None:
                yield event
            yield await asking
        finally:
            asking.cancel()

    async def read_hidden_states(self, tokens: Any, start: int = 0, adapter: str = "") -> Tensor:
        """Hidden states [t, E] of given tokens from `begin` on; those before it are taken from the cache if there."""
        check_tokens(tokens, self.net.config.vocab)
        if not isinstance(start, int | np.integer) or not 0 <= start < len(tokens):
            raise UsageError(f"begin is {start!r}; the text has {len(tokens)} tokens")
        self._check_length(len(tokens))
        reading = ReadRequest(tokens, start, adapter)
        await self._submit([reading])
        return torch.cat(reading.hidden)

    def refresh_weights(self) -> None:
        """The weights have changed: forget what was computed with the old ones. Texts in hand go on."""
        with self._condition:
            self._weights_changed = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No pass runs in here: weights may change under texts in hand, which go on afterwards."""
        if threading.current_thread() is self._thread:
            raise UsageError("a watch runs inside a pass and cannot wait for its end: pause from another thread")
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

    def close(self) -> None:
        """Callers that still wait get an error, and later ones too."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._runner is not None:
            self._runner.close()
        self._fail_all(UsageError("the engine was closed"))

    def sleep(self) -> None:
        """Give the cache's memory back; the next call takes it again. Not while texts are in hand."""
        with self.paused():
            if self._calls:
                raise UsageError(f"{len(self._calls)} texts are in hand: wait for them before the engine sleeps")
            self._run_in_flight = None
            if self._runner is None or not self._runner.sleep():
                self._runner = None
            self._scheduler = None

    @property
    def busy(self) -> bool:
        """Texts are in hand, or about to be."""
        return self.has_requests or not all(loop.is_closed() for loop in list(self._gathered))

    @property
    def has_requests(self) -> bool:
        return bool(self._calls or self._inbox)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        if self.cache_bytes is not None:
            return max(1, self.cache_bytes // self._bytes_per_token)
        if not self._cache_tokens:
            self._cache_tokens = max(1, cache_budget(self.net.device) // self._bytes_per_token)
        return self._cache_tokens

    @property
    def _bytes_per_token(self) -> int:
        if not self._token_bytes:
            self._token_bytes = bytes_per_token(self.net.config, self.net.dtype)
        return self._token_bytes

    async def _submit(self, works: Any, on_token: Callable[[TokenEvent], None] | None = None) -> Any:
        with self.adapters.in_use(works[0].adapter):
            return await self._await_result(works, on_token)

    async def _await_result(self, works: Any, on_token: Callable[[TokenEvent], None] | None) -> Any:
        loop = asyncio.get_running_loop()
        call = _EngineCall(works, loop, loop.create_future(), on_token)
        with self._condition:
            if self._closed:
                raise UsageError("the engine was closed; make a new one")
            for other in [o for o in self._gathered if o.is_closed()]:  # before it could hand over
                del self._gathered[other]
            gathering = self._gathered.setdefault(loop, [])
            gathering.append(call)
        if len(gathering) == 1:
            loop.call_soon(loop.call_soon, self._flush_gathered, loop)
        try:
            return await call.future
        except asyncio.CancelledError:
            with self._condition:
                self._cancelled.append(call)
                self._condition.notify_all()
            raise

    def _flush_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        """All calls that were ready at once come to the thread at once: what shares a pass does not depend on luck."""
        failure: Exception | None = None
        try:
            self.before_submit()
        except Exception as reason:  # nobody may be left waiting
            failure = reason
        with self._condition:
            calls = [call for call in self._gathered.pop(loop, []) if not call.future.done()]
            if self._closed:
                failure = UsageError("the engine was closed")
            elif failure is None and (self._thread is None or not self._thread.is_alive()):  # a fork loses threads
                self._thread = threading.Thread(target=self._run_thread, name="engine", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as reason:  # the system gives no more threads
                    self._thread, failure = None, reason
            if failure is None:
                self._inbox += calls
            else:
                for call in calls:
                    call.notify(call.future.set_exception, failure)
            self._condition.notify_all()

    def _make_sequences(self, request: Request) -> list[SequenceState]:
        check_request(request, self.net.config.vocab)
        self._check_length(len(request.prefix) + request.sampling.max_tokens)
        if request.grammar is None and (request.sampling.regex or request.sampling.json_schema):
            raise UsageError("a pattern or schema needs a guide that knows the tokenizer: ask the policy instead")
        return SequenceState.from_request(request)

    def _check_length(self, tokens: int) -> None:
        if tokens > self.cache_tokens:
            raise self._too_long(tokens)

    def _too_long(self, tokens: int) -> UsageError:
        return UsageError(
            f"prompt and answer may have {tokens} tokens, the cache holds {self.cache_tokens}: "
            "lower max_tokens, or give the engine more memory"
        )

    # the thread

    @torch.inference_mode()
    def _run_thread(self) -> None:
        while self._wait_for_work():
            try:
                self._step()
            except BaseException as failure:  # of a pass or of the watch: nobody may be left waiting
                try:
                    short = isinstance(failure, RuntimeError) and "out of memory" in str(failure)  # torch, or Triton
                    if not short:
                        raise
                    self._retry_with_smaller_cache(failure)
                except BaseException as why:
                    self._fail_all(why)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do, and take in what came. False: the thread ends."""
        with self._condition:
            while True:
                if self._closed:
                    self._thread = None
                    return False
                if not self._paused and (self._inbox or self._cancelled or self._scheduler):
                    self._busy = True
                    return True
                if not self._condition.wait(_IDLE_SECONDS) and not (
                    self._inbox or self._cancelled or self._scheduler or self._paused
                ):
                    self._thread = None
                    return False

    def _step(self) -> None:
        with self._condition:
            inbox, self._inbox = self._inbox, []
            left, self._cancelled = self._cancelled, []
            stale, self._weights_changed = self._weights_changed, False
            for call in inbox:  # from here on, whatever fails, its caller hears of it
                self._calls |= dict.fromkeys(call.items, call)
        if stale and self._runner is not None and not self._runner.matches(self.net):  # the weights lie elsewhere now
            self._reset()
            self._cache_tokens = self._token_bytes = 0
            inbox = list(dict.fromkeys(self._calls.values()))
        scheduler, runner = self._ensure_runner()
        for call in left:
            self._abort(call)
        flight, self._run_in_flight = self._run_in_flight, None
        if flight is not None and not (stale or inbox or left):
            self._run_in_flight = self._launch_ahead(flight)
        if flight is not None:
            self._collect(flight)
        if self._run_in_flight is not None:
            return
        if stale:
            scheduler.reset_prefix_cache()
            runner.refresh_weights()
        for call in inbox:
            self._schedule_call(scheduler, call)
        began, steps_back = time.perf_counter(), scheduler.preemptions
        turn = scheduler.plan_step(runner.choose_sequences, runner.mixed_batch)
        if scheduler.preemptions != steps_back:
            runner.forget_batch()  # who stepped back may come again, with other slots
        if turn is None:
            return
        parts, seqs, filling = turn.chunks, turn.seqs, list(scheduler.prefilling)
        before = [len(seq.token_ids) for seq in seqs]
        failed: dict[SequenceState, Exception] = {}
        if not seqs:
            runner.prefill(parts)
        elif runner.can_launch(seqs, parts):
            results = runner.launch(seqs, turn.steps, parts=parts)
            self._run_in_flight = InFlight(seqs, turn.steps, results, self.version, began)
        else:
            failed = sample_and_append(runner.decode(seqs, parts), seqs, self.eos, self.stop_check, self.version)
        self._account_time(began, turn, filling)
        if parts:
            self._finish(*scheduler.finish_chunks(parts))
        if seqs and self._run_in_flight is None:
            self._deliver(seqs, before, failed)

    def _launch_ahead(self, flight: InFlight) -> InFlight | None:
        """The passes after those that run now, before these were looked at: so the device never waits for the host.
        None where that cannot be: nobody goes on, memory is short, or others could join."""
        scheduler, runner = self._scheduler, self._runner
        assert scheduler is not None and runner is not None
        if scheduler.prefilling or (flight.ended and scheduler.waiting):
            return None
        seqs = [r for r in flight.seqs if r.stop is None and r in self._calls]
        if len(seqs) < len(scheduler.decoding):  # the others have a turn
            return None
        seqs = [r for r in seqs if r.sampling.max_tokens - len(r.token_ids) > flight.steps]
        if not seqs:
            return None
        steps = runner.max_steps(seqs, flight.steps)
        if not (runner.can_launch_ahead(seqs, steps) and scheduler.reserve_ahead(seqs, steps)):
            return None
        began = time.perf_counter()
        return InFlight(seqs, steps, runner.launch(seqs, steps, flight.steps), self.version, began)

    def _collect(self, flight: InFlight) -> None:
        """What a run of passes wrote. Rows that ended or left since it began are not among those that hear of it."""
        there = [i for i, seq in enumerate(flight.seqs) if seq in self._calls]
        if not there:
            return
        tokens_BS, logprobs_BS = flight.results()
        seqs = [flight.seqs[i] for i in there]
        before = [len(seq.token_ids) for seq in seqs]
        failed = append_sampled(tokens_BS[there], logprobs_BS[there], seqs, self.eos, self.stop_check, flight.version)
        now = time.perf_counter()
        for seq in seqs:
            seq.seconds += (now - max(flight.began, self._collected_at)) / len(seqs)
        self._collected_at = now
        self._deliver(seqs, before, failed)
        if self._run_in_flight is not None:
            self._run_in_flight.ended = bool(failed) or any(seq.stop is not None for seq in seqs)

    def _deliver(
        self, seqs: Sequence[SequenceState], before: Sequence[int], failed: Mapping[SequenceState, Exception]
    ) -> None:
        """Tell the callers of these rows what they have now."""
        scheduler = self._scheduler
        assert scheduler is not None
        self.on_tokens(sum(len(seq.token_ids) for seq in seqs) - sum(before))  # may raise: nobody gets half an answer
        for seq, had in zip(seqs, before, strict=True):
            call = self._calls.get(seq)
            if call is None:
                continue  # another continuation of the same call has failed
            if call.loop.is_closed():  # without cancelling: nobody will ever hear
                self._abort(call)
                continue
            if seq in failed:
                self._abort(call)
                call.notify(call.future.set_exception, failed[seq])
                continue
            if call.on_token is not None:
                for token, logprob in zip(seq.token_ids[had:], seq.logprobs[had:], strict=True):
                    with suppress(RuntimeError):
                        call.loop.call_soon_threadsafe(call.on_token, (seq.index, token, logprob))
        ended = [seq for seq in seqs if seq.stop is not None and seq in self._calls]
        scheduler.remove(*ended)
        if not scheduler.decoding and self._runner is not None:
            self._runner.forget_batch()  # what was kept for them
        self._finish(*ended)

    def _account_time(self, began: float, turn: StepPlan, filling: Sequence[SequenceState | ReadRequest]) -> None:
        """By tokens. Rows of a flight are given its time when it lands, and that of what was filled in it."""
        many = sum(part.stop - part.start for part in turn.chunks)
        each = (time.perf_counter() - began) / (many + len(turn.seqs))
        for work in filling if turn.chunks else ():
            work.seconds += each * many / len(filling)
        for seq in turn.seqs if self._run_in_flight is None else ():
            seq.seconds += each

    def _finish(self, *works: SequenceState | ReadRequest) -> None:
        """Callers of one loop hear together: what they ask for next comes together too."""
        ready: dict[asyncio.AbstractEventLoop, list[_EngineCall]] = {}
        for work in works:
            call = self._calls.pop(work)
            call.unfinished -= 1
            if not call.unfinished:
                ready.setdefault(call.loop, []).append(call)
        for loop, calls in ready.items():
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(_resolve_all, calls)

    def _abort(self, call: _EngineCall) -> None:
        """Let go of what a call still has in hand."""
        assert self._scheduler is not None
        self._scheduler.remove(*(work for work in call.items if self._calls.pop(work, None) is not None))
        if self._runner is not None:
            self._runner.forget_batch()

    def _fail_all(self, failure: BaseException) -> None:
        """After a broken pass nothing in the cache can be trusted: begin anew."""
        if isinstance(failure, StopIteration):
            failure = RuntimeError("what watches the engine raised StopIteration")  # which no future takes
        with self._condition:
            inbox, self._inbox, self._cancelled = self._inbox, [], []
        for call in dict.fromkeys([*self._calls.values(), *inbox]):
            call.notify(call.future.set_exception, failure)
        self._calls = {}
        self._scheduler = self._runner = self._run_in_flight = None

    def _ensure_runner(self) -> tuple[Scheduler, ModelRunner]:
        """The cache, made when it is first needed, and anew where it does not serve the network any more."""
        net, runner = self.net, self._runner
        if runner is not None and not self._scheduler and not runner.matches(net):
            self._scheduler = self._runner = runner = None  # free before others are made
            self._cache_tokens = self._token_bytes = 0
        while self._scheduler is None or runner is None:
            try:
                if runner is None:
                    runner = make_runner(net, self.cache_tokens, self.max_num_seqs, self.cuda_graphs, self.quantization)
                else:
                    runner.wake()
            except torch.OutOfMemoryError as why:
                runner = self._runner = None
                self._halve_cache(why)
                continue
            chunk = self.prefill_chunk_tokens or _PREFILL_CHUNK_TOKENS.get(net.device.type, _PREFILL_CHUNK_TOKENS_GPU)
            self._runner, self._scheduler = runner, Scheduler(self.cache_tokens, self.max_num_seqs, chunk)
            runner.adapters = self.adapters
        return self._scheduler, runner

    def _halve_cache(self, why: BaseException) -> None:
        """Others use the device's memory too: do with half of the cache."""
        size = self.cache_tokens * self._bytes_per_token
        if self.cache_bytes is not None or size < MIN_CACHE_BYTES:
            raise ModelError(
                f"a cache of {size / 2**20:.0f} MiB and the work in hand do not fit the device's memory: free some of "
                "it, ask for fewer or shorter texts at once, or give the engine less (cache_bytes)"
            ) from why
        self._cache_tokens = self.cache_tokens // 2
        torch.cuda.empty_cache()

    def _retry_with_smaller_cache(self, why: BaseException) -> None:
        """A pass found no memory. Texts in hand keep what they have, and go on with a smaller cache."""
        traceback.clear_frames(why.__traceback__)  # they hold the runner, whose memory is needed
        self._reset()
        self._halve_cache(why)
        scheduler, _ = self._ensure_runner()
        for call in dict.fromkeys(self._calls.values()):
            self._schedule_call(scheduler, call)

    def _reset(self) -> None:
        """Without a cache. Texts in hand keep what they have."""
        if self._runner is not None:
            self._runner.close()  # what still goes on in it holds its memory
        self._scheduler = self._runner = self._run_in_flight = None
        for work in self._calls:
            work.node = None
            if isinstance(work, SequenceState):
                work.slots = []
            else:
                work.uncached, work.hidden = None, []

    def _schedule_call(self, scheduler: Scheduler, call: _EngineCall) -> None:
        works = [work for work in call.items if work in self._calls]
        try:
            if not all(scheduler.fits(_cache_tokens_needed(work)) for work in works):
                raise self._too_long(max(map(_cache_tokens_needed, works)))
            self.adapters.load_to_device({work.adapter for work in works})
        except BaseException as reason:
            failure = request_errors.as_request_error(reason)
            for work in works:
                del self._calls[work]
            call.notify(call.future.set_exception, failure)
            return
        scheduler.add(works)


def _resolve_all(calls: Sequence[_EngineCall]) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_result(call.items)


def _cache_tokens_needed(work: SequenceState | ReadRequest) -> int:
    """Tokens of the cache, at its end."""
    if isinstance(work, ReadRequest):
        return work.length
    return len(work.request.prefix) + work.sampling.max_tokens


def logprobs_from_hidden(net: Decoder, hidden_TE: Tensor, tokens_T: Tensor) -> Tensor:
    """Of each token, given the hidden state before it. In chunks: [T, V] may be large."""
    out = []
    for hidden, tokens in zip(hidden_TE.split(256), tokens_T.split(256), strict=True):
        out.append(exact_log_softmax(net.logits(hidden)).gather(-1, tokens[:, None])[:, 0])
    if not torch.isfinite(said := torch.cat(out)).all():
        raise ModelError("the model's logits are not finite numbers: its weights are damaged or training diverged")
    return said
