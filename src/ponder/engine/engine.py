"""Generation and scoring for many callers at once, in a thread of its own.

Each step of the thread plans a batch, runs the model on it and samples. A request joins the batch at the next step and
leaves it when it is finished. What host code raises for one sequence fails that sequence's call; the others continue.
`Mailbox` moves calls and results between the callers and the thread.
"""

from __future__ import annotations

import asyncio
import atexit
import time
import traceback
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakSet, finalize

import numpy as np
import torch
from torch import Tensor

from ponder.engine import request_errors
from ponder.engine.adapters import Adapters
from ponder.engine.kv_cache import MIN_CACHE_BYTES, bytes_per_token, cache_budget
from ponder.engine.mailbox import EngineCall, Mailbox, TokenChunk, TokenEvent
from ponder.engine.model_runner import ModelRunner, PendingTokens
from ponder.engine.request import ReadRequest, Request, SequenceState, check_requests, check_tokens
from ponder.engine.runner_factory import make_runner
from ponder.engine.sampling_step import StopCheck, append_sampled, sample_and_append
from ponder.engine.scheduler import Scheduler, StepPlan
from ponder.errors import ModelError, UsageError
from ponder.nets.decoder import Decoder
from ponder.weak_method import weak_method

MAX_NUM_SEQS = 1024  # sequences that run at once, unless a caller says otherwise
# Tokens of prompts computed in one step. A GPU computes more in the same time.
_PREFILL_CHUNK_TOKENS = {"cpu": 512, "mps": 1024}
_PREFILL_CHUNK_TOKENS_GPU = 8192
# On a CPU a small network computes more too. Sequences that come together then begin, and mostly end, in one step.
_SMALL_NETWORK_PARAMETERS, _PREFILL_CHUNK_TOKENS_SMALL = 1 << 22, 4096
# On a GPU, while callers hear their tokens as they come: steps of one launch, so that a new request waits less for the
# launch before it; and launches between two of a single step, which brings the first tokens of new sequences at once.
_STREAMING_STEPS, _LAUNCHES_PER_SINGLE_STEP = 8, 3
_MANY_SEQUENCES = 32  # of fewer, a launch has half of these steps: the host has time for them

# Callers whose sequences have finished may ask again at once. While other steps run, the engine waits so long for them
# before it launches further ones. Of more sequences, the host needs the time itself.
_SECONDS_FOR_NEXT_CALLS, _MAX_SEQUENCES_TO_WAIT = 3e-3, 64

# On a GPU: so many sequences, of which each ends in one launch, are launched as two halves. While the device computes
# one half, the host handles the other and launches the next calls of its callers behind it, from so many sequences on.
_MIN_SEQUENCES_IN_HALVES, _MIN_SEQUENCES_BEHIND = 768, 256
_SECONDS_BETWEEN_LOOKS = 1e-3  # at the device, while the next calls are awaited

_engines: WeakSet[Engine] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all engines: a thread that is inside torch when the interpreter exits aborts the process."""
    for engine in list(_engines):
        engine.close()


@dataclass(slots=True)
class InFlight:
    """Steps that were launched on the device and whose tokens were not collected yet."""

    seqs: list[SequenceState]
    steps: int
    results: PendingTokens
    version: int
    start_time: float
    some_finished: bool = False  # a sequence finished in the launch before this one: a waiting one may take its place


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is: a look from another thread, so the numbers may be of different steps."""

    running: int = 0  # sequences
    waiting: int = 0
    preemptions: int = 0  # since the cache was made
    cache_use: float = 0.0  # the share of the cache that running sequences hold


