"""Compiled norm, SwiGLU and rotation: their values against torch's, their gradients against float64's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes import tiny_decoder
from ponder.nets import cpu_kernels, cpu_training_ops, rope
from ponder.nets.decoder import MLP
from ponder.nets.rms_norm import RMSNorm
from ponder.nets.tree_attention import make_tree_attention

pytestmark = pytest.mark.skipif(
    cpu_kernels.compile_kernels("cpu_training_ops.c", torch.float32) is None, reason="no C compiler, or no OpenMP"
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_CPU_KERNELS", raising=False)
    monkeypatch.setattr(cpu_training_ops, "_MIN_NUMBERS", 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_operation(
    work: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`work` runs compiled in this dtype, and in torch in this one and in float64."""
    results = []
    for kind, kernels in ((dtype, "1"), (dtype, "0"), (torch.float64, "0")):
        monkeypatch.setenv("PONDER_CPU_KERNELS", kernels)
        given = [x.to(dtype).to(kind, copy=True).requires_grad_() for x in inputs]
        out = work(*given)
        is_compiled = "Backward" in type(out.grad_fn).__name__ and type(out.grad_fn).__name__.startswith("_")
        assert is_compiled == (kernels == "1"), type(out.grad_fn).__name__
        out.backward(normal(*out.shape, seed=9).to(dtype).to(kind))
        results.append([out.detach(), *(x.grad for x in given)])
    ours, plain, exact = results
    for mine, theirs, true in zip(ours, plain, exact, strict=True):
        assert mine is not None and theirs is not None and true is not None and mine.dtype == dtype
        if mine is ours[0] and dtype == torch.bfloat16:
            assert torch.equal(mine, theirs), "they round at the same places"
        limit = 2 * (theirs.double() - true).abs().max() + 1e-6
        assert (mine.double() - true).abs().max() <= limit, "no further from float64 than torch's"


@DTYPES
@pytest.mark.parametrize("shape", [(9, 64), (5, 3, 40)])
def test_norm(dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def work(x: Tensor, weight: Tensor) -> Tensor:
        norm = RMSNorm(shape[-1], 1e-5)
        del norm.weight
        norm.weight = weight  # type: ignore[assignment]
        normed: Tensor = norm(x)
        return normed

    check_operation(work, [normal(*shape) * 3, normal(shape[-1], seed=1)], dtype, monkeypatch)


@DTYPES
def test_swiglu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(gate: Tensor, up: Tensor) -> Tensor:
        if (library := cpu_training_ops.load_training_kernels(gate, up)) is not None:
            return cpu_training_ops.swiglu(library, gate, up)
        return F.silu(gate) * up

    check_operation(work, [normal(7, 300) * 4, normal(7, 300, seed=1)], dtype, monkeypatch)


@DTYPES
def test_rotation(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(x: Tensor) -> Tensor:
        angles = normal(6, 1, 12, seed=2).repeat(1, 1, 2)
        return rope.rotate(x, angles.cos().to(dtype).to(x.dtype), angles.sin().to(dtype).to(x.dtype))

    check_operation(work, [normal(6, 4, 24)], dtype, monkeypatch)


def test_tensors_that_are_not_contiguous_run_in_torch() -> None:
    x = normal(8, 6).T
    assert cpu_training_ops.load_training_kernels(x) is None
    assert cpu_training_ops.load_training_kernels(x.contiguous().double()) is None
    assert cpu_training_ops.load_training_kernels(x.contiguous()) is not None


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_gradient_of_network_equals_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grads = []
    for kernels in ("1", "0"):
        monkeypatch.setenv("PONDER_CPU_KERNELS", kernels)
        net = tiny_decoder(kind)
        assert isinstance(net.layers[0].mlp, MLP)
        attend = make_tree_attention([5, 3, 4], [-1, 0, 0], net.config, net.device, net.dtype)
        hidden = net(torch.arange(12), attend.positions_T, attend)
        (net.logits(hidden) * normal(12, net.config.vocab)).sum().backward()
        grads.append({n: p.grad for n, p in net.named_parameters()})
    for name, ours in grads[0].items():
        assert ours is not None
        theirs = grads[1][name]
        assert theirs is not None and (ours - theirs).abs().max() < 5e-6 * theirs.abs().max() + 1e-6, name
