"""The GPU's kernels and buffers against the plain runner: on a GPU, or with TRITON_INTERPRET=1 on any machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import CONFIGS, tiny_decoder
from ponder.engine import engine, kv_cache
from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.engine import Engine
from ponder.engine.graph_capture import free_lent_memory
from ponder.engine.model_runner import ModelRunner
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError
from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.vision_config import VisionConfig
from ponder.pictures.picture import Picture
from ponder.types import Sampling, ids

pytest.importorskip("triton", reason="triton is not installed")
GPU = torch.cuda.is_available()
if not GPU and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from ponder.engine import (  # noqa: E402
    adapter_columns,
    cuda_graph_runner,
    decode_forward,
    fused_forward,
    fused_weights,
    graph_batch,
    graph_buffers,
)

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [9, 3, 22, 7], [12, 12, 50, 9, 30, 4, 61, 22]]
DEVICE = "cuda" if GPU else "cpu"


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_DECODE_KERNELS", "1")
    if not GPU:  # each takes a millisecond to interpret
        monkeypatch.setattr(graph_buffers, "_MIN_SHARED_ITEMS", 2)


def request(prompt: Sequence[int], n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 7, **sampling}), n, seed)


def make_engine(
    patch: pytest.MonkeyPatch, net: Decoder, graphs: bool, eos: Sequence[int] = (), slots: int = 400,
    quantization: str = "", prefill_chunk_tokens: int = 0,
) -> Engine:  # fmt: skip
    """With graphs, or with the plain runner."""

    def make(net: Decoder, slots: int, rows: int, *_: Any) -> ModelRunner:
        if not graphs:
            return ModelRunner(net, slots)
        runner = cuda_graph_runner.CudaGraphRunner(net, slots, rows, quantization)
        assert runner.ready.wait(60)
        return runner

    patch.setattr(engine, "make_runner", make)
    room = slots * kv_cache.bytes_per_token(net.config, net.dtype)
    return Engine(net, frozenset(eos), cache_bytes=room, max_num_seqs=16, prefill_chunk_tokens=prefill_chunk_tokens)


def run(
    kind: str | Decoder, graphs: bool, requests: Sequence[Request], eos: Sequence[int] = (), slots: int = 400,
    quantization: str = "", prefill_chunk_tokens: int = 0, adapters: Mapping[str, Path] = {},
) -> list[list[SequenceState]]:  # fmt: skip
    net = tiny_decoder(kind).to(DEVICE) if isinstance(kind, str) else kind
    with pytest.MonkeyPatch.context() as patch:
        machine = make_engine(patch, net, graphs, eos, slots, quantization, prefill_chunk_tokens)
        for name, folder in adapters.items():
            machine.adapters.add(name, folder)

        async def all_of_them() -> list[list[SequenceState]]:
            return list(await asyncio.gather(*(machine.generate(r) for r in requests)))

        result = asyncio.run(all_of_them())
        schedule = machine._scheduler
        assert schedule is not None
        schedule.add([])  # what finished last is cached now
        assert schedule.allocator.free_count + schedule.tree.evictable == schedule.allocator.size
        machine.close()
    return result


def same(kind: str | Decoder, requests: Sequence[Request], **more: Any) -> list[list[SequenceState]]:
    ours, plain = (run(kind, graphs, requests, **more) for graphs in (True, False))
    for a, b in zip((r for g in ours for r in g), (r for g in plain for r in g), strict=True):
        assert a.token_ids == b.token_ids and a.stop == b.stop
        assert np.allclose(a.logprobs, b.logprobs, atol=2e-5)
    return ours


@pytest.mark.parametrize("decode_kernels", ["0", "1"])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_graphs_generate_same_tokens_as_plain_runner(
    kind: str, decode_kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONDER_DECODE_KERNELS", decode_kernels)
    rules = [{"temperature": 0.0}, {"temperature": 1.3}]
    same(kind, [request(p, n=2, seed=i, max_tokens=3, **rules[i % 2]) for i, p in enumerate(PROMPTS[:4])])


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_mixed_batches_prefill_and_decode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pass with rows that are drawn for in it, and with rows that the host draws for."""
    both, real = list[tuple[bool, int]](), fused_forward.decode

    def spy(*given: Any, **named: Any) -> Any:
        if len(given) >= 8:  # a step of a batch, not one that warms up
            both.append((given[4], len(given[7])))
        return real(*given, **named)

    monkeypatch.setattr(fused_forward, "decode", spy)
    monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 0)
    rules: list[dict[str, Any]] = [
        {},
        {"presence_penalty": 0.5},
        {"temperature": 0.0},
        {"top_p": 0.8},
        {"frequency_penalty": 0.2},
    ]
    same(kind, [request(p, seed=i, max_tokens=6, **rules[i]) for i, p in enumerate(PROMPTS)], prefill_chunk_tokens=4)
    assert {drawing for drawing, filled in both if filled} == {True, False}


