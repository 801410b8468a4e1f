"""The chunked head against log_softmax and autograd in float64, over the whole vocabulary at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ponder.train import chunked_lm_head

N, E, V = 23, 8, 40
CHUNKS = [1, 5, N - 1, N, N + 1, 1024]  # on, before and after each border


def cut_at(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_lm_head, "_CHUNK_BYTES", 4 * V * tokens)


def keep(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the probabilities of so many bytes, as on a GPU."""
    monkeypatch.setattr(chunked_lm_head, "max_kept_bytes", lambda device: room)


ROOMS = [0, 4 * V * 5, 1 << 30]  # nothing is kept, the first chunk of 5 tokens in float32, everything


def inputs(dtype: torch.dtype = torch.float32, count: int = N, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, E, generator=draw).to(dtype).requires_grad_()
    weight = torch.randn(V, E, generator=draw).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (count,), generator=draw)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, heat: float) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T / heat
    logp = logits - logits.exp().sum(-1, keepdim=True).log()
    return logp.gather(-1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def plain_divergence(
    hidden: Tensor, weight: Tensor, taught: Tensor, teacher: Tensor, heat: float, mix: float
) -> Tensor:
    s, t = (hidden @ weight.T / heat).softmax(-1), (taught @ teacher.T / heat).softmax(-1)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p * (p / q).log()).sum(-1)

    if mix in (0.0, 1.0):
        return kl(s, t) if mix else kl(t, s)
    m = mix * t + (1 - mix) * s
    return mix * kl(t, m) + (1 - mix) * kl(s, m)


def doubled(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


def close(result: Tensor | None, expected: Tensor | None, size: float) -> None:
    """Within so much of the largest number."""
    assert result is not None and expected is not None
    most = float(expected.detach().abs().max())
    assert most > 1e-3
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=size * most)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("heat", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_token_logprobs_values_and_gradients(
    chunk: int, heat: float, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the log-probability alone, of the entropy alone, and of both."""
    cut_at(chunk, monkeypatch)
    keep(room, monkeypatch)
    a, b = torch.linspace(-2, 3, N).double(), torch.linspace(4, -1, N).double().cos()
    for kind, size in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        for wanted in ((1, 0), (0, 1), (1, 1)):
            hidden, weight, target = inputs(kind)
            logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, target, heat)
            assert logp.dtype == entropy.dtype == kind
            parts = [(logp * a).sum()] * wanted[0] + [(entropy * b).sum()] * wanted[1]
            torch.stack(parts).sum().backward()

            h, w = doubled(hidden, weight)
            true_logp, true_entropy = plain(h, w, target, heat)
            (wanted[0] * (true_logp * a).sum() + wanted[1] * (true_entropy * b).sum()).backward()
            close(logp, true_logp, size)
            close(entropy, true_entropy, size)
            close(hidden.grad, h.grad, size)
            close(weight.grad, w.grad, size)


@pytest.mark.parametrize("mix", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("chunk", "heat"), [(1, 1.0), (5, 0.6), (N - 1, 1.7), (N, 1.0), (1024, 0.6)])
def test_divergence_values_and_gradients(chunk: int, heat: float, mix: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher of another width; gradient to the student alone."""
    cut_at(chunk, monkeypatch)
    coefficient = torch.linspace(-2, 3, N).double()
    for kind, size in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
        hidden, weight, _ = inputs(kind)
        taught = torch.randn(N, 3, generator=torch.Generator().manual_seed(5), dtype=kind, requires_grad=True)
        teacher = torch.randn(V, 3, generator=torch.Generator().manual_seed(6), dtype=kind, requires_grad=True)
        result = chunked_lm_head.divergence(hidden, weight, taught, teacher, heat, mix)
        (result * coefficient).sum().backward()
        h, w, g, t = doubled(hidden, weight, taught, teacher)
        expected = plain_divergence(h, w, g, t, heat, mix)
        (expected * coefficient).sum().backward()
        close(result, expected, size)
        close(hidden.grad, h.grad, size)
        close(weight.grad, w.grad, size)
        assert taught.grad is None and teacher.grad is None


def test_divergence_is_zero_only_for_equal_distributions() -> None:
    hidden, weight, _ = inputs()
    for mix in (0.0, 0.3, 1.0):
        same = chunked_lm_head.divergence(hidden, weight, hidden.detach(), weight.detach(), 0.7, mix)
        assert same.abs().max() < 1e-5
        assert chunked_lm_head.divergence(hidden, weight, -hidden.detach(), weight.detach(), 0.7, mix).min() > 1e-3


def test_frozen_head_gets_no_gradient() -> None:
    hidden, weight, target = inputs()
    weight.requires_grad_(False)
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, target, 1.0)
    (logp + entropy).sum().backward()
    assert weight.grad is None and hidden.grad is not None and hidden.grad.any()
    hidden.grad = None
    chunked_lm_head.divergence(hidden, weight, hidden.detach().flip(0), weight, 1.0, 0.5).sum().backward()
    assert weight.grad is None and hidden.grad is not None and hidden.grad.any()


def test_token_logprobs_of_no_tokens() -> None:
    hidden, weight, target = inputs(count=0)
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, target, 1.0)
    apart = chunked_lm_head.divergence(hidden, weight, hidden.detach(), weight.detach(), 1.0, 0.5)
    assert logp.shape == entropy.shape == apart.shape == (0,)
    (logp.sum() + entropy.sum() + apart.sum()).backward()
    assert weight.grad is not None and not weight.grad.any()


