"""The tables that captured passes read, followed in plain torch: right whatever comes, ends early, is given up or steps
back while passes are under way."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import run_async, tiny_decoder
from ponder.engine import cuda_graph_runner, engine, graph_batch, graph_buffers, kv_cache, sampler
from ponder.engine.cuda_graph_runner import CudaGraphRunner
from ponder.engine.engine import Engine
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.graph_buffers import GraphBuffers
from ponder.engine.kv_cache import KVCache
from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator
from ponder.engine.request import Request
from ponder.engine.scheduler import PrefillChunk
from ponder.engine.torch_attention import PrefillAttention
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids

_STEPS_IN_TESTS = 3


class ReferenceForward:
    """What `fused_forward` computes, for a network on any device."""

    def __init__(self, net: Decoder, short: int) -> None:
        self.net, self.short = net, short  # how often there will be no memory
        self.chance = random.Random(0)

    def _maybe_out_of_memory(self) -> None:
        if self.short and threading.current_thread().name == "engine" and self.chance.random() < 0.02:
            self.short -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")

    def decode(
        self, w: FusedWeights, kv: KVCache, b: GraphBuffers, rows: int, samples: bool, has_shared: bool = False,
        has_truncation: bool = False, chunks: Sequence[PrefillChunk] = (),
    ) -> Tensor:  # fmt: skip
        self._maybe_out_of_memory()
        at, starts = b.positions[:rows], b.tail_starts[:rows]
        runs = [[(int(starts[r]), b.tail_slots[r, : int(at[r] - starts[r]) + 1])] for r in range(rows)]
        if has_shared:
            for r in range(rows):
                for entry in b.row_entries[int(b.row_entry_ends[r]) : int(b.row_entry_ends[r + 1])].tolist():
                    items = b.items[: int(b.counts)].tolist()
                    (item,) = [i for i in items if i[3] <= entry < i[3] + i[4]]
                    assert int(b.entry_rows[entry]) == r
                    runs[r].append((item[2], b.slots[item[0] : item[0] + item[1]]))
        slots, seen = [], []
        for r in range(rows):
            if runs[r][0][1][-1] == kv.kv[0].shape[2] - 1:  # nobody is there: what it reads is all the same
                runs[r] = runs[r][:1]
            place = torch.cat([first + torch.arange(len(s)) for first, s in runs[r]])
            assert sorted(place.tolist()) == list(range(int(at[r]) + 1)), "each token before it, and none twice"
            order = place.argsort()
            slots.append(torch.cat([s for _, s in runs[r]])[order].long())
            seen.append(slots[-1][-1])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
            kv.write(layer, torch.stack(seen), torch.stack([k, v]).transpose(1, 2))
            out = []
            for r in range(rows):
                keys, values = kv.kv[layer].index_select(2, slots[r][-window:] if window else slots[r])
                many = q.shape[1] // keys.shape[0]
                keys, values = keys.repeat_interleave(many, 0), values.repeat_interleave(many, 0)
                weight = ((q[r][:, None] * keys).sum(-1) * scale).softmax(-1)
                out.append((weight[..., None] * values).sum(1))
            return torch.stack(out)

        hidden = self.net(b.last_tokens[:rows], at, attend)
        b.logits[:rows] = self.net.logits(hidden)
        filled = self.prefill(w, kv, chunks) if chunks else hidden[:0]
        if not samples:
            return filled
        now = int(b.step)
        rules = [
            Sampling(temperature=0.0) if b.greedy[r] else Sampling(
                temperature=float(b.temperature[r]), top_k=int(b.top_k[r]) if has_truncation else 0,
                top_p=float(b.top_p[r]) if has_truncation else 1.0, min_p=float(b.min_p[r]) if has_truncation else 0.0,
            )
            for r in range(rows)
        ]  # fmt: skip
        text = sampler.warp(b.logits[:rows], rules)
        token, logprob = sampler.sample_tokens(text, b.uniforms[:rows, now], b.greedy[:rows] != 0)
        b.tokens[:rows, now], b.logprobs[:rows, now], b.last_tokens[:rows] = token.int(), logprob, token
        b.positions[:rows] += 1
        b.step.add_(1)
        return filled

    def prefill(self, w: FusedWeights, kv: KVCache, chunks: Sequence[PrefillChunk]) -> Tensor:
        self._maybe_out_of_memory()
        attend = PrefillAttention(kv, chunks)
        tokens = np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int64)
        hidden: Tensor = self.net(kv.to_device(tokens), attend.positions_T, attend)
        return hidden


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Engines whose passes are captured ones, but for the kernels."""
    monkeypatch.setattr(graph_buffers, "_MAX_TAIL_KEYS", 12)
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 4)
    monkeypatch.setattr(graph_buffers, "_MIN_SHARED_ITEMS", 3)
    monkeypatch.setattr(graph_buffers, "_MIN_SAVED_BYTES", 600)
    monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 0)
    for module in (graph_buffers, cuda_graph_runner):
        monkeypatch.setattr(module, "STEPS_PER_LAUNCH", _STEPS_IN_TESTS)

    def made(net: Decoder, slots: int, late: float = 0.0, short: int = 0, **more: Any) -> Engine:
        reference = ReferenceForward(net, short)
        for module in (graph_batch, cuda_graph_runner):
            monkeypatch.setattr(module, "fused_forward", reference)
        size = slots * kv_cache.bytes_per_token(net.config, net.dtype)
        monkeypatch.setattr(engine, "cache_budget", lambda device: size << short)
        monkeypatch.setattr(engine, "MIN_CACHE_BYTES", 0)

        def runner(net: Decoder, slots: int, max_num_seqs: int, *_: Any) -> CudaGraphRunner:
            it = CudaGraphRunner(net, slots, max_num_seqs)
            it.close()
            if late:
                it.ready.clear()
                threading.Timer(late, it.ready.set).start()
            return it

        monkeypatch.setattr(engine, "make_runner", runner)
        return Engine(net, **more)

    return made


