"""Many callers at once: they join, leave, stream, give up and fail without harm to each other."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import char_policy, run_async, tiny_decoder
from ponder.engine import engine as module
from ponder.engine import kv_cache
from ponder.engine.engine import Engine
from ponder.engine.model_runner import ModelRunner
from ponder.engine.request import Request, SequenceState
from ponder.engine.sampler import logprobs_from_hidden
from ponder.engine.scheduler import PrefillChunk
from ponder.errors import ModelError, UsageError
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids
from reference_decoder import plain_logits, weights64


def request(prompt: list[int], n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 12, **sampling}), n, seed)


def make_engine(net: Decoder, slots: int = 4000, **more: Any) -> Engine:
    return Engine(net, cache_bytes=slots * kv_cache.bytes_per_token(net.config, net.dtype), **more)


def hold_after(engine: Any, steps: int) -> threading.Event:
    """From that step on the engine's thread waits until the event is set: no request ends before, however slow this
    thread is. `engine`: or a policy."""
    event, count = threading.Event(), itertools.count(1)

    def wait(tokens: int) -> None:
        if next(count) >= steps:
            event.wait(120)

    engine.on_tokens = wait
    return event


def release_soon(event: threading.Event) -> None:
    """When this thread waits for the pass that is held."""
    threading.Timer(0.2, event.set).start()


def wait_until_idle(engine: Engine) -> None:
    """Nobody holds anything any more: every slot is free or can be had."""
    deadline = time.monotonic() + 120
    while engine.busy or engine.mailbox._cancelled or engine.mailbox._busy:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    schedule = engine._scheduler
    assert schedule is not None and not schedule
    schedule.add([])  # what finished last is cached now
    assert schedule.allocator.free_count + schedule.tree.evictable == schedule.allocator.size
    assert schedule.tree.replace_with_empty().memory.free_count == schedule.allocator.size


def test_cancelled_requests_leave_no_state() -> None:
    net = tiny_decoder()
    engine = make_engine(net, slots=120, max_num_seqs=7, prefill_chunk_tokens=5)
    draw = random.Random(0)
    alone = {p: run_async(make_engine(net).generate(request([p, 9, p], n=2, seed=p))) for p in range(3, 8)}

    async def caller(i: int) -> str:
        await asyncio.sleep(draw.random() * 0.3)
        prompt = 3 + i % 5
        call = asyncio.ensure_future(engine.generate(request([prompt, 9, prompt], n=2, seed=prompt)))
        if i % 3 == 0:
            await asyncio.sleep(draw.random() * 0.05)
            call.cancel()
        try:
            rows = await call
        except asyncio.CancelledError:
            return "gone"
        assert [r.token_ids for r in rows] == [r.token_ids for r in alone[prompt]]
        return "done"

    async def storm() -> list[str]:
        return list(await asyncio.gather(*(caller(i) for i in range(90))))

    ends = run_async(storm())
    assert ends.count("gone") > 5 and ends.count("done") >= 60
    wait_until_idle(engine)


def test_requests_from_several_threads_and_loops() -> None:
    net = tiny_decoder()
    engine = make_engine(net)
    expected = [
        [r.token_ids for r in run_async(make_engine(net).generate(request([i + 3], n=2, seed=i)))] for i in range(6)
    ]
    result: dict[int, Any] = {}

    def one(i: int) -> None:
        result[i] = [r.token_ids for r in asyncio.run(engine.generate(request([i + 3], n=2, seed=i)))]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert [result[i] for i in range(6)] == expected
    wait_until_idle(engine)


def test_late_request_joins_running_batch() -> None:
    engine = make_engine(tiny_decoder())
    go_on, ended = hold_after(engine, 1), list[str]()

    async def one(name: str, tokens: int) -> None:
        await engine.generate(request([5, 6], max_tokens=tokens, seed=1))
        ended.append(name)

    async def late() -> None:
        first = asyncio.ensure_future(one("long", 60))
        while not engine.mailbox.calls:
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(one("short", 3))
        await asyncio.sleep(0.01)  # it is in the mailbox
        go_on.set()
        await asyncio.gather(first, second)

    run_async(late())
    assert ended == ["short", "long"]


def test_stream_yields_tokens_as_they_are_sampled() -> None:
    engine = make_engine(tiny_decoder())

    async def listen() -> tuple[dict[int, list[int]], list[SequenceState], bool]:
        heard: dict[int, list[int]] = {0: [], 1: []}
        early = False
        async for word in engine.stream(request([5, 6], n=2, max_tokens=60)):
            if isinstance(word, tuple):
                heard[word[0]].append(word[1])
                early = early or bool(engine.mailbox.calls)
            else:
                return heard, word, early
        raise AssertionError

    heard, rows, early = run_async(listen())
    assert [heard[0], heard[1]] == [r.token_ids for r in rows] and early


class LaunchingRunner(ModelRunner):
    """A runner like the GPU's, that looks at the text after every few tokens, when others are under way already. Each
    token is its place in the text; of every seventh request, the text ends at that request's seed."""

    chance = random.Random(0)

    def choose_sequences(self, rows: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        kind = self.chance.choice(rows).samples_on_device
        return [row for row in rows if row.samples_on_device == kind], self.max_steps(rows) if kind else 1

    def max_steps(self, rows: Sequence[SequenceState], ahead: int = 0) -> int:
        return self.chance.choice([1, 3, 4])

    def can_launch(self, rows: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        return all(row.samples_on_device for row in rows)

    def can_launch_ahead(self, rows: Sequence[SequenceState], steps: int) -> bool:
        return self.chance.random() < 0.8

    def launch(
        self, rows: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> Any:
        if chunks:
            assert steps == 1 and not ahead
            self.prefill(chunks)
        own = [slot for row in rows for slot in row.slots]
        assert len(set(own)) == len(own), "two rows write to one slot"
        for row in rows:
            assert row.node is not None
            assert len(row.slots) == row.length - 1 - row.node.end + ahead + steps
        tokens = np.asarray([self.written(r, len(r.token_ids) + ahead, steps) for r in rows], np.int32)
        return lambda: (tokens, -tokens.astype(np.float32))

    @staticmethod
    def written(row: SequenceState, begin: int, steps: int) -> list[int]:
        seed = row.request.seed
        return [63 if seed % 7 == 3 and i == seed else i for i in range(begin, begin + steps)]


class LongLaunches(LaunchingRunner):
    """Sixteen steps at once, as of a GPU."""

    launches_async = True

    def max_steps(self, rows: Sequence[SequenceState], ahead: int = 0) -> int:
        return 16


def test_sequences_that_go_on_are_handed_out_while_a_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaunchingRunner, "chance", random.Random(0))
    monkeypatch.setattr(LongLaunches, "can_launch_ahead", lambda self, rows, steps: True)
    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: LongLaunches(net, slots))
    engine = make_engine(tiny_decoder(), slots=400, eos=frozenset({63}))
    handed: list[list[tuple[int, bool]]] = []
    engine.beside_device = lambda seqs: handed.append([(len(seq.token_ids), seq.stop is None) for seq in seqs])
    rows = run_async(engine.generate(request([5, 6], n=2, seed=4, max_tokens=60)))
    assert [len(row.token_ids) for row in rows] == [60, 60]
    assert handed and all(going for own in handed for _, going in own)
    assert any(0 < count < 60 for own in handed for count, _ in own)


@pytest.mark.parametrize("in_halves", [False, True])
def test_launched_steps_lose_no_token_and_no_slot(in_halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storms of requests that come, end early, are cancelled and push each other out, while passes are under way, in
    turns with requests that the host draws for."""

    def slow(i: int) -> Request:
        return request([40 + i % 3], seed=i, max_tokens=i % 40 + 1, token_stats=("entropy",))

    alone = make_engine(tiny_decoder(), eos=frozenset({63}))
    beside = {i: run_async(alone.generate(slow(i)))[0].token_ids for i in range(0, 30, 6)}
    if in_halves:
        launch_in_halves(monkeypatch, 4, 1)
    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: LaunchingRunner(net, slots))
    for storm in range(12):
        chance = random.Random(storm)
        engine = make_engine(tiny_decoder(), slots=chance.choice([60, 90, 400]), eos=frozenset({63}))

        async def one(i: int, chance: random.Random = chance, engine: Engine = engine) -> None:
            await asyncio.sleep(chance.random() * 0.05)
            if i in beside:
                (row,) = await engine.generate(slow(i))
                assert row.token_ids == beside[i]
                return
            asked = request([5, *range(1, 1 + i % 4)], n=chance.choice([1, 3]), seed=i, max_tokens=i % 40 + 1)
            if chance.random() < 0.2:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(engine.generate(asked), 0.01)
                return
            heard: list[int] = []
            on_chunk = (lambda chunk: heard.extend(chunk.token_ids)) if chance.random() < 0.5 else None
            rows = await engine.generate(asked, on_chunk)
            assert on_chunk is None or len(heard) == sum(len(row.token_ids) for row in rows)
            for row in rows:
                ends = i % 7 == 3
                assert row.token_ids == LaunchingRunner.written(row, 0, i + 1 if ends else i % 40 + 1)
                assert row.stop == ("eos" if ends else "length")

        async def all_of_them(one: Any = one) -> None:
            await asyncio.gather(*(one(i) for i in range(30)))

        run_async(all_of_them())
        wait_until_idle(engine)


def launch_in_halves(monkeypatch: pytest.MonkeyPatch, from_seqs: int, behind: int) -> None:
    monkeypatch.setattr(LaunchingRunner, "launches_async", True)
    monkeypatch.setattr(module, "_MIN_SEQUENCES_IN_HALVES", from_seqs)
    monkeypatch.setattr(module, "_MIN_SEQUENCES_BEHIND", behind)


def test_half_is_launched_behind_the_other_before_its_tokens_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight callers, each with three requests of four tokens, one after the other: from the second half on, one launch
    is always in flight while the tokens of another are handed out."""
    launch_in_halves(monkeypatch, 8, 4)
    monkeypatch.setattr(module, "_SECONDS_FOR_NEXT_CALLS", 1.0)  # a busy machine is slower than callers are
    events: list[tuple[str, int]] = []

    class Runner(LaunchAheadRunner):
        def launch(self, rows: Sequence[SequenceState], steps: int, *more: Any, **named: Any) -> Any:
            assert steps == 4
            results = super().launch(rows, steps, *more, **named)
            events.append(("launch", len(rows)))

            def collect() -> Any:
                events.append(("collect", len(rows)))
                return results()

            return collect

        def is_idle(self) -> bool:  # until then, the callers that have just heard of their ends ask again
            return events.count(("launch", 4)) == 6

    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: Runner(net, slots))
    engine = make_engine(tiny_decoder())

    async def search(i: int) -> None:
        for step in range(3):
            (row,) = await engine.generate(request([5, 6], seed=100 * (step + 1) + i, max_tokens=4))
            assert row.token_ids == [0, 1, 2, 3]

    async def everyone() -> None:
        await asyncio.gather(*map(search, range(8)))

    run_async(everyone())
    assert events[:2] == [("launch", 4)] * 2 and events.count(("launch", 4)) == events.count(("collect", 4)) == 6
    in_flight = np.cumsum([1 if kind == "launch" else -1 for kind, _ in events])
    assert in_flight[:-1].min() >= 1 and in_flight.max() == 2
    wait_until_idle(engine)


def test_multi_step_launch_loses_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: LaunchingRunner(net, slots))
    engine = make_engine(tiny_decoder())

    async def listen() -> list[Any]:
        return [word async for word in engine.stream(request([5, 6], n=2, max_tokens=7))]

    *heard, rows = run_async(listen())
    for number in (0, 1):
        assert [w[1:] for w in heard if w[0] == number] == [(i, -float(i)) for i in range(7)]
    assert [r.token_ids for r in rows] == [list(range(7))] * 2
    wait_until_idle(engine)


