"""A quantised base under adapters: the paper's code book, exact gradients, memory, and what is saved."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fakes import CONFIGS, DigitTask, RecordingProgress, char_policy, tiny_decoder
from ponder.errors import Interrupted, ModelError, UsageError
from ponder.nets import hf, lora
from ponder.nets.decoder import Decoder
from ponder.nets.lora import LoRA
from ponder.nets.quantized_linear import BLOCK_WEIGHTS, NF4_CODES, QuantizedBase, QuantizedLinear, dequantize, quantize
from ponder.nets.tree_attention import PaddedTreeAttention

BASES: tuple[QuantizedBase, ...] = ("int8", "nf4")
IDS = [5, 9, 3, 22, 40, 17, 33, 33, 8, 60]


def matrix(rows: int = 48, columns: int = 40, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def logits(net: Decoder) -> Tensor:
    attend = PaddedTreeAttention([len(IDS)], [-1])
    return net.logits(net(torch.tensor(IDS), attend.positions_T, attend))


def test_nf4_code_book_is_the_quantiles_of_a_normal() -> None:
    """Section 3 of the paper: 8 quantiles below zero and 9 from zero on, evenly spaced in probability up to an offset,
    scaled to [-1, 1]; the offset is half-way between 1 - 1/30 and 1 - 1/32."""
    from scipy.stats import norm

    offset = 1 - (1 / 32 + 1 / 30) / 2
    above = norm.ppf(np.linspace(offset, 0.5, 9)[:-1])
    below = -norm.ppf(np.linspace(offset, 0.5, 8)[:-1])
    codes = np.sort([*above, 0.0, *below]) / above.max()
    np.testing.assert_allclose(NF4_CODES, codes, atol=2e-7)
    assert len(set(NF4_CODES)) == 16 and 0.0 in NF4_CODES


@pytest.mark.parametrize("base", BASES)
def test_every_weight_is_at_its_nearest_code(base: QuantizedBase) -> None:
    weight = matrix(7, 37)  # 259 weights: the last block is filled up
    codes, scales = quantize(weight, base)
    result = dequantize(codes, scales, base, (7, 37)).flatten()
    book = np.array(NF4_CODES if base == "nf4" else [i / 127 for i in range(-127, 128)])
    for i, w in enumerate(weight.flatten().tolist()):
        block = weight.flatten()[i // BLOCK_WEIGHTS * BLOCK_WEIGHTS :][:BLOCK_WEIGHTS]
        scale = block.abs().max().item()
        assert abs(result[i].item() - w) <= np.abs(book * scale - w).min() + 1e-7


@pytest.mark.parametrize("base", BASES)
def test_quantising_again_changes_nothing(base: QuantizedBase) -> None:
    once = dequantize(*quantize(matrix(), base), base, (48, 40))
    assert torch.equal(dequantize(*quantize(once, base), base, (48, 40)), once)
    assert not dequantize(*quantize(torch.zeros(4, 32), base), base, (4, 32)).any()


@pytest.mark.parametrize("base, bits", [("int8", 8.5), ("nf4", 4.5)])
def test_quantised_layer_takes_a_fraction_of_the_memory(base: QuantizedBase, bits: float) -> None:
    layer = nn.Linear(256, 128, bias=False)
    small = QuantizedLinear(layer, base)
    stored = [*small.parameters(), *small.buffers()]
    assert sum(t.nbytes for t in stored) * 8 == bits * layer.weight.numel()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("bias", [False, True])
def test_product_and_gradient_are_those_of_the_dequantised_matrix(base: QuantizedBase, bias: bool) -> None:
    layer = nn.Linear(40, 48, bias=bias)
    small = QuantizedLinear(layer, base)
    x, y = (matrix(9, 40, seed=3).requires_grad_() for _ in range(2))
    out, expected = small(x), nn.functional.linear(y, small.weight, layer.bias)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)  # a bias may be added within the product
    grad = matrix(9, 48, seed=4)
    out.backward(grad)
    expected.backward(grad)
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-6, atol=1e-8)
    assert not any(p.requires_grad for p in small.parameters())


def test_graph_holds_no_dequantised_matrix() -> None:
    small, saved = QuantizedLinear(nn.Linear(64, 64, bias=False), "nf4"), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape), lambda t: t):
        small(matrix(3, 64).requires_grad_())
    assert saved == []


def test_moving_to_another_type_leaves_the_scales() -> None:
    small = QuantizedLinear(nn.Linear(64, 64), "int8")
    before = small.scales.clone()
    small.to(torch.bfloat16)
    assert torch.equal(small.scales, before) and small.weight.dtype == torch.bfloat16
    assert small(torch.zeros(1, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_weights_that_are_not_finite_are_refused() -> None:
    layer = nn.Linear(8, 8)
    layer.weight.data[0, 0] = math.inf
    with pytest.raises(ModelError, match="not finite"):
        QuantizedLinear(layer, "nf4")


# Under adapters


def quantized_and_plain(kind: str, base: QuantizedBase) -> tuple[Decoder, Decoder]:
    """A decoder with adapters on a quantised base, and one with the same adapters on the dequantised base."""
    pytest.importorskip("peft")
    net = tiny_decoder(kind)
    lora.attach(net, LoRA(4, 8.0, base=base), seed=1)
    plain = tiny_decoder(kind)
    plain.load_state_dict(lora.merged_weights(net), strict=not CONFIGS[kind].tied_embeddings)
    lora.attach(plain, LoRA(4, 8.0), seed=1)
    draw = torch.Generator().manual_seed(2)
    for (name, p), (other, q) in zip(adapters(net).items(), adapters(plain).items(), strict=True):
        assert name == other
        p.data.add_(torch.randn(p.shape, generator=draw) * 0.1)
        q.data.copy_(p.data)
    return net, plain


def adapters(net: Decoder) -> dict[str, Tensor]:
    return {n: p for n, p in net.named_parameters() if ".lora_" in n}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", ["llama", "untied", "gemma"])
def test_adapters_have_the_gradients_of_a_dequantised_base(kind: str, base: QuantizedBase) -> None:
    net, plain = quantized_and_plain(kind, base)
    weight = torch.linspace(-1, 1, CONFIGS[kind].vocab)
    for one in (net, plain):
        (logits(one).log_softmax(-1) * weight).sum().backward()
    torch.testing.assert_close(logits(net), logits(plain), rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(adapters(net).items(), adapters(plain).values(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5 * float(q.grad.abs().max()), msg=name)
    assert all(p.grad is None for n, p in net.named_parameters() if ".lora_" not in n)


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_merged_weights_are_the_dequantised_base_and_the_update(kind: str) -> None:
    net, plain = quantized_and_plain(kind, "nf4")
    ours, theirs = lora.merged_weights(net), lora.merged_weights(plain)
    assert list(ours) == list(theirs) == list(dict(tiny_decoder(kind).named_parameters()))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_saved_model_computes_what_the_adapted_one_does(tmp_path: Path) -> None:
    net, _ = quantized_and_plain("llama", "nf4")
    hf.save(net, tmp_path / "model")
    torch.testing.assert_close(logits(hf.load(tmp_path / "model")), logits(net), rtol=1e-4, atol=1e-4)


def test_network_is_smaller_and_differs_little() -> None:
    pytest.importorskip("peft")
    full, small = tiny_decoder(), tiny_decoder()
    lora.attach(small, LoRA(1, base="nf4", targets=("gate_proj", "up_proj", "down_proj")), seed=1)
    size = [sum(t.nbytes for t in (*net.parameters(), *net.buffers())) for net in (full, small)]
    mlp = sum(p.nbytes for n, p in full.named_parameters() if ".mlp." in n)
    update = sum(p.nbytes for p in adapters(small).values())
    assert size[1] == size[0] - mlp + mlp * 4.5 / 32 + update
    assert 0 < (logits(full) - logits(small)).abs().mean() < 0.3 * logits(full).std()


def test_disabled_adapters_and_copies_keep_the_quantised_base() -> None:
    net, _ = quantized_and_plain("llama", "int8")
    twin = copy.deepcopy(net)
    assert torch.equal(logits(net), logits(twin))
    start = tiny_decoder()
    lora.attach(start, LoRA(4, base="int8"), seed=1)
    with lora.disable_adapter(start):
        assert torch.equal(logits(start), logits(copy.deepcopy(start)))


def test_unknown_base_is_refused() -> None:
    with pytest.raises(UsageError, match="no base of LoRA named 'fp4'"):
        LoRA(base="fp4")  # type: ignore[arg-type]


@pytest.mark.parametrize("base", BASES)
def test_fine_tuning_on_a_quantised_base_learns_resumes_and_is_recorded(base: QuantizedBase, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from ponder.pipelines.sft import FineTune
    from ponder.runs import read_job, read_metrics
    from ponder.train.optimizer import AdamW

    policy = char_policy()
    hf.save(policy.net, tmp_path / "base")
    policy.tokenizer.save(tmp_path / "base")
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "steps": 6, "batch_size": 5, "save_every": 3}
    job = FineTune(DigitTask(), str(tmp_path / "base"), optimizer=AdamW(lr=2e-2), lora=LoRA(4, base=base), **settings)
    job(tmp_path / "run")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0]
    assert read_job(tmp_path / "run")["lora"]["base"] == base  # type: ignore[index]
    with pytest.raises(Interrupted):
        job(tmp_path / "other", RecordingProgress("step", 4))
    job(tmp_path / "other")
    assert [row["loss"] for row in read_metrics(tmp_path / "other")] == losses
