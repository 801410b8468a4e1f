"""Compiled operations of a layer and over logits against torch's, in float32 and in bfloat16."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.engine import sampler
from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.cpu_layer_ops import CompiledAttention, CompiledOps, TorchOps
from ponder.engine.kv_cache import KVCache
from ponder.nets import cpu_kernels, cpu_logits
from ponder.nets.rms_norm import RMSNorm
from ponder.train import chunked_lm_head

pytestmark = pytest.mark.skipif(
    cpu_kernels.compile_kernels("cpu_layer_ops.c", torch.float32) is None, reason="no C compiler, or no OpenMP"
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_CPU_KERNELS", raising=False)


def both_ops(dtype: torch.dtype) -> tuple[CompiledOps, TorchOps]:
    library = cpu_kernels.compile_kernels("cpu_layer_ops.c", dtype)
    assert library is not None
    return CompiledOps(library), TorchOps()


def normal(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def norm_of(size: int, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(size, 1e-5).to(dtype).requires_grad_(False)
    norm.weight.copy_(normal(size, dtype=dtype))
    return norm


def check_same(ours: Tensor, theirs: Tensor, atol: float = 2e-6) -> None:
    """In bfloat16 both round at the same places, so that few numbers differ, by one unit in the last place."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if ours.dtype == torch.float32:
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=atol)
    else:
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=atol)
        assert ((ours - theirs).abs() > atol).float().mean() < 0.1


@DTYPES
@pytest.mark.parametrize("width", [64, 100, 576])
def test_add_norm_equals_torch(dtype: torch.dtype, width: int) -> None:
    compiled, plain = both_ops(dtype)
    norm = norm_of(width, dtype)
    for more in (None, normal(7, width, dtype=dtype, scale=3)):
        ours, theirs = (normal(7, width, dtype=dtype) for _ in range(2))
        check_same(compiled.add_norm(ours, more, norm), plain.add_norm(theirs, more, norm))
        assert torch.equal(ours, theirs)


@DTYPES
@pytest.mark.parametrize("gelu", [False, True])
def test_gate_equals_torch(dtype: torch.dtype, gelu: bool) -> None:
    compiled, plain = both_ops(dtype)
    for x in (normal(5, 600, dtype=dtype, scale=4), normal(5, 34, dtype=dtype, scale=40)):
        # torch's GELU is 0.5 x (1 + tanh), which loses digits where x is far below 0
        check_same(compiled.gate(x, gelu), plain.gate(x.clone(), gelu), atol=1e-4 if gelu else 2e-6)