RULES: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"temperature": 1.4}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1, "temperature": 0.8},
    {}, {}, {"presence_penalty": 0.5}, {"min_tokens": 1}, {"stop_token_ids": (11, 40)},
]  # fmt: skip


@pytest.mark.parametrize(("kind", "storm"), [("llama", 0), ("window", 1), ("gemma", 3), ("llama", 4)])
def test_each_sequence_equals_its_solo_result(graphs: Callable[..., Engine], kind: str, storm: int) -> None:
    net, chance = tiny_decoder(kind), random.Random(storm)
    eos = frozenset(chance.sample(range(3, 64), chance.choice([0, 3, 6])))
    trunk = [chance.randrange(3, 64) for _ in range(30)]
    asked = []
    for i in range(20):
        prompt = trunk[: chance.randrange(1, 30)] + chance.choices(range(3, 64), k=chance.choice([0, 0, 2]))
        rule = {"max_tokens": chance.choice([1, 2, 5, 9, 30]), **chance.choice(RULES)}
        asked.append(Request(ids(prompt), Sampling(**rule), chance.choice([1, 1, 2, 5]), i))
    alone = Engine(net, eos, cache_bytes=1 << 22)

    async def plainly() -> list[Any]:
        return [await alone.generate(request) for request in asked]

    expected = run_async(plainly(), 60)
    late, rows, chunk = chance.choice([0.0, 0.3]), chance.choice([5, 16]), chance.choice([6, 40])
    slots, short = chance.choice([70, 110, 900]), chance.choice([0, 2])
    machine = graphs(net, slots, late, short, eos=eos, max_num_seqs=rows, prefill_chunk_tokens=chunk)
    gone = {i for i in range(len(asked)) if chance.random() < 0.15}

    async def one(i: int) -> None:
        await asyncio.sleep(chance.random() * 0.6)
        if i in gone:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(machine.generate(asked[i]), 0.05)
            return
        for ours, theirs in zip(await machine.generate(asked[i]), expected[i], strict=True):
            assert ours.token_ids == theirs.token_ids and ours.stop == theirs.stop
            assert np.allclose(ours.logprobs, theirs.logprobs, atol=2e-5)

    async def read() -> None:
        text = ids(trunk[: chance.randrange(2, 30)])
        await asyncio.sleep(chance.random() * 0.6)
        assert torch.allclose(
            await machine.read_hidden_states(text, 1), await alone.read_hidden_states(text, 1), atol=1e-4
        )

    async def disturb() -> None:
        for _ in range(6):
            await asyncio.sleep(chance.random() * 0.2)
            with machine.paused():
                machine.refresh_weights()  # the weights are what they were: so is all that is written

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i) for i in range(len(asked))), *(read() for _ in range(4)), disturb())

    run_async(all_of_them(), 60)
    machine.close()
    alone.close()


