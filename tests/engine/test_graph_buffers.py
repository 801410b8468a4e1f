"""The tables that captured passes read, followed in plain torch: right whatever comes, ends early, is given up or steps
back while passes are under way."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import run_async, tiny_decoder
from ponder.engine import (
    adapter_columns,
    cuda_graph_runner,
    decode_forward,
    engine,
    fused_forward,
    graph_batch,
    graph_buffers,
    kv_cache,
    prefill_graphs,
    sampler,
)
from ponder.engine.adapter_columns import AdapterRows, PassAdapters
from ponder.engine.cuda_graph_runner import CudaGraphRunner
from ponder.engine.engine import Engine
from ponder.engine.fused_forward import PrefillInputs
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.graph_buffers import GraphBuffers
from ponder.engine.kv_cache import KVCache
from ponder.engine.layer_override import override_forward
from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator
from ponder.engine.request import Request
from ponder.engine.scheduler import PrefillChunk
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids

_STEPS_IN_TESTS = 3


class ReferenceForward:
    """What `fused_forward` computes, for a network on any device."""

    def __init__(self, net: Decoder, short: int) -> None:
        self.net, self.short = net, short  # how often there will be no memory
        self.chance = random.Random(0)

    def shows_pictures(self, w: FusedWeights, chunks: Sequence[PrefillChunk]) -> bool:
        return False

    def _maybe_out_of_memory(self) -> None:
        if self.short and threading.current_thread().name == "engine" and self.chance.random() < 0.02:
            self.short -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")

    def decode(
        self, w: FusedWeights, kv: KVCache, b: GraphBuffers, rows: int, samples: bool, has_shared: bool = False,
        has_truncation: bool = False, chunks: Sequence[PrefillChunk] = (), adapters: PassAdapters = None,
    ) -> Tensor:  # fmt: skip
        self._maybe_out_of_memory()
        of_rows, of_chunks = _split_rows(adapters, rows)
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

        with _low_rank_updates(self.net, w, of_rows):
            hidden = self.net(b.last_tokens[:rows], at, attend)
        b.logits[:rows] = self.net.logits(hidden)
        filled = self.prefill(w, kv, self.plan_prefill(w, chunks).to_device(kv), of_chunks) if chunks else hidden[:0]
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

    plan_prefill = staticmethod(fused_forward.plan_prefill)
    tokens_per_item = staticmethod(fused_forward.tokens_per_item)

    def prefill(
        self, w: FusedWeights, kv: KVCache, inputs: PrefillInputs, adapters: PassAdapters = None, pictures: bool = False
    ) -> Tensor:
        self._maybe_out_of_memory()
        with _low_rank_updates(self.net, w, adapters):
            hidden: Tensor = self.net(inputs.tokens_T, inputs.positions_T, ItemAttention(kv, inputs))
        return hidden


class ItemAttention:
    """What `rotate_and_store` and `prefill_attention` compute, item by item."""

    def __init__(self, cache: KVCache, inputs: PrefillInputs) -> None:
        self.cache, self.inputs = cache, inputs

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        kv_2KTD = torch.stack([k_TKD, v_TKD]).transpose(1, 2)
        self.cache.write(layer, self.inputs.slots_T, kv_2KTD)
        out, group = torch.zeros_like(q_THD), q_THD.shape[1] // k_TKD.shape[1]
        for first, many, begin, place in (item for item in self.inputs.items_I4.tolist() if item[1]):
            seen = self.inputs.table[begin : begin + place + many].long()
            k, v = self.cache.kv[layer].index_select(2, seen).repeat_interleave(group, dim=1)
            back = torch.arange(place, place + many)[:, None] - torch.arange(len(seen))
            mask = back >= 0 if window is None else (back >= 0) & (back < window)
            q = q_THD[first : first + many].transpose(0, 1)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            out[first : first + many] = mixed.transpose(0, 1)
        return out


def _split_rows(adapters: PassAdapters, rows: int) -> tuple[PassAdapters, PassAdapters]:
    if not isinstance(adapters, AdapterRows):
        return adapters, adapters
    return adapters.head(rows), AdapterRows(*(t[rows:] for t in adapters.tensors()))


@contextmanager
def _low_rank_updates(net: Decoder, w: FusedWeights, adapters: PassAdapters) -> Iterator[None]:
    """What `add_low_rank` adds, read from the same buffers, in float64; or the product with merged matrices."""
    updates: dict[torch.nn.Module, Callable[[Any], Any]] = {}
    for linear in w.linears() if adapters is not None else ():
        output, low = 0, linear.low_rank
        for part, (name, size) in enumerate(linear.parts):
            layer = net.get_submodule(name)
            if adapters is adapter_columns.MERGED:
                whole = linear.weight if linear.merged is None else linear.merged
                updates[layer] = _product(whole[output : output + size], lora.base_layer(layer).bias)
            elif low is not None:
                covered = {o for first, many, p in low.tiles.tolist() for o in range(first, first + many) if p == part}
                assert covered in (set(), set(range(output, output + size))), "tiles cover a part, or leave it out"
                if covered:
                    a_CI, b_OC = low.a_PCI[part].double(), low.b_OC[output : output + size].double()
                    updates[layer] = _plus(lora.base_layer(layer), a_CI, b_OC, adapters)
            output += size
    with override_forward(updates):
        yield


def _product(weight: Tensor, bias: Tensor | None) -> Callable[[Any], Any]:
    return lambda _: lambda x: torch.nn.functional.linear(x, weight, bias)


def _plus(base: Any, a_CI: Tensor, b_OC: Tensor, rows: PassAdapters) -> Callable[[Any], Any]:
    assert isinstance(rows, AdapterRows)
    column, scale_T1 = torch.arange(len(a_CI)), rows.scale[:, None]
    mine_TC = (column >= rows.first[:, None]) & (column < rows.last[:, None])
    plain = base.forward if isinstance(base, torch.nn.Linear) else base

    def add(x_TI: Tensor) -> Tensor:
        small_TC = torch.where(mine_TC, x_TI.double() @ a_CI.T, 0.0)
        out: Tensor = plain(x_TI) + (scale_T1 * (small_TC @ b_OC.T)).to(x_TI.dtype)
        return out

    return lambda _: add


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Engines whose passes are captured ones, but for the kernels."""
    monkeypatch.setattr(graph_buffers, "_MAX_TAIL_KEYS", 12)
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 4)
    monkeypatch.setattr(graph_buffers, "_MIN_SHARED_ITEMS", 3)
    monkeypatch.setattr(graph_buffers, "_MIN_SAVED_BYTES", 600)
    monkeypatch.setattr(decode_forward, "PARTS", {1: 1, 4: 2, 1024: 4})
    monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 0)
    for module in (graph_buffers, cuda_graph_runner):
        monkeypatch.setattr(module, "STEPS_PER_LAUNCH", _STEPS_IN_TESTS)

    def made(net: Decoder, slots: int, late: float = 0.0, short: int = 0, **more: Any) -> Engine:
        reference = ReferenceForward(net, short)
        for module in (graph_batch, cuda_graph_runner, prefill_graphs):
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