def test_groups_trees_and_early_stops_equal_plain_runner() -> None:
    (first,) = same("window", [request(PROMPTS[2], n=4, max_tokens=20)], eos=[7, 9, 30, 41])
    assert len({len(r.token_ids) for r in first}) > 1
    deeper = [request([*PROMPTS[2], *first[i].token_ids[:k]], n=2, seed=i) for i in range(3) for k in (2, 5)]
    same("window", deeper)


def test_halves_of_many_short_sequences_equal_plain_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of three steps each. The second half is launched behind the first."""
    monkeypatch.setattr(engine, "_MIN_SEQUENCES_IN_HALVES", 8)
    monkeypatch.setattr(engine, "_MIN_SEQUENCES_BEHIND", 2)
    monkeypatch.setattr(cuda_graph_runner, "_MANY_SEQUENCES", 4)
    sizes, real = list[int](), cuda_graph_runner.CudaGraphRunner.launch

    def launch(self: Any, seqs: Sequence[SequenceState], *given: Any, **named: Any) -> Any:
        sizes.append(len(seqs))
        return real(self, seqs, *given, **named)

    monkeypatch.setattr(cuda_graph_runner.CudaGraphRunner, "launch", launch)
    net = tiny_decoder("llama").to(DEVICE)
    answers = []
    for graphs in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            machine = make_engine(patch, net, graphs)

            async def search(i: int, machine: Engine = machine) -> list[SequenceState]:
                path, steps = [3 + i, 9, 22], []
                for step in range(3):
                    (seq,) = await machine.generate(request(path, seed=10 * i + step, max_tokens=4))
                    path = [*path, *seq.token_ids]
                    steps.append(seq)
                return steps

            async def everyone(search: Any = search) -> list[list[SequenceState]]:
                return list(await asyncio.gather(*map(search, range(10))))

            answers.append(asyncio.run(everyone()))
            machine.close()
    assert sizes.count(5) >= 4
    for a, b in zip(
        (s for steps in answers[0] for s in steps), (s for steps in answers[1] for s in steps), strict=True
    ):
        assert a.token_ids == b.token_ids and np.allclose(a.logprobs, b.logprobs, atol=2e-5)


def test_sequences_are_preempted_when_memory_is_short() -> None:
    same("llama", [request(p, n=2, seed=i, max_tokens=12) for i, p in enumerate(PROMPTS)], slots=50)


def test_host_sampled_sequences_equal_plain_runner() -> None:
    rules = [
        {"top_p": 0.8, "presence_penalty": 0.5},
        {"repetition_penalty": 1.4},
        {"token_stats": ("entropy",)},
        {"forced_token_ids": (5, 6)},
        {"min_tokens": 4},
    ]
    same("llama", [request([5, 6], seed=i, max_tokens=4, **rule) for i, rule in enumerate(rules)], eos=[40])


def test_device_and_host_sampled_sequences_share_a_batch() -> None:
    """They have turns, and write what they would alone; who ends first does not matter."""
    for few, many in ((3, 12), (12, 3)):
        plain = [request([5, 6], n=2, seed=1, max_tokens=many), request([5, 6, 7], seed=2, max_tokens=few)]
        same("llama", [*plain, request([5, 9], n=2, frequency_penalty=0.3, max_tokens=few)], eos=[40])


def test_top_k_top_p_min_p_on_device_equal_host() -> None:
    rules: list[dict[str, Any]] = [
        {"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.2}, {}, {"top_k": 9, "top_p": 0.5, "temperature": 0.7},
        {"top_k": 500, "top_p": 0.9, "min_p": 0.05}, {"temperature": 0.0, "top_k": 5}, {"top_p": 1e-6},
    ]  # fmt: skip
    same("llama", [request(PROMPTS[1], seed=i, max_tokens=4, **rule) for i, rule in enumerate(rules)])


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_odd_model_sizes_equal_plain_runner(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads and groups that are no powers of two, and a vocabulary that is cut in chunks, the last one smaller."""
    odd = replace(CONFIGS[kind], vocab=61, width=36, heads=6, kv_heads=2, head_dim=12, mlp_width=50)
    monkeypatch.setitem(CONFIGS, kind, odd)
    for module in (graph_buffers, fused_forward):
        monkeypatch.setattr(module, "VOCAB_CHUNK_SIZE", 16)
    rules: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_p": 0.6}, {"top_k": 3, "temperature": 1.5}]
    same(kind, [request(PROMPTS[1], seed=i, max_tokens=2, **rule) for i, rule in enumerate(rules)])
    same(kind, [request(list(range(3, 30)), n=3, seed=4, max_tokens=2, temperature=1e-4)])