class LaunchAheadRunner(LaunchingRunner):
    def max_steps(self, rows: Sequence[SequenceState], ahead: int = 0) -> int:
        return 4

    def can_launch_ahead(self, rows: Sequence[SequenceState], steps: int) -> bool:
        return True


class LongLaunchRunner(LaunchAheadRunner):
    """`launched`: sequences and steps of every launch."""

    launched: list[tuple[int, int]]

    def max_steps(self, rows: Sequence[SequenceState], ahead: int = 0) -> int:
        return max(1, min(16, max(row.sampling.max_tokens - len(row.token_ids) for row in rows) - ahead))

    def launch(self, rows: Sequence[SequenceState], steps: int, *more: Any, **named: Any) -> Any:
        self.launched.append((len(rows), steps))
        return super().launch(rows, steps, *more, **named)


def test_streamed_request_gets_its_first_token_alone_and_then_short_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.engine.mailbox._SECONDS_PER_CHUNK", 0.0)
    monkeypatch.setattr(LongLaunchRunner, "launched", [], raising=False)
    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: LongLaunchRunner(net, slots))
    engine = make_engine(tiny_decoder())
    chunks: list[list[int]] = []
    (row,) = run_async(engine.generate(request([5, 6], max_tokens=40), lambda chunk: chunks.append(chunk.token_ids)))
    assert row.token_ids == list(range(40)) == [token for chunk in chunks for token in chunk]
    assert [len(chunk) for chunk in chunks] == [1, *[4] * 9, 3]
    LongLaunchRunner.launched.clear()
    run_async(engine.generate(request([5, 6], max_tokens=40)))  # nobody hears these tokens
    assert [steps for _, steps in LongLaunchRunner.launched] == [16, 16, 8]