@pytest.mark.parametrize(
    ("kind", "storm", "mixes"),
    [
        ("llama", 0, True), ("window", 1, False), ("gemma", 3, True), ("llama", 2, False),
        pytest.param("llama", 4, True, marks=pytest.mark.nightly),
        pytest.param("gemma", 5, False, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_each_sequence_equals_its_solo_result(
    graphs: Callable[..., Engine], kind: str, storm: int, mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mixes:
        monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 1e30)
        monkeypatch.setattr(cuda_graph_runner, "_MANY_SEQUENCES", 2)
        monkeypatch.setattr(engine, "_MIN_SEQUENCES_IN_HALVES", 4)
        monkeypatch.setattr(engine, "_MIN_SEQUENCES_BEHIND", 1)
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


@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=9), Sampling(max_tokens=60, stop_token_ids=tuple(range(0, 64, 4)))]
)
def test_graphs_go_with_the_last_user_of_an_engine(graphs: Callable[..., Engine], sampling: Sampling) -> None:
    """Without the garbage collector: they hold the cache of the GPU. Where sequences stop early, the next steps of the
    last ones were launched already."""
    machine = graphs(tiny_decoder(), 900, short=0)
    asked = [Request(ids([3, 4, 5]), sampling, 4, seed) for seed in range(3)]

    async def all_of_them(machine: Engine) -> None:
        await asyncio.gather(*map(machine.generate, asked))

    gc.collect()
    gc.disable()
    try:
        run_async(all_of_them(machine), 60)
        runner = machine._runner
        assert isinstance(runner, CudaGraphRunner) and runner._sampling_batch is not None
        parts = [weakref.ref(part) for part in (machine, runner, runner.cache, runner.columns, runner._sampling_batch)]
        del machine, runner
        end = time.monotonic() + 20
        while any(part() is not None for part in parts) and time.monotonic() < end:
            time.sleep(0.01)
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_new_prompts_are_launched_before_tokens_in_flight_are_collected(
    graphs: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 1e30)
    net = tiny_decoder()
    machine, alone = graphs(net, 300, prefill_chunk_tokens=8), Engine(net, cache_bytes=1 << 22)
    asked = [
        Request(ids([5, 6, 7]), Sampling(max_tokens=60), 2, 0),
        Request(ids(range(3, 40)), Sampling(max_tokens=9), 1, 1),
    ]
    order: list[str] = []
    for owner, name in ((CudaGraphRunner, "launch"), (CudaGraphRunner, "prefill"), (Engine, "_collect")):
        real = getattr(owner, name)

        def spy(self: Any, *given: Any, real: Any = real, name: str = name, **named: Any) -> Any:
            order.append(name)
            return real(self, *given, **named)

        monkeypatch.setattr(owner, name, spy)

    async def one_after_another() -> list[Any]:
        first = asyncio.ensure_future(machine.generate(asked[0]))
        while "launch" not in order:
            await asyncio.sleep(0.001)
        return await asyncio.gather(first, machine.generate(asked[1]))

    for ours, request in zip(run_async(one_after_another(), 60), asked, strict=True):
        theirs = run_async(alone.generate(request), 60)
        assert [seq.token_ids for seq in ours] == [seq.token_ids for seq in theirs]
    assert "launch prefill _collect" in " ".join(order)
    machine.close()