def with_adapter(kind: str, made: lora.LoRA, seed: int) -> Decoder:
    net = tiny_decoder(kind).to(DEVICE)
    lora.attach(net, made, seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.2)
    return net


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("shrinks_first", [False, True])
def test_adapters_in_one_batch_equal_plain_runner(
    kind: str, shrinks_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters of other ranks and layers, and rows without any, with x A^T in the kernel and before it."""
    if shrinks_first:
        monkeypatch.setattr(fused_forward, "_MAX_RECOMPUTED_PRODUCTS", 0)
        monkeypatch.setattr(fused_forward, "_MAX_COLUMNS_PER_TILE", 16)
    shapes = {"red": lora.LoRA(20), "blue": lora.LoRA(3, 10.0, ("q_proj", "v_proj", "down_proj"))}
    for seed, (name, made) in enumerate(shapes.items()):
        lora.save(with_adapter(kind, made, seed), made, tmp_path / name, "tiny")
    folders = {name: tmp_path / name for name in shapes}
    asked = [
        replace(request(p, seed=i, max_tokens=3), adapter=name)
        for i, (p, name) in enumerate(zip(PROMPTS, ("red", "", "blue", "red", "blue"), strict=True))
    ]
    same(kind, asked, adapters=folders)


@pytest.mark.parametrize("base", ["full", "int8", "nf4"])
@pytest.mark.parametrize("merges", [False, True])
def test_adapter_in_training_equals_plain_runner(base: Any, merges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not merges:
        monkeypatch.setattr(adapter_columns, "MAX_MERGED_BYTES", 0)
    net = with_adapter("llama", lora.LoRA(3, 5.0, base=base), seed=2)
    same(net, [request(p, n=2, seed=i, max_tokens=3) for i, p in enumerate(PROMPTS[:3])])


@pytest.mark.parametrize("small", list(fused_weights.QUANTIZED_DTYPES))
def test_quantized_weights_equal_rounded_weights(small: str) -> None:
    """What is sampled from the rounded copies is what a network with those very weights gives."""
    net, plain = tiny_decoder("untied").to(DEVICE), tiny_decoder("untied").to(DEVICE)
    kept = fused_weights.FusedWeights(net, 0, small)
    for layer, other in zip(kept.layers, fused_weights.FusedWeights(plain, 0).layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            linear = getattr(layer, name)
            rounded = linear.quantized.float() * linear.scale[:, None]
            error = (rounded - linear.weight).abs() / linear.weight.abs().amax(1, keepdim=True)
            assert error.max() < {"int8": 0.5 / 127 + 1e-6, "fp8": 16 / 448 + 1e-6}[small]
            with torch.no_grad():
                getattr(other, name).weight.copy_(rounded)
    asked = [request(p, n=2, seed=i, max_tokens=3) for i, p in enumerate(PROMPTS[:3])]
    ours, theirs = run(net, True, asked, quantization=small), run(plain, False, asked)
    for a, b in zip((r for g in ours for r in g), (r for g in theirs for r in g), strict=True):
        assert a.token_ids == b.token_ids and np.allclose(a.logprobs, b.logprobs, atol=2e-5)
    before = kept.layers[0].qkv.quantized.clone().float()
    with torch.no_grad():
        net.layers[0].self_attn.q_proj.weight.neg_()
    kept.requantize()
    q = net.config.heads * net.config.head_dim
    after = kept.layers[0].qkv.quantized.float()
    assert torch.equal(after[:q], -before[:q]) and torch.equal(after[q:], before[q:])


class Pages:
    """Remappable memory that counts."""

    def __init__(self) -> None:
        self.is_mapped, self.unmapped = True, 0

    def map_memory(self) -> None:
        self.is_mapped = True

    def unmap_memory(self) -> None:
        self.is_mapped, self.unmapped = False, self.unmapped + 1


@pytest.mark.skipif(GPU, reason="on a GPU the memory is real")
def test_a_sleeping_cache_keeps_its_memory_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = True
    monkeypatch.setattr(cuda_graph_runner, "_is_half_free", lambda device: plenty)
    machine = Engine(tiny_decoder("llama"), cache_bytes=1 << 20)
    machine._runner = runner = cuda_graph_runner.CudaGraphRunner(machine.net, 64, 8)
    runner._remappable = pages = Pages()  # type: ignore[assignment]
    assert not free_lent_memory() and pages.is_mapped, "it is awake"
    assert runner.sleep() and pages.is_mapped
    runner.wake()
    assert not free_lent_memory() and not pages.unmapped
    plenty = False
    assert runner.sleep() and not pages.is_mapped, "little is free"
    runner.wake()
    plenty = True
    assert runner.sleep() and pages.is_mapped
    assert free_lent_memory() and not pages.is_mapped
    assert not free_lent_memory(), "it has none left"
    runner.wake()
    assert pages.is_mapped
    assert runner.sleep() and not pages.is_mapped, "a learner needed it before"
    runner._remappable = None
    runner.close()


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_sleep_lends_cache_and_wake_restores_results(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_decoder("llama").to(DEVICE)
    machine = Engine(net, cache_bytes=1 << 30)
    first, second = request(PROMPTS[1], n=3, max_tokens=40), request(PROMPTS[1], n=3, max_tokens=40)
    asyncio.run(machine.generate(request([5], max_tokens=1)))
    assert isinstance(machine._runner, cuda_graph_runner.CudaGraphRunner) and machine._runner.ready.wait(60)
    before = [r.token_ids for r in asyncio.run(machine.generate(first))]
    drawn = machine._runner._sampling_batch
    assert drawn is not None
    graphs, free = dict(drawn.graphs), torch.cuda.mem_get_info()[0]
    monkeypatch.setattr(cuda_graph_runner, "_is_half_free", lambda device: True)
    machine.sleep()
    assert machine._runner._remappable is not None and machine._runner._remappable.is_mapped
    assert free_lent_memory()
    assert torch.cuda.mem_get_info()[0] >= free + (1 << 30)
    assert [r.token_ids for r in asyncio.run(machine.generate(second))] == before
    assert graphs and drawn.graphs == graphs, "they were not captured again"
    machine.close()


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_cache_shrinks_to_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_decoder("llama").to(DEVICE)
    free = torch.cuda.mem_get_info()[0]
    monkeypatch.setattr(engine, "cache_budget", lambda device: 3 * free)
    machine = Engine(net)
    assert len(asyncio.run(machine.generate(request([5, 6], max_tokens=5)))[0].token_ids) == 5
    assert machine.cache_tokens * machine._bytes_per_token <= free
    machine.close()
    with pytest.raises(ModelError, match="do not fit in the device's memory"):
        asyncio.run(Engine(net, cache_bytes=3 * free).generate(request([5, 6], max_tokens=5)))


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_two_engines_capture_at_once() -> None:
    """torch allows one capture in a process at a time."""
    nets = [tiny_decoder("llama", seed).to(DEVICE) for seed in range(2)]
    engines = [Engine(net, cache_bytes=1 << 26) for net in nets]

    async def ask(n: int) -> list[list[SequenceState]]:
        return await asyncio.gather(*(e.generate(request(PROMPTS[1], n=n, max_tokens=20)) for e in engines))

    asyncio.run(ask(1))
    for machine in engines:
        assert isinstance(machine._runner, cuda_graph_runner.CudaGraphRunner) and machine._runner.ready.wait(60)
    for n in graph_batch.GRAPH_BATCH_SIZES[:8]:
        assert [len(rows) for rows in asyncio.run(ask(n))] == [n, n]
    for machine in engines:
        assert (
            isinstance(machine._runner, cuda_graph_runner.CudaGraphRunner)
            and len(machine._runner._sampling_batch.graphs) >= 8
        )  # type: ignore[union-attr]
        machine.close()


def test_long_tails_are_split_and_tables_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_buffers, "_MAX_TAIL_KEYS", 8)
    for module in (graph_buffers, cuda_graph_runner):
        monkeypatch.setattr(module, "STEPS_PER_LAUNCH", 3)
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 5)
    same("window", [request([5, 6], max_tokens=20), request(list(range(3, 24)), n=2, max_tokens=3)])


@pytest.mark.parametrize("kind", ["llama", "window", "gemma"])
def test_several_programs_read_a_tail(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails of some rows have several parts, of others one; and some of them follow shared segments."""
    monkeypatch.setattr(graph_buffers, "_SPLIT_KEYS", {1024: 16})
    split, real = set[int](), fused_forward.decode

    def spy(w: Any, cache: Any, b: Any, *given: Any, **named: Any) -> Any:
        split.add(b.splits)
        return real(w, cache, b, *given, **named)

    monkeypatch.setattr(fused_forward, "decode", spy)
    texts = [list(range(3, 60)), [5, 6], [33] * 30]
    same(kind, [request(text, seed=i, max_tokens=3) for i, text in enumerate(texts)])
    assert 8 in split
    monkeypatch.setattr(graph_buffers, "_MAX_TAIL_KEYS", 24)
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 16)
    same(kind, [request(texts[0], n=2, max_tokens=3), request(texts[2], max_tokens=3)])