def test_launches_of_one_step_are_rare_however_many_streamed_requests_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongLaunchRunner, "launched", [], raising=False)
    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: LongLaunchRunner(net, slots))
    engine = make_engine(tiny_decoder())

    async def one(i: int) -> None:
        for j in range(6):
            (row,) = await engine.generate(request([5, i], seed=7 * i + j, max_tokens=30 + i), lambda chunk: None)
            assert len(row.token_ids) == 30 + i

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i) for i in range(8)))

    monkeypatch.setattr(LongLaunchRunner, "written", staticmethod(lambda row, begin, steps: [1] * steps))
    run_async(all_of_them())
    steps = [steps for _, steps in LongLaunchRunner.launched]
    singles = [i for i, count in enumerate(steps) if count == 1]
    assert max(steps) == module._STREAMING_STEPS // 2 and len(singles) > 1
    assert len(singles) <= 1 + len(steps) / module._LAUNCHES_PER_SINGLE_STEP


def test_prefill_does_not_wait_for_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the passes themselves: how soon this thread hears of them is another matter."""
    order: list[str] = []

    class Noting(LaunchAheadRunner):
        def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
            order.append("prefill")
            super().prefill(chunks)

        def launch(self, rows: Sequence[SequenceState], steps: int, *more: Any, **named: Any) -> Any:
            order.append("launch")
            return super().launch(rows, steps, *more, **named)

    monkeypatch.setattr(module, "make_runner", lambda net, slots, *_: Noting(net, slots))
    engine = make_engine(tiny_decoder(), slots=6000, prefill_chunk_tokens=4)

    async def both() -> list[str]:
        long = asyncio.ensure_future(engine.generate(request([5, 6], max_tokens=5000)))
        while not (engine.mailbox.calls and next(iter(engine.mailbox.calls)).token_ids):  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        await engine.read_hidden_states(ids([7] * 60))
        assert not long.done(), "fifteen passes fill it in: more than may come before others have their turn"
        long.cancel()
        return list(order)

    places = [i for i, kind in enumerate(run_async(both())) if kind == "prefill"][1:]
    assert len(places) == 15 and max(b - a for a, b in pairwise(places)) <= 4, "a few launches between two of them"


def test_out_of_memory_retries_with_smaller_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost or told twice, and the old cache is given up before the new one is made."""
    net, made = tiny_decoder(), list[weakref.ref[ModelRunner]]()
    expected = run_async(make_engine(net).generate(request([7, 7], n=3)))
    passes = [0]

    class Poor(ModelRunner):
        def decode(self, rows: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> torch.Tensor:
            passes[0] += 1
            if passes[0] in (1, 4, 8):
                kind = torch.OutOfMemoryError if passes[0] != 8 else RuntimeError
                raise kind("CUDA error: out of memory")
            return super().decode(rows, chunks)

    def make(net: Decoder, slots: int, *_: Any) -> ModelRunner:
        assert all(old() is None for old in made)
        runner = Poor(net, slots)
        made.append(weakref.ref(runner))
        return runner

    monkeypatch.setattr(module, "make_runner", make)
    monkeypatch.setattr(module, "cache_budget", lambda device: 800 * kv_cache.bytes_per_token(net.config, net.dtype))
    monkeypatch.setattr(module, "MIN_CACHE_BYTES", 0)
    engine = Engine(net)

    async def listen() -> list[Any]:
        words = [word async for word in engine.stream(request([7, 7], n=3))]
        assert engine.cache_tokens == 100 and len(made) == 4
        return words

    *heard, rows = run_async(listen())
    for row, wanted in zip(rows, expected, strict=True):
        assert row.token_ids == wanted.token_ids
        assert [w[1] for w in heard if w[0] == row.index] == wanted.token_ids
    wait_until_idle(engine)


def test_weights_moved_during_requests_in_flight() -> None:
    """A runner that does not serve the network any more is replaced, and the texts go on."""
    net = tiny_decoder()
    engine = make_engine(net)
    go_on = hold_after(engine, 10)

    async def move() -> list[SequenceState]:
        call = asyncio.ensure_future(engine.generate(request([5, 9], n=2, max_tokens=60)))
        while not (engine.mailbox.calls and len(next(iter(engine.mailbox.calls)).token_ids) > 5):  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        release_soon(go_on)
        with engine.paused():
            net.to(torch.float64)
            engine.refresh_weights()
        late = await engine.generate(request([5, 9], max_tokens=3))
        return [*(await call), *late]

    *rows, late = run_async(move())
    assert [len(row.token_ids) for row in rows] == [60, 60] and len(late.token_ids) == 3
    assert [row.token_ids for row in rows] == [
        row.token_ids for row in run_async(make_engine(tiny_decoder()).generate(request([5, 9], n=2, max_tokens=60)))
    ]
    wait_until_idle(engine)


def test_parameters_replaced_during_requests_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, renewed = char_policy(), list[int]()
    go_on = hold_after(policy, 2)

    async def swap() -> None:
        call = asyncio.ensure_future(policy.generate(ids([5]), Sampling(max_tokens=60)))
        while not policy.engine.mailbox.calls:
            await asyncio.sleep(0.001)
        release_soon(go_on)
        monkeypatch.setattr(policy.engine, "refresh_weights", lambda: renewed.append(policy.engine.mailbox._paused))
        with policy.paused():
            assert policy.engine.has_requests
            policy.net.load_state_dict(char_policy(seed=4).net.state_dict(), assign=True)
        await call

    run_async(swap())
    assert renewed == [1], "a pass after the pause would find keys of the old weights"


def test_closed_stream_cancels_request() -> None:
    engine = make_engine(tiny_decoder())

    async def leave() -> None:
        words = engine.stream(request([5, 6], n=2, max_tokens=500))
        async for _ in words:
            break
        await words.aclose()  # type: ignore[attr-defined]

    written: list[int] = []
    engine.on_tokens = written.append
    run_async(leave())
    wait_until_idle(engine)
    assert 0 < sum(written) < 1000, "what was cancelled is not written to its end"


def test_closed_engine_fails_all_requests() -> None:
    engine = make_engine(tiny_decoder())

    async def closing() -> list[Any]:
        calls = [asyncio.ensure_future(engine.generate(request([5, i], max_tokens=2000))) for i in range(4)]
        while not engine.mailbox.calls:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        return list(await asyncio.gather(*calls, engine.generate(request([5])), return_exceptions=True))

    result = run_async(closing())
    assert len(result) == 5 and all(isinstance(f, UsageError) and "closed" in str(f) for f in result)


def test_failed_step_fails_all_requests_and_engine_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_decoder()
    engine = make_engine(net)
    expected = [r.token_ids for r in run_async(make_engine(net).generate(request([7, 7], n=3)))]
    real, passes = ModelRunner.decode, [0]

    def breaks(self: ModelRunner, rows: Any, chunks: Any = ()) -> Any:
        passes[0] += 1
        if passes[0] == 4:
            raise RuntimeError("the device is gone")
        return real(self, rows, chunks)

    monkeypatch.setattr(ModelRunner, "decode", breaks)

    async def some() -> list[Any]:
        calls = [engine.generate(request([7, i], n=2)) for i in range(5)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    assert all(isinstance(f, RuntimeError) for f in run_async(some()))
    assert [r.token_ids for r in run_async(engine.generate(request([7, 7], n=3)))] == expected
    wait_until_idle(engine)


def test_engine_reports_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*given: Any) -> Any:
        raise MemoryError("no room for the cache")

    engine = make_engine(tiny_decoder())
    with monkeypatch.context() as patch:
        patch.setattr("ponder.engine.engine.make_runner", no_room)
        with pytest.raises(MemoryError, match="no room"):
            run_async(engine.generate(request([7, 7], n=3)))
    assert len(run_async(engine.generate(request([7, 7], n=3)))) == 3


def test_on_tokens_errors_reach_callers() -> None:
    engine = make_engine(tiny_decoder())
    given = iter([0])
    engine.on_tokens = lambda tokens: next(given) and None
    with pytest.raises(RuntimeError, match="StopIteration"):
        run_async(engine.generate(request([7, 7])))

    def pause(tokens: int) -> None:
        with engine.paused():
            pass

    engine.on_tokens = pause
    with pytest.raises(UsageError, match="another thread"):
        run_async(engine.generate(request([7, 7])))
    engine.on_tokens = lambda tokens: None
    assert len(run_async(engine.generate(request([7, 7])))) == 1


def test_failed_thread_start_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_decoder())

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
        patch.setattr(threading.Thread, "start", none_left)
        run_async(engine.generate(request([7, 7])))
    assert engine.mailbox._thread is None, "one that never began could not be waited for"
    assert len(run_async(engine.generate(request([7, 7])))) == 1