def save_adapter(folder: Path, rank: int, targets: tuple[str, ...] = lora.LORA_TARGETS, seed: int = 0) -> None:
    trained = tiny_decoder()
    lora.attach(trained, made := lora.LoRA(rank, targets=targets), seed)
    write_b(trained, seed)
    lora.save(trained, made, folder, "tiny")


def write_b(net: Decoder, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.2)


def assert_same(machine: Engine, alone: Engine, asked: Sequence[Request]) -> None:
    """Together in captured passes, and one by one in plain ones."""

    async def together() -> list[Any]:
        return await asyncio.gather(*(machine.generate(r) for r in asked))

    for rows, request in zip(run_async(together(), 60), asked, strict=True):
        for ours, theirs in zip(rows, run_async(alone.generate(request), 60), strict=True):
            assert ours.token_ids == theirs.token_ids and np.allclose(ours.logprobs, theirs.logprobs, atol=2e-5)


def test_adapters_share_graph_batches(graphs: Callable[..., Engine], tmp_path: Path) -> None:
    """Adapters of other ranks and layers, and none, beside long prefills; one is added later, one replaced."""
    net = tiny_decoder()
    alone, machine = Engine(net, cache_bytes=1 << 22), graphs(net, 900, prefill_chunk_tokens=6)
    save_adapter(tmp_path / "red", 2)
    save_adapter(tmp_path / "blue", 3, ("q_proj", "v_proj", "down_proj"), seed=1)
    save_adapter(tmp_path / "other", 20, seed=2)  # more columns than the buffers have for the first two
    for name in ("red", "blue"):
        for each in (alone, machine):
            each.adapters.add(name, tmp_path / name)
    rules: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 5}, {"presence_penalty": 0.5}]

    def ask(names: Sequence[str]) -> list[Request]:
        prompts = [[5, 6, 7], [9] * 40, [4], [5, 6, 7, 8]]
        return [
            Request(ids(p), Sampling(max_tokens=4 + 9 * (i % 3), **rules[i % 4]), 2, i, name)
            for i, (p, name) in enumerate((p, name) for p in prompts for name in names)
        ]

    assert_same(machine, alone, ask(["red", "", "blue"]))
    runner = machine._runner
    assert isinstance(runner, CudaGraphRunner) and runner.columns.columns == 16
    assert runner.weights.layers[0].out.low_rank is not None
    launched = runner._sampling_batch
    assert launched is not None and launched.columns is runner.columns
    for each in (alone, machine):
        each.adapters.add("other", tmp_path / "other")
    assert_same(machine, alone, ask(["other", "blue", ""]))
    assert runner.columns.columns == 32 and set(runner.columns._places) == {"red", "blue", "other"}
    for each in (alone, machine):  # the name means another adapter now
        each.adapters.remove("red")
        each.adapters.add("red", tmp_path / "other")
    assert_same(machine, alone, ask(["red"]))
    machine.close()


def test_adapters_used_alone_are_merged_one_after_another(graphs: Callable[..., Engine], tmp_path: Path) -> None:
    """The second changes fewer layers than the first: in the others nothing of the first is left."""
    net = tiny_decoder()
    alone, machine = Engine(net, cache_bytes=1 << 22), graphs(net, 900, prefill_chunk_tokens=6)
    save_adapter(tmp_path / "blue", 3, ("q_proj", "v_proj"), seed=1)
    save_adapter(tmp_path / "red", 2)
    for each in (alone, machine):
        for name in ("red", "blue"):
            each.adapters.add(name, tmp_path / name)
    for name in ("", "blue", "red", "blue", "", "red"):
        assert_same(machine, alone, [Request(ids([5, 6, i]), Sampling(max_tokens=6), 2, i, name) for i in range(3)])
    runner = machine._runner
    assert isinstance(runner, CudaGraphRunner) and runner.columns.layout == 0, "no pass had two of them"
    down = runner.weights.layers[0].down
    assert down.merged is not None and not torch.equal(down.merged, down.weight)
    machine.close()