@DTYPES
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("size", [8, 64])
def test_rotate_equals_torch(dtype: torch.dtype, qk_norm: bool, size: int) -> None:
    compiled, plain = both_ops(dtype)
    attention = SimpleNamespace(heads=4, kv_heads=2, qk_norm=qk_norm)
    attention.q_norm, attention.k_norm = norm_of(size, dtype), norm_of(size, dtype)
    angles = torch.randn(6, 1, size // 2, generator=torch.Generator().manual_seed(1)).repeat(1, 1, 2)
    rotary = angles.cos().to(dtype), angles.sin().to(dtype)
    ours, theirs = (normal(6, 8, size, dtype=dtype) for _ in range(2))
    values = ours[:, 6:].clone()
    compiled.rotate(ours, attention, compiled.prepare_rotary(rotary))
    plain.rotate(theirs, attention, rotary)
    check_same(ours, theirs)
    assert torch.equal(ours[:, 6:], values), "values are not rotated"


@DTYPES
@pytest.mark.parametrize("size", [24, 64, 128])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_equals_softmax_in_float64(dtype: torch.dtype, size: int, window: int | None) -> None:
    heads, kv_heads, slots = 6, 2, 50
    config = SimpleNamespace(kv_heads=kv_heads, head_dim=size, layers=1)
    cache = KVCache(config, slots, torch.device("cpu"), dtype)  # type: ignore[arg-type]
    cache.kv[0].copy_(normal(2, kv_heads, slots, size, dtype=dtype))
    library = cpu_kernels.compile_kernels("cpu_layer_ops.c", dtype)
    assert library is not None
    shared = KVSegment([0, 2], 0, [np.arange(20, 26, dtype=np.int32)])
    tails = [np.asarray(t, np.int32) for t in ([1, 9], [3], [5, 6, 7, 11])]
    attend = CompiledAttention(cache, AttentionPlan([shared], tails, [6, 0, 6]), library)
    assert attend.positions_T.tolist() == [7, 0, 9]
    attend.grow(np.asarray([30, 31, 32]))
    attend.keep_rows(np.asarray([2, 0]))
    attend.grow(np.asarray([33, 34]))
    paths = [[*range(20, 26), 5, 6, 7, 11, 32, 33], [*range(20, 26), 1, 9, 30, 34]]
    assert attend.positions_T.tolist() == [11, 9]
    qkv = normal(2, heads + 2 * kv_heads, size, dtype=dtype)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    ours = attend(0, q, k, v, scale=0.3, window=window)
    for row, path in enumerate(paths):
        assert torch.equal(cache.kv[0][0, :, path[-1]], k[row]) and torch.equal(cache.kv[0][1, :, path[-1]], v[row])
        seen = path[-window:] if window else path
        keys, values = cache.kv[0][:, :, seen].double().repeat_interleave(heads // kv_heads, dim=1)
        weights = (torch.einsum("hd,hld->hl", q[row].double(), keys) * 0.3).softmax(-1)
        expected = torch.einsum("hl,hld->hd", weights, values)
        limit = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 1e-3}
        torch.testing.assert_close(ours[row].double(), expected, **limit)


def test_sample_equals_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3000, generator=draw) * 4
    logits[::3, 100:2900] = -torch.inf
    uniform = torch.rand(200, dtype=torch.float64, generator=draw)
    uniform[:2] = torch.tensor([0.0, 1 - 2**-53])
    greedy = torch.arange(200) % 5 == 0
    forced = torch.where(torch.arange(200) % 7 == 0, 17, -1)
    for given in (None, forced):
        tokens, logprobs = sampler.sample_tokens(logits, uniform, greedy, given)
        with monkeypatch.context() as patch:
            patch.setenv("PONDER_CPU_KERNELS", "0")
            expected = sampler.sample_tokens(logits, uniform, greedy, given)
        assert (tokens != expected[0]).sum() <= 1, "a border may lie between two tokens"
        same = tokens == expected[0]
        torch.testing.assert_close(logprobs[same], expected[1][same], rtol=1e-6, atol=2e-6)
        assert torch.isfinite(logits[torch.arange(200), tokens]).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_sample_of_nonfinite_logits_is_nonfinite(wrong: float) -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    logits[1, 500] = wrong
    half = torch.full((3,), 0.5, dtype=torch.float64)
    _, logprobs = sampler.sample_tokens(logits, half, torch.zeros(3, dtype=torch.bool))
    assert torch.isfinite(logprobs).tolist() == [True, False, True]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kept_bytes", [0, 20 * 700 * 4, 1 << 20])
def test_logprobs_and_gradient_equal_float64(
    temperature: float, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kernel for float64, its numbers are torch's."""
    monkeypatch.setattr(chunked_lm_head, "_CHUNK_BYTES", 20 * 700 * 4)
    monkeypatch.setattr(chunked_lm_head, "_CPU_KEPT_BYTES", kept_bytes)
    draw = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(40, 32, generator=draw), torch.randn(700, 32, generator=draw)
    target = torch.randint(0, 700, (40,), generator=draw)
    factors = torch.randn(2, 40, generator=draw)
    results = []
    for dtype in (torch.float32, torch.float64):
        h, w = (x.to(dtype, copy=True).requires_grad_() for x in (hidden, weight))
        assert (cpu_logits.load_logits_kernels(h) is not None) == (dtype == torch.float32)
        logprobs, entropy = chunked_lm_head.token_logprobs(h, w, target, temperature)
        loss = (logprobs * factors[0] + entropy * factors[1]).sum()
        (first,) = torch.autograd.grad(loss, [h], retain_graph=True)
        loss.backward()
        assert torch.equal(h.grad, first), "a second backward pass computes the logits again"  # type: ignore[arg-type]
        results.append([logprobs.detach(), entropy.detach(), h.grad, w.grad])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=2e-5)