def test_interrupted_pause_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_decoder())

    def interrupted(ready: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.mailbox._condition, "wait_for", interrupted)
        with engine.paused():
            raise AssertionError
    assert len(run_async(engine.generate(request([7, 7])))) == 1


def test_closed_event_loop_leaves_no_state() -> None:
    engine = make_engine(tiny_decoder())
    early = asyncio.new_event_loop()
    task: Any = early.create_task(engine.generate(request([5, 6])))
    early.call_soon(early.stop)
    early.run_forever()  # asked, and not yet handed over
    assert engine.busy
    early.close()
    assert not engine.busy
    task._log_destroy_pending = False
    late = asyncio.new_event_loop()
    task = late.create_task(engine.generate(request([5, 6], max_tokens=3900)))

    async def begun() -> SequenceState:
        while not engine.mailbox.calls:
            await asyncio.sleep(0.001)
        return next(iter(engine.mailbox.calls))  # type: ignore[return-value]

    row = late.run_until_complete(begun())
    late.close()
    assert not engine.mailbox._gathered
    task._log_destroy_pending = False
    del task
    gc.collect()
    wait_until_idle(engine)
    assert row.stop is None, "it was given up, not written to its end"


_EXITING_PROGRAM = """
import asyncio
from fakes import tiny_decoder
from ponder.engine.engine import Engine
from ponder.engine.request import Request
from ponder.types import Sampling, ids

async def leave():
    engine = Engine(tiny_decoder(), cache_bytes=1 << 26)
    call = asyncio.ensure_future(engine.generate(Request(ids([5]), Sampling(max_tokens=30000), 4, 0)))
    while not engine.mailbox.calls:
        await asyncio.sleep(0.01)
    kept.append((engine, call))

kept = []
asyncio.new_event_loop().run_until_complete(leave())
"""


