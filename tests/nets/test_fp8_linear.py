"""FP8 products are those of rounded factors, forward and backward, and go only where they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes import mixed_groups, tiny_decoder
from ponder.errors import UsageError
from ponder.nets import fp8_linear, lora
from ponder.nets.decoder import Decoder
from ponder.nets.fp8_linear import GRADIENT_DTYPE, INPUT_DTYPE
from ponder.nets.tree_attention import make_tree_attention
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO

PLAIN = GRPO(kl=None)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that a product in FP8 multiplies, in float64."""
    scale = torch.exp2((torch.finfo(dtype).max / x.abs().max().float()).log2().floor())
    return (x.float() * scale).to(dtype).double() / scale.double()


def distance(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [48, 37])
def test_product_and_gradients_are_those_of_rounded_factors(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 32).to(dtype)
    x, grad = torch.randn(tokens, 64, dtype=dtype).requires_grad_(), 1e-6 * torch.randn(tokens, 32, dtype=dtype)
    out = fp8_linear.linear(layer, x, fp8=True)
    out.backward(grad)
    x8, w8, g8 = rounded(x, INPUT_DTYPE), rounded(layer.weight, INPUT_DTYPE), rounded(grad, GRADIENT_DTYPE)
    most = 1e-6 if dtype == torch.float32 else 4e-3
    assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
    assert out.dtype == dtype and distance(out, x8 @ w8.T + layer.bias.double()) < most
    assert distance(x.grad, g8 @ w8) < most and distance(layer.weight.grad, g8.T @ x8) < most
    assert distance(layer.bias.grad, grad.double().sum(0)) < most, "no product"
    assert distance(out, layer(x)) < 0.05


def test_inputs_that_are_not_finite_give_no_finite_gradient() -> None:
    """So that the optimiser skips the step."""
    layer, x = nn.Linear(16, 16), torch.ones(16, 16)
    x[3, 4] = torch.inf
    assert not fp8_linear.linear(layer, x, fp8=True).isfinite().all()
    zero = torch.zeros(16, 16, requires_grad=True)
    fp8_linear.linear(layer, zero, fp8=True).sum().backward()
    assert zero.grad is not None and zero.grad.isfinite().all()


def test_rounding_of_a_token_does_not_depend_on_the_others() -> None:
    """So a gradient hardly depends on how it is split into micro-batches."""
    layer, x = nn.Linear(64, 32), torch.randn(32, 64)
    alone = fp8_linear.linear(layer, x[:5], fp8=True)
    assert torch.equal(fp8_linear.linear(layer, torch.cat([x[:5], 3 * x[5:]]), fp8=True)[:5], alone)


def test_small_layers_and_layers_without_fp8_are_plain() -> None:
    x = torch.randn(5, 64)
    for layer, fp8 in ((nn.Linear(64, 24), True), (nn.Linear(64, 32), False)):
        assert torch.equal(fp8_linear.linear(layer, x, fp8), layer(x))


def test_frozen_weight_has_no_gradient() -> None:
    layer = nn.Linear(32, 32, bias=False).requires_grad_(False)
    x = torch.randn(7, 32, requires_grad=True)
    fp8_linear.linear(layer, x, fp8=True).sum().backward()
    assert layer.weight.grad is None and x.grad is not None


def test_adapter_is_added_to_the_fp8_product_of_its_base() -> None:
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(rank=4), seed=0)
    layer, x = net.layers[0].mlp.gate_proj, torch.randn(9, 32)
    nn.init.normal_(layer.lora_B["default"].weight)
    expected = fp8_linear.linear(layer.base_layer, x, True) + (layer(x) - layer.base_layer(x))
    assert torch.allclose(fp8_linear.linear(layer, x, True), expected, atol=1e-5)
    assert not torch.allclose(layer(x), expected, atol=1e-3)


def hidden_states(net: Decoder, fp8: bool) -> Tensor:
    attend = make_tree_attention([24], [-1], net.config, net.device, net.dtype)
    return net(torch.arange(24) % 30, attend.positions_T, attend, fp8=fp8)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_decoder_in_fp8_with_and_without_checkpointing(kind: str) -> None:
    net = tiny_decoder(kind)
    grads = []
    for checkpointing in (False, True):
        net.gradient_checkpointing = checkpointing
        out = hidden_states(net, True)
        out.square().sum().backward()
        grads.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
        net.zero_grad()
    assert all(torch.allclose(grads[0][n], grads[1][n], rtol=1e-4, atol=1e-5) for n in grads[0])
    exact = hidden_states(net, False)
    assert 1e-4 < distance(out, exact) < 0.2


def make_learner(net: Decoder, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """A CPU multiplies in FP8 slowly, so that a job there is refused."""
    monkeypatch.setattr(fp8_linear, "check_supported", lambda *_: None)
    return Learner(net, PLAIN, fp8=True)


def test_learners_gradient_is_near_the_exact_one_and_the_head_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = mixed_groups()
    PLAIN.credit(traces, "wanted", {})
    exact = Learner(tiny_decoder(), PLAIN).gradient(traces)
    learner = make_learner(tiny_decoder(), monkeypatch)
    count, multiply = 0, fp8_linear._multiply

    def counted(*factors: Any, **settings: Any) -> Tensor:
        nonlocal count
        count += 1
        return multiply(*factors, **settings)

    monkeypatch.setattr(fp8_linear, "_multiply", counted)
    rough = learner.gradient(traces)
    assert count == 3 * 7 * len(learner.net.layers), "three for each of seven matrices, none for the head"
    a, b = (torch.cat([g[n].flatten() for n in sorted(exact)]) for g in (rough, exact))
    assert 1e-3 < distance(a, b) < 0.3
    assert learner.step(traces)["grad_norm"] > 0


@pytest.mark.parametrize(
    ("device", "capability", "told"),
    [("cpu", None, "need an NVIDIA GPU, and the model is on cpu"), ("cuda", (8, 0), "this one has 8.0")],
)
def test_devices_without_fp8_are_refused(
    device: str, capability: tuple[int, int] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(UsageError, match=told):
        fp8_linear.check_supported(tiny_decoder(), torch.device(device))
    with pytest.raises(UsageError, match="leave out --fp8"):
        Learner(tiny_decoder(), PLAIN, fp8=True)


def test_quantised_weights_are_refused() -> None:
    net = tiny_decoder()
    lora.attach(net, lora.LoRA(rank=4, base="int8"), seed=0)
    with pytest.raises(UsageError, match="quantised already"):
        fp8_linear.check_supported(net, torch.device("cuda"))
