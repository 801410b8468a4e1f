"""Pruning: influence and importances against slow code, and what is left against a model without the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets import hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.prune import choose_layers, choose_neurons, measure_blocks, prune
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.types import ids

CONFIG = DecoderConfig("llama", vocab=31, width=16, layers=4, heads=4, kv_heads=2, head_dim=4, mlp_width=24)
TEXTS = [ids([3, 1, 4, 1, 5, 9, 2, 6]), ids([5, 3, 5]), ids([8, 9, 7, 9, 3])]


@pytest.fixture
def net() -> Decoder:
    torch.manual_seed(0)
    return Decoder(CONFIG)


def logits(net: Decoder, text: Tensor) -> Tensor:
    attend = PaddedTreeAttention([len(text)], [-1])
    out: Tensor = net.lm_head(net(text, attend.positions_T, attend))
    return out


def hidden_states(net: Decoder, text: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The input of each block and the last output, and the activations of each MLP, one block at a time."""
    attend = PaddedTreeAttention([len(text)], [-1])
    rotary = net.rope_cos_sin(attend.positions_T, *net.rope_frequencies[0], torch.float32)
    x: Tensor = net.embed_tokens(text)
    inputs: list[Tensor] = []
    activations: list[Tensor] = []
    block: Any
    for block in net.layers:
        inputs.append(x)
        own = block.self_attn
        mixed = attend(own.layer, *own(block.input_layernorm(x), rotary), scale=own.scale, window=None)
        x = x + own.o_proj(mixed.flatten(1))
        h = block.post_attention_layernorm(x)
        mlp = block.mlp
        activations.append(mlp.gate_proj(h) * torch.sigmoid(mlp.gate_proj(h)) * mlp.up_proj(h))
        x = x + mlp.down_proj(activations[-1])
    return [*inputs, x], activations


@pytest.mark.parametrize("batch_tokens", [1, 11, 4096])
@torch.no_grad()
def test_influence_and_importance_are_those_of_slow_code(
    net: Decoder, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ponder.nets.prune.BATCH_TOKENS", batch_tokens)
    cosines: list[list[float]] = [[] for _ in range(4)]
    squares = torch.zeros(4, 24)
    for text in TEXTS:
        states, activations = hidden_states(net, torch.tensor(text, dtype=torch.long))
        for layer in range(4):
            for a, b in zip(states[layer], states[layer + 1], strict=True):
                cosines[layer].append(float((a @ b) / (a @ a).sqrt() / (b @ b).sqrt()))
            for neuron in range(24):
                mean = sum(abs(float(x)) for x in activations[layer][:, neuron]) / len(text)
                squares[layer, neuron] += mean**2
    found = measure_blocks(net, TEXTS)
    assert found.influence == pytest.approx([1 - sum(c) / len(c) for c in cosines], abs=1e-6)
    for layer in range(4):
        torch.testing.assert_close(found.neurons[layer].float(), squares[layer].sqrt(), rtol=1e-5, atol=1e-7)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@torch.no_grad()
def test_pruned_model_computes_what_the_kept_layers_do(net: Decoder) -> None:
    text = torch.tensor(TEXTS[0], dtype=torch.long)
    small = prune(net, [0, 2, 3])
    assert small.config == replace(CONFIG, layers=3, windows=(None,) * 3)
    attend = PaddedTreeAttention([len(text)], [-1])
    rotary = net.rope_cos_sin(attend.positions_T, *net.rope_frequencies[0], torch.float32)
    x = net.embed_tokens(text)
    for i in (0, 2, 3):
        x = net.layers[i](x, rotary, attend)
    torch.testing.assert_close(logits(small, text), net.lm_head(net.norm(x)))
    ours = {p.data_ptr() for p in net.parameters()}
    assert not any(p.data_ptr() in ours for p in small.parameters())


@torch.no_grad()
def test_narrow_mlp_is_that_with_the_other_neurons_at_zero(net: Decoder) -> None:
    text = torch.tensor(TEXTS[0], dtype=torch.long)
    kept = [choose_neurons(torch.rand(24), 10) for _ in range(2)]
    small = prune(net, [1, 2], kept)
    assert small.config.mlp_width == 10 and small.config.parameter_count < net.config.parameter_count
    for layer, chosen in zip((1, 2), kept, strict=True):
        silent = [i for i in range(24) if i not in chosen.tolist()]
        block: Any = net.layers[layer]
        block.mlp.down_proj.weight[:, silent] = 0
    torch.testing.assert_close(logits(small, text), logits(prune(net, [1, 2]), text))


@torch.no_grad()
def test_pruned_model_is_saved_and_loaded(net: Decoder, tmp_path: Path) -> None:
    text = torch.tensor(TEXTS[0], dtype=torch.long)
    small = prune(net, [0, 3], [torch.arange(8), torch.arange(8, 16)])
    hf.save(small, tmp_path / "model")
    torch.testing.assert_close(logits(hf.load(tmp_path / "model"), text), logits(small, text))


def test_layers_of_a_model_with_windows_keep_their_own() -> None:
    config = replace(CONFIG, family="mistral", windows=(4, None, 4, None))
    assert prune(Decoder(config), [1, 2]).config.windows == (None, 4)


def test_choice_of_layers_and_neurons() -> None:
    assert choose_layers([0.9, 0.1, 0.3, 0.2, 0.8], 3) == [0, 2, 4]
    assert choose_layers([0.9, 0.1, 0.3, 0.2, 0.8], 3, "even") == [0, 2, 4]
    assert choose_layers([0.1] * 30, 15, "even")[:3] == [0, 2, 4] and choose_layers([0.1] * 30, 15, "even")[-1] == 29
    assert len(set(choose_layers([0.1] * 30, 20, "even"))) == 20
    assert choose_neurons(torch.tensor([0.1, 5.0, 0.2, 4.0]), 2).tolist() == [1, 3]
    for count in (0, 6):
        with pytest.raises(UsageError):
            choose_layers([0.1] * 5, count)
    with pytest.raises(UsageError):
        choose_neurons(torch.rand(4), 5)
    with pytest.raises(UsageError):
        measure_blocks(Decoder(CONFIG), [])