@pytest.mark.parametrize("chunk", [7, 1024])
def test_no_token_by_vocabulary_tensor_is_kept(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at(chunk, monkeypatch)
    kept: list[tuple[int, ...]] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(tuple(t.shape))
        return t

    def shapes(work: Callable[[], object]) -> list[tuple[int, ...]]:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = work()
        assert kept, out
        return [*kept]

    hidden, weight, target = inputs()
    teacher, vocabulary = hidden.detach().flip(0), weight.detach()
    for work in (
        lambda: chunked_lm_head.token_logprobs(hidden, weight, target, 1.0),
        lambda: chunked_lm_head.divergence(hidden, weight, teacher, vocabulary, 1.0, 0.5),
    ):
        assert set(shapes(work)) <= {(N, E), (V, E), (N,)}
    assert (N, V) in shapes(lambda: plain(hidden, weight, target, 1.0)), "the check sees what the plain way keeps"


# bfloat16: what goes in is rounded, sums are not


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("chunk", [5, 1024])
def test_token_logprobs_in_bfloat16(chunk: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near float64 on the same rounded inputs; what comes out is float32."""
    cut_at(chunk, monkeypatch)
    keep(room, monkeypatch)
    hidden, weight, target = inputs(torch.bfloat16)
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, target, 1.0)
    assert logp.dtype == entropy.dtype == torch.float32
    (logp.sum() + entropy.sum()).backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16
    h, w = doubled(hidden, weight)
    true_logp, true_entropy = plain(h, w, target, 1.0)
    (true_logp.sum() + true_entropy.sum()).backward()
    for result, expected in ((logp, true_logp), (entropy, true_entropy), (hidden.grad, h.grad), (weight.grad, w.grad)):
        close(result, expected, 0.01)

    apart = chunked_lm_head.divergence(hidden, weight, hidden.detach().flip(0), weight.detach(), 1.0, 0.5)
    assert apart.dtype == torch.float32
    close(apart, plain_divergence(h, w, h.detach().flip(0), w.detach(), 1.0, 0.5), 0.01)


def test_softmax_is_in_float32() -> None:
    """A wide vocabulary of equal logits: log V exactly, where a bfloat16 sum would stop at 256."""
    count = 5000
    hidden, weight = torch.zeros(3, E, dtype=torch.bfloat16), torch.zeros(count, E, dtype=torch.bfloat16)
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, torch.tensor([0, 7, 4999]), 1.0)
    true = torch.tensor(float(count)).log()
    assert [*-logp, *entropy] == pytest.approx([float(true)] * 6, rel=1e-6)


@pytest.mark.parametrize("what", ["logprobs", "divergence"])
def test_weight_gradient_sums_in_float32(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small pieces in bfloat16: a running bfloat16 sum would stop growing."""
    cut_at(1, monkeypatch)
    count = 600
    hidden = torch.full((count, E), 0.1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(V, E, dtype=torch.bfloat16, requires_grad=True)
    if what == "logprobs":
        chunked_lm_head.token_logprobs(hidden, weight, torch.zeros(count, dtype=torch.long), 1.0)[0].sum().backward()
    else:  # a teacher that is sure of word 0: the gradient is s - t
        sure = torch.zeros(V, E, dtype=torch.bfloat16)
        sure[0] = 1000
        (-chunked_lm_head.divergence(hidden, weight, hidden.detach(), sure, 1.0, 0.0)).sum().backward()
    one = float((torch.tensor(1 - 1 / V).bfloat16() * torch.tensor(0.1).bfloat16()).float())
    assert weight.grad is not None
    assert float(weight.grad[0, 0]) == pytest.approx(count * one, rel=0.01)

    running = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(count):
        running += one
    assert float(running) < 0.6 * count * one, "and the numbers here would have shown it"


def test_entropy_is_exact_with_large_logit_offset() -> None:
    hidden, weight, target = inputs()
    ones = torch.ones(N, 1)
    for offset in (0.0, 64.0, 1024.0):
        moved = torch.cat((hidden.detach(), offset * ones), 1), torch.cat((weight.detach(), torch.ones(V, 1)), 1)
        logp, entropy = chunked_lm_head.token_logprobs(*moved, target, 1.0)
        true_logp, true_entropy = plain(hidden.detach().double(), weight.detach().double(), target, 1.0)
        close(logp, true_logp, 3e-6 + 2e-7 * offset)  # what the product itself rounds off
        close(entropy, true_entropy, 3e-6 + 1e-7 * offset)


@pytest.mark.parametrize("room", ROOMS)
def test_likely_token_has_its_gradient_in_bfloat16(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - p is 1e-3 here, where p in bfloat16 is 1."""
    keep(room, monkeypatch)
    hidden = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[7.0], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    chunked_lm_head.token_logprobs(hidden, weight, torch.tensor([0]), 1.0)[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad[:, 0].tolist() == pytest.approx([9.11e-4, -9.11e-4], rel=0.01)


@pytest.mark.parametrize("room", ROOMS)
def test_banned_token_has_no_gradient(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(room, monkeypatch)
    hidden, weight, target = inputs()
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, target.clamp(max=V - 2), 0.7, banned=V - 1)
    (logp.sum() + entropy.sum()).backward()
    h, w = doubled(hidden, weight)
    true_logp, true_entropy = plain(h, w[: V - 1], target.clamp(max=V - 2), 0.7)
    (true_logp.sum() + true_entropy.sum()).backward()
    close(hidden.grad, h.grad, 1e-5)
    close(weight.grad, w.grad, 1e-5)


@pytest.mark.parametrize(("room", "products"), [(0, 4), (4 * V * 12, 3), (1 << 30, 2)])
def test_head_runs_again_only_for_what_is_not_kept(room: int, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at(12, monkeypatch)  # two chunks
    keep(room, monkeypatch)
    calls: list[int] = []
    real = chunked_lm_head.project_logits

    def counted(hidden: Tensor, weight: Tensor, banned: int | None = None) -> Tensor:
        if len(weight) == V:
            calls.append(len(hidden))
        return real(hidden, weight, banned)

    monkeypatch.setattr(chunked_lm_head, "project_logits", counted)
    hidden, weight, target = inputs()
    chunked_lm_head.token_logprobs(hidden, weight, target, 1.0)[0].sum().backward()
    assert len(calls) == products
    calls.clear()
    with torch.no_grad():
        chunked_lm_head.token_logprobs(hidden.detach(), weight, target, 1.0)
    assert len(calls) == 2, "without a gradient nothing is kept"


@pytest.mark.parametrize("room", ROOMS)
def test_extreme_logits_stay_finite(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(room, monkeypatch)
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    logp, entropy = chunked_lm_head.token_logprobs(hidden, weight, torch.tensor([0, 0]), 1.0)
    (logp.sum() + entropy.sum()).backward()
    assert logp.tolist() == pytest.approx([0.0, -2e4])
    assert entropy.tolist() == [0.0, 0.0], "of a sure distribution, whatever the size of its logits"
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()
    for mix in (0.0, 0.5, 1.0):
        hidden.grad = None
        apart = chunked_lm_head.divergence(hidden, weight, -hidden.detach(), weight.detach(), 1.0, mix)
        apart.sum().backward()
        assert torch.isfinite(apart).all() and hidden.grad is not None and torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize(
    "function",
    [
        chunked_lm_head._norm_and_entropy, chunked_lm_head._logprobs_grad, chunked_lm_head._norm_entropy_probs,
        chunked_lm_head._kept_probs_grad,
    ],
)  # fmt: skip
def test_compiled_passes_have_constant_vocabulary_and_variable_tokens(function: Callable[..., Any]) -> None:
    widths: list[object] = []
    lengths: list[object] = []

    def backend(graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        ((n, width),) = (v.shape for v in values if isinstance(v, Tensor) and v.dim() == 2)
        widths.append(width)
        lengths.append(n)
        return graph.forward

    compiled = torch.compile(function, dynamic=True, backend=backend)
    for vocabulary, sizes in ((64, (5, 7, 9)), (100, (6, 8))):
        for n in sizes:
            logits, row = chunked_lm_head.with_constant_width(torch.randn(n, vocabulary)), torch.randn(n)
            args: tuple[Any, ...] = (1.0,)
            if function is chunked_lm_head._logprobs_grad:
                args = (torch.zeros(n, dtype=torch.long), row, row, (row, row), 1.0, torch.float32)
            elif function is chunked_lm_head._norm_entropy_probs:
                args = (1.0, torch.bfloat16)
            elif function is chunked_lm_head._kept_probs_grad:
                args = (torch.zeros(n, dtype=torch.long), row, row, (row, row), 1.0)
            torch.testing.assert_close(compiled(logits, *args), function(logits, *args))
    torch._dynamo.reset()
    assert widths == [64, 100] and all(type(width) is int for width in widths)
    assert all(isinstance(n, torch.SymInt) for n in lengths)