def test_too_many_adapters_for_the_buffers_run_without_graphs(
    graphs: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_columns, "MAX_COLUMNS", 5)
    net = tiny_decoder()
    alone, machine = Engine(net, cache_bytes=1 << 22), graphs(net, 900)
    for i, name in enumerate(("red", "blue", "green")):
        save_adapter(tmp_path / name, 2, seed=i)
        for each in (alone, machine):
            each.adapters.add(name, tmp_path / name)
    asked = [Request(ids([5, 6]), Sampling(max_tokens=5 + 3 * i), 2, i, n) for i, n in enumerate(machine.adapters)]
    assert_same(machine, alone, asked)
    assert isinstance(machine._runner, CudaGraphRunner) and machine._runner.columns.layout, "two of them fit"
    machine.close()


@pytest.mark.parametrize("base", ["full", "nf4"])
@pytest.mark.parametrize("merges", [True, False])
def test_adapter_in_training_is_sampled_in_graphs(
    graphs: Callable[..., Engine], base: Any, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change of its factors the graphs' copies follow."""
    if not merges:
        monkeypatch.setattr(adapter_columns, "MAX_MERGED_BYTES", 0)
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(rank=3, alpha=5.0, base=base), seed=0)
    machine, texts = graphs(net, 900), set()
    for seed in range(3):
        write_b(net, seed)
        machine.refresh_weights()
        alone = Engine(net, cache_bytes=1 << 22)
        asked = [Request(ids([5, 6, i]), Sampling(max_tokens=12), 3, i) for i in range(4)]
        assert_same(machine, alone, asked)
        texts.add(tuple(run_async(alone.generate(asked[0]))[0].token_ids))
    runner = machine._runner
    assert isinstance(runner, CudaGraphRunner) and runner.can_launch([]) and len(texts) == 3
    kept = runner.columns.layout, runner.columns.generation
    assert kept == ((0, 0) if merges else (1, 1)), "the graphs stay as they are"
    assert (runner.weights.layers[0].qkv.merged is not None) == merges
    assert runner.weights.layers[0].qkv.weight.shape[1] == net.config.width
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


@pytest.mark.parametrize(
    ("error", "is_retried"), [(torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("no kernel"), False)]
)
def test_kernels_are_built_later_if_memory_was_short(
    graphs: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, error: Exception, is_retried: bool
) -> None:
    net, request = tiny_decoder(), Request(ids([5]), Sampling(max_tokens=40), 1, 3)
    (expected,) = run_async(Engine(net, cache_bytes=1 << 22).generate(request))
    machine, failures = graphs(net, 200), [error, error]

    def decode(*args: Any, **more: Any) -> Tensor:
        if failures and threading.current_thread().name == "compile":
            raise failures.pop()
        return reference.decode(*args, **more)

    reference: Any = vars(cuda_graph_runner)["fused_forward"]
    monkeypatch.setattr(cuda_graph_runner, "fused_forward", FailingForward(reference, decode))
    monkeypatch.setattr(cuda_graph_runner, "_SECONDS_BETWEEN_WARM_UPS", 0.0)
    with pytest.warns(UserWarning, match="sampling is slow") as warned:
        for _ in range(3):  # in the plain runner at first
            assert run_async(machine.generate(request))[0].token_ids == expected.token_ids
            runner = machine._runner
            assert isinstance(runner, CudaGraphRunner)
            runner.wait_for_kernels()
    assert isinstance(runner, CudaGraphRunner)
    assert runner.ready.is_set() == is_retried and len(failures) == (0 if is_retried else 1)
    assert len(warned) == 1, "said once"
    assert run_async(machine.generate(request))[0].token_ids == expected.token_ids
    machine.close()


class FailingForward:
    def __init__(self, reference: Any, decode: Callable[..., Tensor]) -> None:
        self.reference, self.decode = reference, decode

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reference, name)


def test_graphs_of_prefills_have_few_sizes() -> None:
    sizes = {prefill_graphs._graph_tokens(tokens) for tokens in range(1, 8193)}
    assert sorted(sizes) == [16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192]
    assert all(prefill_graphs._graph_tokens(tokens) >= tokens for tokens in range(1, 8193))