def test_process_exits_cleanly_with_requests_in_flight() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _EXITING_PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_nan_logits_fail_only_their_request() -> None:
    net = tiny_decoder()
    with torch.no_grad():
        net.embed_tokens.weight[40] = torch.nan  # tied: its logit is no number either, so ask without it
    net.lm_head.weight = torch.nn.Parameter(tiny_decoder(seed=3).embed_tokens.weight.detach().clone())
    engine = make_engine(net)

    async def both() -> list[Any]:
        bad, good = request([5, 40], n=2), request([5, 6], n=2, logit_bias=((40, -1e9),))
        return list(await asyncio.gather(engine.generate(bad), engine.generate(good), return_exceptions=True))

    bad, good = run_async(both())
    assert isinstance(bad, ModelError) and "not finite" in str(bad)
    assert [len(r.token_ids) for r in good] == [12, 12]
    wait_until_idle(engine)


def test_weights_change_during_requests_in_flight() -> None:
    """Each token says which weights drew it; keys computed before stay, and new prompts use none of them."""
    net = tiny_decoder()
    engine = make_engine(net)
    prompt, go_on = [5, 9, 22], hold_after(engine, 10)

    async def update() -> SequenceState:
        call = asyncio.ensure_future(engine.generate(request(prompt, max_tokens=60, temperature=0.0)))
        while not (engine.mailbox.calls and len(next(iter(engine.mailbox.calls)).token_ids) > 5):  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        release_soon(go_on)
        with engine.paused(), torch.no_grad():
            at = len(next(iter(engine.mailbox.calls)).token_ids)  # type: ignore[union-attr]
            await asyncio.sleep(0.02)
            assert len(next(iter(engine.mailbox.calls)).token_ids) == at, "no pass runs meanwhile"  # type: ignore[union-attr]
            for p, q in zip(net.parameters(), tiny_decoder(seed=4).parameters(), strict=True):
                p.copy_(q)
            engine.version = 1
            engine.refresh_weights()
        return (await call)[0]

    result = run_async(update())
    turn = result.versions.index(1)
    assert result.versions == [0] * turn + [1] * (60 - turn) and turn > 5
    old, path = weights64(tiny_decoder()), list(prompt)
    for _ in range(turn):
        path.append(int(plain_logits(old, net.config, path)[-1].argmax()))
    assert result.token_ids[:turn] == path[3:]
    new, path = weights64(tiny_decoder(seed=4)), list(prompt)
    (fresh,) = run_async(engine.generate(request(prompt, max_tokens=6, temperature=0.0)))
    for _ in range(6):
        path.append(int(plain_logits(new, net.config, path)[-1].argmax()))
    assert fresh.token_ids == path[3:] and fresh.versions == [1] * 6
    wait_until_idle(engine)


