"""`MergedLayersRunner` computes what the network does; attention goes on with what is left of a batch."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from fakes import CONFIGS, run_async, tiny_decoder
from ponder.engine import torch_attention
from ponder.engine.cpu_merged_layers import MergedLayersRunner, is_supported
from ponder.engine.engine import Engine
from ponder.engine.model_runner import ModelRunner
from ponder.engine.request import Request, SequenceState
from ponder.engine.runner_factory import make_runner
from ponder.nets import lora
from ponder.types import Sampling, ids

TEXT = ids([9, 3, 22, 40, 17, 5, 33, 8, 60])


def hidden_states(engine: Engine) -> torch.Tensor:
    try:
        return run_async(engine.read_hidden_states(TEXT))
    finally:
        engine.close()


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_hidden_states_equal_the_network_s(kind: str, monkeypatch: pytest.MonkeyPatch):
    net = tiny_decoder(kind)
    merged = hidden_states(Engine(net))
    monkeypatch.setattr(MergedLayersRunner, "_hidden_states", ModelRunner._hidden_states)
    assert torch.allclose(merged, hidden_states(Engine(net)), atol=2e-5)


def test_merged_layers_are_for_small_float32_networks_without_adapters():
    assert isinstance(make_runner(tiny_decoder(), 100, 4, True, ""), MergedLayersRunner)
    assert not is_supported(tiny_decoder("gemma")) and not is_supported(tiny_decoder(dtype=torch.bfloat16))
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(rank=2), 0)
    assert not is_supported(net)


def test_new_weights_are_merged_again():
    net, other = tiny_decoder(), tiny_decoder(seed=4)
    engine = Engine(net)
    run_async(engine.read_hidden_states(TEXT))
    net.load_state_dict(other.state_dict())
    engine.refresh_weights()
    assert torch.allclose(hidden_states(engine), hidden_states(Engine(other)), atol=1e-5)


def generate(net: Any, lengths: list[int]) -> list[list[SequenceState]]:
    engine = Engine(net)

    async def together() -> list[list[SequenceState]]:
        requests = (Request(ids([7, 5 + i, 9 + 2 * i]), Sampling(max_tokens=n), 1, i) for i, n in enumerate(lengths))
        return list(await asyncio.gather(*map(engine.generate, requests)))

    try:
        return run_async(together())
    finally:
        engine.close()


@pytest.mark.parametrize("products", [True, False])
def test_attention_goes_on_with_the_rows_that_are_left(products: bool, monkeypatch: pytest.MonkeyPatch):
    """A sequence that ends takes its row away, and the others are as they are alone; nothing is gathered again."""
    monkeypatch.setattr(torch_attention, "_MKL_BATCHED_MATMUL", products)
    made: list[int] = []
    real = torch_attention.DecodeAttention.__init__
    monkeypatch.setattr(
        torch_attention.DecodeAttention, "__init__", lambda self, *given: (made.append(1), real(self, *given))[1]
    )
    net, lengths = tiny_decoder(), [3, 20, 6, 170, 9]
    result = generate(net, lengths)
    assert len(made) == 1
    for i, (seq,) in enumerate(result):
        alone = run_async(Engine(net).generate(Request(seq.request.prefix, seq.sampling, 1, i)))[0]
        assert seq.token_ids == alone.token_ids and len(seq.token_ids) == lengths[i]
        assert np.allclose(seq.logprobs, alone.logprobs, atol=1e-4)


def test_chunks_that_see_as_much_are_padded_together():
    """One that sees much more would cost the others more than a call of its own."""
    assert torch_attention.chunk_groups([14, 14, 14, 14], [400, 9000, 420, 380]) == [[0, 2, 3], [1]]
    assert torch_attention.chunk_groups([3, 5], [8, 90]) == [[0, 1]]
    assert torch_attention.chunk_groups([], []) == []


@pytest.mark.parametrize("kind", ["llama", "window"])
@pytest.mark.parametrize("padding", [0, 1 << 14], ids=["several groups", "one group"])
def test_padded_prefill_equals_chunk_by_chunk(kind: str, padding: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_attention, "_MAX_PADDED_SCORES", padding)
    net, used = tiny_decoder(kind), list[int]()
    real = torch_attention._PaddedChunks.__call__
    monkeypatch.setattr(
        torch_attention._PaddedChunks, "__call__", lambda self, *given: (used.append(1), real(self, *given))[1]
    )
    prompts = [ids([9, 3, 22, 40, 17]), ids([33] * 11), ids([8, 60, 7]), ids([5]), ids([41, 2, 9, 9, 30])]

    def read() -> list[torch.Tensor]:
        engine = Engine(net)

        async def together() -> list[torch.Tensor]:
            return list(await asyncio.gather(*map(engine.read_hidden_states, prompts)))

        try:
            return run_async(together())
        finally:
            engine.close()

    padded = read()
    assert used
    monkeypatch.setattr(torch_attention, "chunk_groups", lambda new, seen: [[i] for i in range(len(new))])
    for a, b in zip(padded, read(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