def test_graph_sequences_beside_adapter_prefill(graphs: Callable[..., Engine], tmp_path: Path) -> None:
    """Such a pass is a plain one; what it knew of the rows is old after those that the graph runs in between."""
    net = tiny_decoder()
    trained = tiny_decoder()
    lora.attach(trained, made := lora.LoRA(rank=2), seed=0)
    with torch.no_grad():
        for name, p in trained.named_parameters():
            if ".lora_B." in name:
                p.normal_(std=0.2)
    lora.save(trained, made, tmp_path / "red", "tiny")
    alone, machine = Engine(net, cache_bytes=1 << 22), graphs(net, 900, prefill_chunk_tokens=6)
    asked = [
        Request(ids([5, 6, 7]), Sampling(max_tokens=60, temperature=0.0), 1, 0),
        Request(ids([9] * 100), Sampling(max_tokens=4, temperature=0.0), 1, 0, "red"),
    ]
    for engine_ in (alone, machine):
        engine_.adapters.add("red", tmp_path / "red")
    expected = [run_async(alone.generate(r))[0] for r in asked]

    async def both() -> list[Any]:
        return await asyncio.gather(*(machine.generate(r) for r in asked))

    for (ours,), theirs in zip(run_async(both()), expected, strict=True):
        assert ours.token_ids == theirs.token_ids and np.allclose(ours.logprobs, theirs.logprobs, atol=2e-5)
    machine.close()


def test_short_prefill_is_not_mixed_and_long_is(graphs: Callable[..., Engine]) -> None:
    machine = graphs(tiny_decoder(), 200, prefill_chunk_tokens=8)
    run_async(machine.generate(Request(ids([5]), Sampling(max_tokens=1), 1, 0)))
    runner = machine._runner
    assert isinstance(runner, CudaGraphRunner)
    chunk = PrefillChunk(
        RadixNode(RadixTree(SlotAllocator(9)), None, ids(range(9)), np.arange(9, dtype=np.int32), 0), 2, 9
    )
    size = sum(p.numel() for p in machine.net.parameters())
    for bound, expected in ((7 * size, True), (7 * size + 1, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", bound)
            assert runner.mixed_batch([chunk]) == expected
            runner.ready.clear()
            assert runner.mixed_batch([chunk]), "before there are graphs, who decodes is computed as on any device"
            runner.ready.set()
    machine.close()


@pytest.mark.parametrize("slots", [74, 92, *(pytest.param(n, marks=pytest.mark.nightly) for n in (80, 86))])
@pytest.mark.parametrize("young", [{}, {"token_stats": ("entropy",)}])
def test_preempted_sequence_reads_its_new_slots(
    graphs: Callable[..., Engine], slots: int, young: dict[str, Any]
) -> None:
    """Those that the graph draws for and those that the host does take turns; who is pushed out in one comes again."""
    net, old = tiny_decoder(), {} if young else {"token_stats": ("entropy",)}
    long = 60 if young else 20
    rules = [([5], long, old), ([4], long + 2, old), ([9] * 3, 60, young), ([7, 8], 40 if young else 60, young)]
    asked = [Request(ids(p), Sampling(max_tokens=n, **rule), 1, 0) for p, n, rule in rules]
    alone, machine = Engine(net, cache_bytes=1 << 22), graphs(net, slots)

    async def together() -> list[Any]:
        return await asyncio.gather(*(machine.generate(r) for r in asked))

    expected = [run_async(alone.generate(r))[0].token_ids for r in asked]
    assert [rows[0].token_ids for rows in run_async(together())] == expected
    assert machine._scheduler is not None and machine._scheduler.preemptions


@pytest.mark.parametrize("captured", [False, True])
def test_readmitted_sequence_reads_its_new_slots(graphs: Callable[..., Engine], captured: bool) -> None:
    """The only one that decodes steps back for a reading that is older; the weights are renewed; it comes again."""
    net = tiny_decoder()
    size = kv_cache.bytes_per_token(net.config, net.dtype)
    asked = [Request(ids([5]), Sampling(max_tokens=40), 1, 3) for _ in range(2)]
    (expected,) = run_async(Engine(net, cache_bytes=1 << 22).generate(asked[0]))
    machine = (
        graphs(net, 230, prefill_chunk_tokens=1)
        if captured
        else Engine(net, cache_bytes=230 * size, prefill_chunk_tokens=1)
    )

    async def both() -> Any:
        reading = asyncio.ensure_future(machine.read_hidden_states(ids([7] * 205)))
        writing = asyncio.ensure_future(machine.generate(asked[1]))
        while machine._scheduler is None or not machine._scheduler.preemptions:
            await asyncio.sleep(0.001)
            assert not reading.done()
        with machine.paused():
            assert not reading.done() and not writing.done()
            machine.refresh_weights()
        await reading
        return (await writing)[0]

    assert run_async(both()).token_ids == expected.token_ids