class Engine:
    """Uses the weights of a decoder in place. `on_tokens` is called with the number of new tokens after each step; if
    it raises, all calls in flight fail with that error, and the engine keeps working.

    The scheduler, the runner and what is in flight belong to the thread of the mailbox. That thread and the mailbox
    keep an engine alive only while a step is due, so its cache is freed when its last user lets go of it.
    """

    def __init__(
        self,
        net: Decoder,
        eos: frozenset[int] = frozenset(),
        stop_check: StopCheck = lambda seq: False,
        *,
        cache_bytes: int | None = None,  # None: PONDER_CACHE_GIB, or 2 GiB, on a GPU a quarter of its free memory
        max_num_seqs: int = MAX_NUM_SEQS,
        prefill_chunk_tokens: int = 0,
        cuda_graphs: bool = True,  # on a GPU: whole steps as CUDA graphs
        quantization: str = "",  # "int8" or "fp8": sample with weights rounded to one byte each
    ) -> None:
        self.net, self.eos, self.stop_check = net, eos, stop_check
        self.cache_bytes, self.max_num_seqs, self.prefill_chunk_tokens = cache_bytes, max_num_seqs, prefill_chunk_tokens
        self.cuda_graphs, self.quantization = cuda_graphs, quantization
        self.version = 0
        self.cuda_stream: torch.cuda.Stream | None = None  # of its steps; None: the default one, which callers share
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        # Called with sequences that go on, now and then while a GPU computes many steps of many.
        self.beside_device: Callable[[Sequence[SequenceState]], None] = lambda seqs: None
        self.mailbox = Mailbox(
            weak_method(self._step_in_stream, lambda: None), weak_method(self._has_work, lambda: False)
        )
        finalize(self, self.mailbox.end).atexit = False
        self.adapters = Adapters(net, self.mailbox.paused, self.mailbox.notify_weights_changed)
        self._cache_tokens = self._token_bytes = 0
        self._scheduler: Scheduler | None = None
        self._runner: ModelRunner | None = None
        self._run_in_flight: InFlight | None = None
        self._collected_at = 0.0
        self._launches_since_single_step = _LAUNCHES_PER_SINGLE_STEP
        _engines.add(self)

    # used by callers, in their own threads

    @property
    def batch_sizes(self) -> Sequence[int]:
        """Numbers of sequences that steps are prepared for, each when it first comes."""
        return self._runner.batch_sizes if self._runner is not None else ()

    def wait_for_kernels(self) -> None:
        """After the first request: wait until the kernels of the runner are compiled."""
        if self._runner is not None:
            self._runner.wait_for_kernels()

    async def generate(
        self, request: Request, on_chunk: Callable[[TokenChunk], None] | None = None
    ) -> list[SequenceState]:
        """All finished sequences of a request. `on_chunk` is called in the event loop with the tokens of each step, or
        of each look at the device; it must not raise."""
        seqs: list[SequenceState] = await self._submit(self._make_sequences([request]), on_chunk)
        return seqs

    async def generate_many(self, requests: Sequence[Request]) -> list[list[SequenceState]]:
        """All finished sequences of each of these requests, which are one call: they wait for each other, and if one
        fails, all do. They have the same adapter."""
        if not requests:
            return []
        if any(request.adapter != requests[0].adapter for request in requests):
            raise UsageError("requests of one call have one adapter")
        seqs = iter(await self._submit(self._make_sequences(requests)))
        return [list(islice(seqs, request.n)) for request in requests]

    async def stream(self, request: Request) -> AsyncIterator[TokenEvent | list[SequenceState]]:
        """Each token as it is sampled, and finally all sequences."""
        async with aclosing(self.stream_chunks(request)) as events:
            async for event in events:
                if isinstance(event, TokenChunk):
                    for token, logprob in zip(event.token_ids, event.logprobs, strict=True):
                        yield event.sequence, token, logprob
                else:
                    yield event

    async def stream_chunks(self, request: Request) -> AsyncGenerator[TokenChunk | list[SequenceState]]:
        """The tokens of each step, or of each look at the device, as they come; finally all sequences."""
        events: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        result = asyncio.ensure_future(self.generate(request, events.put_nowait))
        result.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield await result
        finally:
            result.cancel()

    async def read_hidden_states(self, tokens: Any, start: int = 0, adapter: str = "") -> Tensor:
        """Hidden states [t, E] of the tokens from `start` on. The tokens before it may come from the cache."""
        check_tokens([tokens], self.net.config.vocab, self.net.config.vision is not None)
        if not isinstance(start, int | np.integer) or not 0 <= start < len(tokens):
            raise UsageError(f"start is {start!r}; the text has {len(tokens)} tokens")
        self._check_length(len(tokens))
        read_request = ReadRequest(tokens, start, adapter)
        await self._submit([read_request])
        return torch.cat(read_request.hidden)

    def refresh_weights(self) -> None:
        """The weights have changed: drop the cached prefixes. Requests in flight continue."""
        self.mailbox.notify_weights_changed()

    def paused(self) -> AbstractContextManager[None]:
        """No step runs inside this context: weights may change. Requests in flight continue afterwards."""
        return self.mailbox.paused()

    def close(self) -> None:
        """Callers that still wait get an error, and so do later ones."""
        self.mailbox.close()
        if self._runner is not None:
            self._runner.close()
        self.mailbox.worker = None
        self._fail_all(UsageError("the engine was closed"))

    def sleep(self) -> None:
        """Free the cache's memory; the next request allocates it again. Refused while requests are in flight."""
        with self.paused():
            if in_flight := len(self.mailbox.calls):
                raise UsageError(f"{in_flight} requests are in flight: wait for them before the engine sleeps")
            if self._runner is None or not self._runner.sleep():
                self._runner = None
            self._scheduler = None

    @property
    def busy(self) -> bool:
        """Requests are in flight, or about to be."""
        return self.mailbox.busy

    @property
    def has_requests(self) -> bool:
        return self.mailbox.has_requests

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is now."""
        scheduler = self._scheduler
        if scheduler is None:
            return EngineLoad()
        free = scheduler.allocator.free_count + scheduler.tree.evictable
        return EngineLoad(
            running=len(scheduler.prefilling) + len(scheduler.decoding),
            waiting=len(scheduler.waiting),
            preemptions=scheduler.preemptions,
            cache_use=1 - free / scheduler.allocator.size if scheduler else 0.0,  # finished ones may still hold some
        )

    @property
    def cache_tokens(self) -> int:
        """Number of tokens that fit in the cache."""
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

    async def _submit(self, items: Any, on_chunk: Callable[[TokenChunk], None] | None = None) -> Any:
        if not (adapter := items[0].adapter):
            return await self.mailbox.submit(items, on_chunk)
        with self.adapters.in_use(adapter):
            return await self.mailbox.submit(items, on_chunk)

    def _make_sequences(self, requests: Sequence[Request]) -> list[SequenceState]:
        check_requests(requests, self.net.config.vocab, self.net.config.vision is not None)
        self._check_length(max([len(request.prefix) + request.sampling.max_tokens for request in requests]))
        if any(request.grammar is None and request.sampling.has_grammar for request in requests):
            raise UsageError(
                "regex, json_schema and structural_tag need a grammar that knows the tokenizer: use the policy instead"
            )
        return SequenceState.from_requests(requests)

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
    def _step_in_stream(self) -> None:
        with nullcontext() if self.cuda_stream is None else torch.cuda.stream(self.cuda_stream):
            self._guarded_step()
        if not self._has_work():
            self._run_in_flight = None  # steps after the ends of all sequences: no further step would collect them
        self.mailbox.worker = self if self._has_work() else None

    def _has_work(self) -> bool:
        return bool(self._scheduler)

    def _guarded_step(self) -> None:
        """One step. If it fails, every caller gets the error; if memory ran out, retry with a smaller cache first."""
        try:
            self._step()
        except BaseException as failure:  # of the step or of `on_tokens`: no caller may be left waiting
            try:
                if not (isinstance(failure, RuntimeError) and "out of memory" in str(failure)):  # torch's or Triton's
                    raise
                self._retry_with_smaller_cache(failure)
            except BaseException as error:
                self._fail_all(error)

    def _step(self) -> None:
        running = self._run_in_flight
        if running is not None and running.some_finished and len(running.seqs) <= _MAX_SEQUENCES_TO_WAIT:
            self.mailbox.wait_for_calls(_SECONDS_FOR_NEXT_CALLS)
        elif running is not None:
            self._wait_beside_last_steps(running)
        new, cancelled, weights_changed = self.mailbox.take()
        if weights_changed and self._runner is not None and not self._runner.matches(self.net):
            self._reset()  # the weights are at other addresses now
            self._cache_tokens = self._token_bytes = 0
            new = list(dict.fromkeys(self.mailbox.calls.values()))
        scheduler, runner = self._ensure_runner()
        for call in cancelled:
            self._abort(call)
        in_flight, self._run_in_flight = self._run_in_flight, None
        if in_flight is not None and not (weights_changed or cancelled):
            self._run_in_flight = None if new else self._launch_ahead(in_flight)
            if self._run_in_flight is None:
                self._prefill_ahead(new)
                new = []
                self._run_in_flight = self._launch_behind(in_flight)
        if in_flight is not None:
            self._collect(in_flight)
        if self._run_in_flight is not None:
            return
        if weights_changed:
            scheduler.reset_prefix_cache()
            runner.refresh_weights()
        for call in new:
            self._schedule_call(scheduler, call)
        start_time, preemptions = time.perf_counter(), scheduler.preemptions
        plan = scheduler.plan_step(self._choose_sequences, runner.mixed_batch)
        if scheduler.preemptions != preemptions:
            runner.forget_batch()  # a preempted sequence comes back with other slots
        if plan is not None:
            self._run_plan(plan, scheduler, runner, start_time)

    def _run_plan(self, plan: StepPlan, scheduler: Scheduler, runner: ModelRunner, start_time: float) -> None:
        chunks, seqs, prefilling = plan.chunks, plan.seqs, list(scheduler.prefilling)
        lengths = [seq.num_tokens for seq in seqs]
        failed: dict[SequenceState, Exception] = {}
        if not seqs:
            runner.prefill(chunks)
        elif runner.can_launch(seqs, chunks):
            is_single = plan.steps == 1 and not chunks
            self._launches_since_single_step = 0 if is_single else self._launches_since_single_step + 1
            results = runner.launch(seqs, plan.steps, chunks=chunks)
            self._run_in_flight = InFlight(seqs, plan.steps, results, self.version, start_time)
        else:
            failed = sample_and_append(runner.decode(seqs, chunks), seqs, self.eos, self.stop_check, self.version)
        self._account_time(start_time, plan, prefilling)
        if chunks:
            self.mailbox.finish(*scheduler.finish_chunks(chunks))
        if seqs and self._run_in_flight is None:
            self._deliver(seqs, lengths, failed)

    def _choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        assert self._runner is not None
        chosen, steps = self._runner.choose_sequences(seqs)
        is_new = any(not seq.num_tokens and self._is_heard(seq) for seq in chosen)
        if is_new and self._launches_since_single_step >= _LAUNCHES_PER_SINGLE_STEP:
            return chosen, 1
        steps = self._streaming_steps(chosen, steps)
        in_halves = len(chosen) >= _MIN_SEQUENCES_IN_HALVES and self._runner.launches_async and steps > 1
        if in_halves and _all_end(chosen, steps):
            chosen = chosen[: (len(chosen) + 1) // 2]
        return chosen, steps

    def _streaming_steps(self, seqs: Sequence[SequenceState], steps: int) -> int:
        """The steps of a launch: fewer while callers hear the tokens."""
        if steps == 1 or not any(map(self._is_heard, seqs)):
            return steps
        return min(steps, _STREAMING_STEPS if len(seqs) >= _MANY_SEQUENCES else _STREAMING_STEPS // 2)

    def _is_heard(self, seq: SequenceState) -> bool:
        call = self.mailbox.calls.get(seq)
        return call is not None and call.on_chunk is not None

    def _launch_ahead(self, in_flight: InFlight) -> InFlight | None:
        """Launch the next steps before the tokens of the running ones are collected, so that the device never waits for
        the host. None: no sequence continues, memory is short, or other sequences could join."""
        scheduler, runner = self._scheduler, self._runner
        assert scheduler is not None and runner is not None
        if scheduler.prefilling or (in_flight.some_finished and scheduler.waiting):
            return None
        seqs = [seq for seq in in_flight.seqs if seq.stop is None and seq in self.mailbox.calls]
        if len(seqs) < len(scheduler.decoding):  # the others are next
            return None
        seqs = [seq for seq in seqs if seq.sampling.max_tokens - seq.num_tokens > in_flight.steps]
        if not seqs:
            return None
        steps = self._streaming_steps(seqs, runner.max_steps(seqs, in_flight.steps))
        if not (runner.can_launch_ahead(seqs, steps) and scheduler.reserve_ahead(seqs, steps)):
            return None
        start_time = time.perf_counter()
        self._launches_since_single_step += 1
        return InFlight(seqs, steps, runner.launch(seqs, steps, in_flight.steps), self.version, start_time)

    def _launch_behind(self, in_flight: InFlight) -> InFlight | None:
        """Where all sequences in flight end there, launch the others behind them, before the tokens in flight are
        collected: the device computes while the host handles those. None: there are few others, or memory is short."""
        scheduler, runner = self._scheduler, self._runner
        assert scheduler is not None and runner is not None
        if len(scheduler.decoding) < len(in_flight.seqs) + _MIN_SEQUENCES_BEHIND or scheduler.prefilling:
            return None
        here = set(in_flight.seqs)
        seqs = [seq for seq in scheduler.decoding if seq not in here]
        if len(seqs) < _MIN_SEQUENCES_BEHIND or not _all_end(in_flight.seqs, in_flight.steps):
            return None
        if not (runner.launches_async and runner.can_launch(seqs)):
            return None
        steps = self._streaming_steps(seqs, runner.max_steps(seqs))
        if not scheduler.reserve_ahead(seqs, steps):
            return None
        start_time = time.perf_counter()
        self._launches_since_single_step += 1
        return InFlight(seqs, steps, runner.launch(seqs, steps), self.version, start_time)

    def _wait_beside_last_steps(self, running: InFlight) -> None:
        """Many sequences run, all to their ends: until they are there, the next calls of other callers may come."""
        scheduler, runner = self._scheduler, self._runner
        if scheduler is None or runner is None or len(running.seqs) < _MIN_SEQUENCES_BEHIND:
            return
        if len(scheduler.decoding) > len(running.seqs) or not _all_end(running.seqs, running.steps):
            return
        while not runner.is_idle() and not self.mailbox.wait_for_calls(_SECONDS_BETWEEN_LOOKS):
            pass

    def _prefill_ahead(self, new: Sequence[EngineCall]) -> None:
        """Launch a prefill of waiting prompts before the tokens of the running steps are collected, so that the device
        computes it while the host handles them."""
        scheduler, runner = self._scheduler, self._runner
        assert scheduler is not None and runner is not None
        for call in new:
            self._schedule_call(scheduler, call)
        start_time = time.perf_counter()
        if chunks := scheduler.plan_prefill(runner.can_prefill_ahead):
            self._run_plan(StepPlan(chunks, []), scheduler, runner, start_time)

    def _collect(self, in_flight: InFlight) -> None:
        """Wait for the tokens of launched steps and deliver them, except to sequences that finished or were cancelled
        since the launch."""
        rows = [i for i, seq in enumerate(in_flight.seqs) if seq in self.mailbox.calls]
        if not rows:
            return
        if self._scheduler is not None:
            self._scheduler.evict_ahead(in_flight.steps * len(rows))
        tokens_BS, logprobs_BS = in_flight.results()
        seqs = in_flight.seqs
        if len(rows) < len(seqs):
            seqs, tokens_BS, logprobs_BS = [seqs[i] for i in rows], tokens_BS[rows], logprobs_BS[rows]
        lengths = [seq.num_tokens for seq in seqs]
        discards = self._runner is None or not self._runner.stops_at_end
        failed = append_sampled(tokens_BS, logprobs_BS, seqs, self.eos, self.stop_check, in_flight.version, discards)
        now = time.perf_counter()
        share = (now - max(in_flight.start_time, self._collected_at)) / len(seqs)
        for seq in seqs:
            seq.seconds += share
        self._collected_at = now
        self._deliver(seqs, lengths, failed)
        if self._run_in_flight is not None:
            self._run_in_flight.some_finished = bool(failed) or any(seq.stop is not None for seq in seqs)
            if (
                self._run_in_flight.steps > _STREAMING_STEPS
                and self._runner is not None
                and self._runner.launches_async
            ):
                self.beside_device([seq for seq in self._run_in_flight.seqs if seq.stop is None])

    def _deliver(
        self, seqs: Sequence[SequenceState], lengths: Sequence[int], failed: Mapping[SequenceState, Exception]
    ) -> None:
        """Pass new tokens, results and errors to the callers. `lengths`: tokens of each sequence before this step."""
        scheduler, calls = self._scheduler, self.mailbox.calls
        assert scheduler is not None
        self.on_tokens(sum(seq.num_tokens for seq in seqs) - sum(lengths))  # may raise: before any delivery
        closed: dict[asyncio.AbstractEventLoop, bool] = {}
        for seq in seqs:
            call = calls.get(seq)
            if call is None:
                continue  # another sequence of the same call has failed
            if (is_closed := closed.get(call.loop)) is None:
                is_closed = closed[call.loop] = call.loop.is_closed()
            if is_closed:  # without cancelling: no caller is left
                self._abort(call)
            elif seq in failed:
                self._abort(call)
                self.mailbox.reject(call, failed[seq])
            elif call.on_chunk is not None:
                self.mailbox.emit(seq)
        self.mailbox.flush()
        finished = [seq for seq in seqs if seq.stop is not None and seq in calls]
        scheduler.retire(finished)
        if not scheduler.decoding and self._runner is not None:
            self._runner.forget_batch()
        self.mailbox.finish(*finished)

    def _account_time(
        self, start_time: float, plan: StepPlan, prefilling: Sequence[SequenceState | ReadRequest]
    ) -> None:
        """Share the step's time by tokens. Launched sequences get theirs, prefill included, when they are collected."""
        prefill_tokens = sum(chunk.stop - chunk.start for chunk in plan.chunks)
        seconds_per_token = (time.perf_counter() - start_time) / (prefill_tokens + len(plan.seqs))
        for item in prefilling if plan.chunks else ():
            item.seconds += seconds_per_token * prefill_tokens / len(prefilling)
        for seq in plan.seqs if self._run_in_flight is None else ():
            seq.seconds += seconds_per_token

    def _abort(self, call: EngineCall) -> None:
        """Remove what a call still has in flight."""
        assert self._scheduler is not None
        self._scheduler.remove(*self.mailbox.drop(call))
        if self._runner is not None:
            self._runner.forget_batch()

    def _fail_all(self, error: BaseException) -> None:
        """Fail all calls and drop the cache: after a failed step its contents cannot be trusted."""
        self.mailbox.fail_all(error)
        self._scheduler = self._runner = self._run_in_flight = None

    def _ensure_runner(self) -> tuple[Scheduler, ModelRunner]:
        """Scheduler and runner, made when they are first needed, and again when they do not match the network."""
        net, runner = self.net, self._runner
        if runner is not None and not self._scheduler and not runner.matches(net):
            self._scheduler = self._runner = runner = None  # free the memory before new ones are made
            self._cache_tokens = self._token_bytes = 0
        while self._scheduler is None or runner is None:
            try:
                if runner is None:
                    runner = make_runner(net, self.cache_tokens, self.max_num_seqs, self.cuda_graphs, self.quantization)
                else:
                    runner.wake()
            except torch.OutOfMemoryError as error:
                runner = self._runner = None
                self._halve_cache(error)
                continue
            self._runner = runner
            self._scheduler = Scheduler(self.cache_tokens, self.max_num_seqs, self._chunk_tokens())
            runner.adapters, runner.eos = self.adapters, self.eos
        return self._scheduler, runner

    def _chunk_tokens(self) -> int:
        """Tokens of prompts that one step computes."""
        if self.prefill_chunk_tokens:
            return self.prefill_chunk_tokens
        kind = self.net.device.type
        if kind == "cpu" and sum(p.numel() for p in self.net.parameters()) <= _SMALL_NETWORK_PARAMETERS:
            return _PREFILL_CHUNK_TOKENS_SMALL
        return _PREFILL_CHUNK_TOKENS.get(kind, _PREFILL_CHUNK_TOKENS_GPU)

    def _halve_cache(self, error: BaseException) -> None:
        """Others use the device's memory too: continue with half of the cache."""
        size = self.cache_tokens * self._bytes_per_token
        if self.cache_bytes is not None or size < MIN_CACHE_BYTES:
            raise ModelError(
                f"a cache of {size / 2**20:.0f} MiB and the running batch do not fit in the device's memory: free "
                "some of it, send fewer or shorter requests at once, or give the engine less (cache_bytes)"
            ) from error
        self._cache_tokens = self.cache_tokens // 2
        torch.cuda.empty_cache()

    def _retry_with_smaller_cache(self, error: BaseException) -> None:
        """A step ran out of memory. Sequences in flight keep their tokens and continue with a smaller cache."""
        traceback.clear_frames(error.__traceback__)  # they hold the runner, whose memory is needed
        self._reset()
        self._halve_cache(error)
        scheduler, _ = self._ensure_runner()
        for call in dict.fromkeys(self.mailbox.calls.values()):
            self._schedule_call(scheduler, call)

    def _reset(self) -> None:
        """Drop the cache and the runner. Sequences in flight keep their tokens."""
        if self._runner is not None:
            self._runner.close()  # its warm-up thread holds its memory
        self._scheduler = self._runner = self._run_in_flight = None
        for item in self.mailbox.calls:
            item.node = None
            if isinstance(item, SequenceState):
                item.slots = array("i")
            else:
                item.uncached, item.hidden = None, []

    def _schedule_call(self, scheduler: Scheduler, call: EngineCall) -> None:
        items = [item for item in call.items if item in self.mailbox.calls]
        try:
            if items:  # all of one adapter
                if not scheduler.fits(needed := max(map(_cache_tokens_needed, items))):
                    raise self._too_long(needed)
                self.adapters.load_to_device([items[0].adapter])
        except BaseException as error:
            self.mailbox.reject(call, request_errors.as_request_error(error))
            return
        scheduler.add(items)


def _all_end(seqs: Sequence[SequenceState], steps: int) -> bool:
    """Whether each sequence ends within so many steps."""
    return max([seq.request.sampling.max_tokens - seq.num_tokens for seq in seqs]) <= steps


def _cache_tokens_needed(item: SequenceState | ReadRequest) -> int:
    """Tokens in the cache when the item finishes."""
    if isinstance(item, ReadRequest):
        return item.length
    return len(item.request.prefix) + item.request.sampling.max_tokens