def test_weights_change_between_a_prompt_and_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens say that the new weights drew them, so these have to read the prompt, too."""
    net, newer = tiny_decoder(), tiny_decoder(seed=4)
    engine, prompts = make_engine(net), list[int]()
    prefill = ModelRunner.prefill

    def change_after(self: ModelRunner, chunks: Sequence[PrefillChunk]) -> None:
        prefill(self, chunks)
        prompts.append(len(chunks))
        if len(prompts) == 1:
            with torch.no_grad():
                for p, q in zip(net.parameters(), newer.parameters(), strict=True):
                    p.copy_(q)
            engine.version = 1
            engine.refresh_weights()

    monkeypatch.setattr(ModelRunner, "prefill", change_after)
    rows = run_async(engine.generate(request([5, 9, 22], n=3, max_tokens=8)))
    assert prompts == [1, 1]
    for row, wanted in zip(
        rows, run_async(make_engine(newer).generate(request([5, 9, 22], n=3, max_tokens=8))), strict=True
    ):
        assert row.versions == [1] * 8 and row.token_ids == wanted.token_ids
        np.testing.assert_allclose(row.logprobs, wanted.logprobs, atol=1e-5)
    wait_until_idle(engine)


# scoring


@pytest.mark.parametrize("kind", ["llama", "window", "gemma"])
def test_scores_equal_plain_forward(kind: str) -> None:
    net = tiny_decoder(kind)
    engine = make_engine(net, slots=60, prefill_chunk_tokens=4)
    draw = np.random.default_rng(1)
    texts = [draw.integers(3, 60, size=int(n)) for n in draw.integers(2, 20, size=12)]
    texts += [np.append(texts[0], [7, 8]), texts[1][:2]]
    w = weights64(net)

    async def all_of_them() -> list[torch.Tensor]:
        return list(await asyncio.gather(*(engine.read_hidden_states(ids(t), int(len(t) // 2)) for t in texts)))

    for text, hidden in zip(texts, run_async(all_of_them()), strict=True):
        begin = len(text) // 2
        exact = plain_logits(w, net.config, text.tolist())[begin:]
        assert hidden.shape == (len(text) - begin, net.config.width)
        with torch.no_grad():
            assert torch.allclose(net.logits(hidden).double(), exact.detach(), atol=1e-4)
    wait_until_idle(engine)


def test_scoring_reuses_the_cache_of_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_decoder()
    engine = make_engine(net)
    (result,) = run_async(engine.generate(request([5, 9, 22, 8], max_tokens=10)))
    fed: list[int] = []
    real = ModelRunner.prefill
    monkeypatch.setattr(
        ModelRunner,
        "prefill",
        lambda self, chunks: (fed.append(sum(len(p.tokens) for p in chunks)), real(self, chunks))[1],
    )
    tokens = [5, 9, 22, 8, *result.token_ids]
    hidden = run_async(engine.read_hidden_states(ids(tokens), 12))
    assert fed == [2] and hidden.shape[0] == 2, "only what is wanted is computed"
    with torch.inference_mode():
        text = logprobs_from_hidden(net, hidden[:1], torch.tensor([tokens[13]]))
    assert float(text[0]) == pytest.approx(result.logprobs[9], abs=1e-5)


def test_request_longer_than_cache_is_refused_alone() -> None:
    engine = make_engine(tiny_decoder(), slots=30)
    with pytest.raises(UsageError, match="31 tokens, the cache holds 30"):
        run_async(engine.read_hidden_states(ids([5] * 31)))
    with pytest.raises(UsageError, match="the cache holds 30"):
        run_async(engine.generate(request([5] * 20, max_tokens=11)))
    assert run_async(engine.generate(request([5] * 20, max_tokens=10)))[0].stop == "length"


# memory


def test_sleep_frees_cache_memory() -> None:
    net = tiny_decoder()
    engine = make_engine(net)
    first = run_async(engine.generate(request([5, 6])))
    engine.sleep()
    assert engine._runner is None
    assert run_async(engine.generate(request([5, 6])))[0].token_ids == first[0].token_ids


def test_sleep_refused_with_requests_in_flight() -> None:
    engine = make_engine(tiny_decoder())
    go_on = hold_after(engine, 1)

    async def try_it() -> None:
        call = asyncio.ensure_future(engine.generate(request([5, 6], max_tokens=20)))
        while not engine.mailbox.calls:
            await asyncio.sleep(0.001)
        release_soon(go_on)
        with pytest.raises(UsageError, match="1 requests are in flight"):
            engine.sleep()
        await call

    run_async(try_it())


def test_idle_thread_ends_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.engine.mailbox._IDLE_SECONDS", 0.01)
    engine = make_engine(tiny_decoder())
    for _ in range(3):
        run_async(engine.generate(request([5, 6])))
        deadline = time.monotonic() + 60
        while engine.mailbox._thread is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
