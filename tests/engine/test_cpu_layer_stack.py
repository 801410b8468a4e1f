"""All layers in one call give the numbers of the same operations one by one, to the bit, and the learner's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fakes import CONFIGS, run_async, tiny_decoder
from ponder.engine import cpu_fused_layers, cpu_packed_weights, cpu_panels
from ponder.engine.cpu_layer_stack import LayerStack
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.nets import lora
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.types import Sampling, ids

SMOLLM2_SHAPE = DecoderConfig(
    family="llama", vocab=2051, width=576, layers=3, heads=9, kv_heads=3, head_dim=64, mlp_width=1536, norm_eps=1e-5
)


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_CPU_KERNELS", raising=False)
    if not cpu_panels.are_fast(torch.float32):
        pytest.skip("no C compiler, no OpenMP, or another processor")
    monkeypatch.setattr(cpu_packed_weights, "_MIN_MATRIX_ENTRIES", 1)
    monkeypatch.setattr(cpu_packed_weights, "_TOKENS_BEFORE_PACKING", 0)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each pass by the stack."""
    found, run = [], LayerStack.run

    def count(own: LayerStack, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        found.append(len(x))
        return run(own, x, *rest)

    monkeypatch.setattr(LayerStack, "run", count)
    return found


def generate(net: Decoder, adapter: str = "") -> list[SequenceState]:
    """Prompts and answers of several lengths, so that rows end and positions differ."""
    requests = [
        Request(ids([5 + i, 9, 3 * i][: 1 + i % 3]), Sampling(1.0, max_tokens=6 + i, ignore_eos=True), 2, seed=i)
        for i in range(7)
    ]

    async def together() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*map(Engine(net).generate, requests)))

    return [seq for seqs in run_async(together()) for seq in seqs]


@pytest.mark.parametrize("kind", [*(kind for kind in CONFIGS if kind != "gemma"), "gelu"])
def test_one_call_equals_single_operations(kind: str, rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = replace(CONFIGS["llama"], activation="gelu_tanh")
    net = init_decoder(gelu, 0) if kind == "gelu" else tiny_decoder(kind)
    together = generate(net)
    assert cpu_fused_layers.is_supported(net) == bool(rows) and (not rows or max(rows) > 8)
    count = len(rows)
    monkeypatch.setattr(cpu_fused_layers, "LayerStack", lambda *given: None)
    for a, b in zip(together, generate(net), strict=True):
        assert a.token_ids == b.token_ids and np.array_equal(a.logprobs, b.logprobs)
    assert len(rows) == count


def test_logprobs_at_smollm2s_shape_are_the_learners(rows: list[int]) -> None:
    net = init_decoder(SMOLLM2_SHAPE, 0)
    for seq in generate(net):
        prefix = seq.request.prefix
        whole = torch.as_tensor(np.concatenate([prefix, seq.token_ids]).astype(np.int64))
        attend = PaddedTreeAttention([len(whole)], [-1])
        with torch.no_grad():
            logits = net.logits(net(whole, attend.positions_T, attend))[len(prefix) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, whole[len(prefix) :, None]).squeeze(1).numpy()
        assert np.allclose(seq.logprobs, logprobs, atol=1e-5)
    assert 14 in rows


def test_new_weights_are_read(rows: list[int]) -> None:
    net, other = tiny_decoder("qwen3"), tiny_decoder("qwen3", seed=5)
    engine = Engine(net)
    request = Request(ids([5, 6]), Sampling(max_tokens=8, ignore_eos=True), 9, 0)
    run_async(engine.generate(request))
    with engine.paused(), torch.no_grad():
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            p.data = q.detach().clone()
        engine.refresh_weights()
    ours, fresh = run_async(engine.generate(request)), run_async(Engine(other).generate(request))
    assert [s.token_ids for s in ours] == [s.token_ids for s in fresh]
    assert len(rows) > 16


def test_network_with_an_adapter_runs_layer_by_layer(rows: list[int]) -> None:
    net = tiny_decoder("untied")
    lora.attach(net, lora.LoRA(rank=2), seed=0)
    generate(net)
    assert not rows