@pytest.mark.skipif(GPU, reason="float32 is not divided there; tests/gpu has bfloat16")
@pytest.mark.parametrize("kind", ["llama"])
def test_parts_of_a_step_equal_the_whole_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With greedy, truncated and hot rows, and rows without a sequence in the last part."""
    rules: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 5, "temperature": 1.4}]
    asked = [
        request(p, seed=i, **rules[i % 3], max_tokens=1 + i % 3) for i, p in enumerate([[5], [7, 3], [9], [3], [4]])
    ]
    sizes, real, results = list[int](), fused_forward.decode, list[Any]()

    def spy(w: Any, cache: Any, b: Any, rows: int, *given: Any, **named: Any) -> Any:
        sizes.append(rows)
        return real(w, cache, b, rows, *given, **named)

    monkeypatch.setattr(fused_forward, "decode", spy)
    for parts in (1, 4):
        monkeypatch.setattr(decode_forward, "PARTS", {1: 1, 1024: parts})
        sizes.clear()
        results.append([(seq.token_ids, seq.logprobs, seq.stop) for (seq,) in run(kind, True, asked)])
        assert 8 // parts in sizes and (8 in sizes) == (parts == 1)
    for result in results[1:]:  # a product of other sizes may sum in another order
        for (tokens, logprobs, stop), whole in zip(result, results[0], strict=True):
            assert (tokens, stop) == whole[::2]
            assert np.allclose(logprobs, whole[1], atol=1e-5)


def test_parts_read_their_own_shared_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_forward, "PARTS", {1024: 2})
    monkeypatch.setattr(graph_buffers, "_MIN_SAVED_BYTES", 0)
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 4)
    seen, real = set[tuple[int, bool]](), fused_forward.decode

    def spy(
        w: Any, cache: Any, b: Any, rows: int, samples: bool, shared: bool = False, *more: Any, **named: Any
    ) -> Any:
        seen.add((rows, shared))
        return real(w, cache, b, rows, samples, shared, *more, **named)

    monkeypatch.setattr(fused_forward, "decode", spy)
    same("llama", [request(PROMPTS[2], n=3, max_tokens=2), request(PROMPTS[4], max_tokens=2)])
    assert (4 if GPU else 2, True) in seen


@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_graphs_that_are_all_gone_are_captured_again() -> None:
    """As where the table that they read was replaced: torch refuses their memory."""
    net = tiny_decoder("llama").to(DEVICE)
    machine = Engine(net, cache_bytes=1 << 26)
    asyncio.run(machine.generate(request([5], max_tokens=1)))
    assert isinstance(machine._runner, cuda_graph_runner.CudaGraphRunner) and machine._runner.ready.wait(60)
    texts = []
    for _ in range(2):
        machine.refresh_weights()
        texts.append([seq.token_ids for seq in asyncio.run(machine.generate(request(PROMPTS[1], n=3, max_tokens=9)))])
        batch, prefills = machine._runner._sampling_batch, machine._runner._prefill_graphs
        assert batch is not None and batch.graphs and prefills._graphs
        batch.graphs.clear()
        prefills._graphs.clear()
    assert texts[0] == texts[1]
    machine.close()


def test_too_many_shared_segments_become_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_buffers, "_KEYS_PER_PROGRAM", 1)
    same("llama", [request(list(range(3, 60)), n=3)])


def test_deep_trees_share_fewer_segments() -> None:
    """A sample at each step of a chain: the first run is read by sixteen rows, the next by fifteen, and so on."""
    same("window", [request(list(range(3, 5 + i)), seed=i, max_tokens=2) for i in range(16)])


def test_slot_table_grows() -> None:
    net = tiny_decoder("llama").to(DEVICE)
    b = graph_buffers.GraphBuffers(net, 4, slots=10)
    made = AttentionPlan(
        [KVSegment([0, 1], 0, [np.arange(40, dtype=np.int32)])], [np.asarray([50 + r]) for r in range(2)], [40] * 2
    )
    assert b.write_shared(made, 2) and b.slots[:40].tolist() == list(range(40))
    assert not b.write_shared(made, 2)


def test_rope_tables_cover_tokens_after_the_context() -> None:
    net = tiny_decoder("llama").to(DEVICE)
    long = request([5] * (net.config.context - 3), max_tokens=3)
    same("llama", [long, request([5, 6], max_tokens=9)], slots=600)
    assert all(
        len(cos) >= net.config.context + cuda_graph_runner.STEPS_PER_LAUNCH
        for cos, _ in cuda_graph_runner.FusedWeights(net, cuda_graph_runner.STEPS_PER_LAUNCH).rope_tables
    )


def test_runner_does_not_match_replaced_weights() -> None:
    net = tiny_decoder("llama").to(DEVICE)
    runner = cuda_graph_runner.CudaGraphRunner(net, 40, 4)
    assert runner.matches(net)
    net.layers[0].self_attn.q_proj.weight.data = net.layers[0].self_attn.q_proj.weight.data.clone()
    assert not runner.matches(net)


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_merged_weights_are_views_of_the_parameters(kind: str) -> None:
    net = tiny_decoder(kind).to(DEVICE)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    with torch.inference_mode():  # as in the engine's thread
        merging = cuda_graph_runner.FusedWeights(net, 0)
    sum((p * p).sum() for p in net.parameters()).backward()  # type: ignore[union-attr]
    assert all(torch.equal(p.grad, 2 * p) for p in net.parameters() if p.grad is not None), "they can still be trained"
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    again = cuda_graph_runner.FusedWeights(net, 0)
    assert again.layers[0].qkv.weight.data_ptr() == merging.layers[0].qkv.weight.data_ptr(), "merged once"
    with torch.no_grad():
        net.layers[1].self_attn.k_proj.weight.fill_(3.0)
        net.layers[1].mlp.up_proj.weight.fill_(4.0)
    c = net.config
    q, k = c.heads * c.head_dim, c.kv_heads * c.head_dim
    merged = merging.layers[1].qkv.weight
    assert (merged[q : q + k] == 3).all() and not (merged[:q] == 3).any() and not (merged[q + k :] == 3).any()
    assert (merging.layers[1].gate_up.weight[c.mlp_width :] == 4).all()


def seeing_decoder(image_token: int | None = None) -> Decoder:
    """A decoder with a vision tower whose pictures matter."""
    vision = VisionConfig(16, 1, 2, 32, image_size=16, patch=4, shuffle=2, image_token=image_token)
    config = DecoderConfig("llama", 64, 32, 2, 2, 2, 16, 64, context=128, vision=vision, eos=(2,))
    net = init_decoder(config, 0).to(DEVICE)
    with torch.no_grad():
        net.connector.modality_projection.proj.weight.mul_(30)
    return net


def picture_prompts(net: Decoder) -> list[list[int]]:
    """Prompts that differ in their picture alone, with two pictures, with a picture at the end, and of text."""
    draw = np.random.default_rng(0)
    tiles = [Picture.from_pixels(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for _ in range(2)]
    first, second = (net.picture_table.local_ids(net.picture_table.add(tile)).tolist() for tile in tiles)
    return [[5, *first, 9, 3], [5, *second, 9, 3], [7, *first, *second, 8], [6, *second], [9, 3, 22, 40, 17]]


@pytest.mark.parametrize("prefill_chunk_tokens", [0, 3])
def test_graphs_see_the_pictures_that_the_plain_runner_sees(prefill_chunk_tokens: int) -> None:
    net = seeing_decoder()
    requests = [request(p, n=2, seed=4, max_tokens=4) for p in picture_prompts(net)]
    ours = same(net, requests, prefill_chunk_tokens=prefill_chunk_tokens)
    assert ours[0][0].logprobs != ours[1][0].logprobs  # prompts of the same text


def test_mixed_batches_prefill_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph_runner, "_MIN_MIXED_WORK", 0)
    net = seeing_decoder()
    prompts = picture_prompts(net)
    same(net, [request(p, seed=i, max_tokens=4 + 2 * i) for i, p in enumerate(prompts)], prefill_chunk_tokens=4)


def test_graphs_never_sample_the_image_token() -> None:
    net = seeing_decoder(image_token=11)
    with torch.no_grad():  # it would be the likeliest by far
        net.lm_head.weight[11] = 50 * net.lm_head.weight[7]
    done = same(net, [request(p, n=2, seed=2, max_tokens=3) for p in picture_prompts(net)[:2]])
    assert not any(11 in seq.token_ids for group in done for seq in group)


def test_new_weights_of_the_tower_are_seen_by_graphs() -> None:
    net = seeing_decoder()
    runner = cuda_graph_runner.CudaGraphRunner(net, 64, 2)
    assert runner.ready.wait(60)
    with torch.inference_mode():
        before = net.embed(torch.tensor(picture_prompts(net)[0], device=DEVICE)).clone()
    with torch.no_grad():
        net.vision_model.embeddings.patch_embedding.weight.mul_(2)
    runner.refresh_weights()
    with torch.inference_mode():
        after = net.embed(torch.tensor(picture_prompts(net)[0], device=DEVICE))
    assert not torch.equal(before, after)
    runner.close()
