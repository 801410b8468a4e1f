"""The chunked head against torch's log_softmax and autograd."""

from __future__ import annotations

import pytest
import torch

from ponder.train import head

N, E, V = 23, 8, 40


def inputs(dtype: torch.dtype = torch.float32, count: int = N) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, E, generator=draw).to(dtype).requires_grad_()
    weight = torch.randn(V, E, generator=draw).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (count,), generator=draw)


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, heat: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = torch.log_softmax(hidden @ weight.T / heat, -1)
    return logprobs.gather(-1, target[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("heat", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("chunk", [1, 5, N - 1, N, N + 1, 1024])  # on, before and after each border
def test_values_and_gradients(chunk: int, heat: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_CHUNK", chunk)
    hidden, weight, target = inputs()
    coefficient = torch.linspace(-2, 3, N)
    found, entropy = head.token_logprobs(hidden, weight, target, heat)
    (found * coefficient).sum().backward()

    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    expected, true_entropy = plain(h, w, target, heat)
    (expected * coefficient.double()).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), true_entropy.detach(), rtol=1e-5, atol=5e-5)  # only a metric
    torch.testing.assert_close(hidden.grad.double(), h.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), w.grad, rtol=1e-5, atol=1e-5)


def test_entropy_has_no_gradient_and_a_frozen_head_none() -> None:
    hidden, weight, target = inputs()
    weight.requires_grad_(False)
    found, entropy = head.token_logprobs(hidden, weight, target, 1.0)
    assert not entropy.requires_grad
    found.sum().backward()
    assert weight.grad is None and hidden.grad is not None and hidden.grad.any()


def test_no_token_by_vocabulary_tensor_is_kept() -> None:
    kept: list[tuple[int, ...]] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(t.shape))
        return t

    hidden, weight, target = inputs()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        head.token_logprobs(hidden, weight, target, 1.0)
    assert kept and (N, V) not in kept
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        plain(hidden, weight, target, 1.0)
    assert (N, V) in kept, "the check sees what the plain way keeps"


def test_weight_gradient_sums_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small pieces in bfloat16: a running bfloat16 sum would stop growing."""
    monkeypatch.setattr(head, "_CHUNK", 1)
    count = 600
    hidden = torch.full((count, E), 0.1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(V, E, dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(count, dtype=torch.long)
    head.token_logprobs(hidden, weight, target, 1.0)[0].sum().backward()
    one = float((torch.tensor(1 - 1 / V).bfloat16() * torch.tensor(0.1).bfloat16()).float())
    assert weight.grad is not None
    assert float(weight.grad[0, 0]) == pytest.approx(count * one, rel=0.01)

    running = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(count):
        running += one
    assert float(running) < 0.6 * count * one, "and the numbers here would have shown it"


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    found, entropy = head.token_logprobs(hidden, weight, torch.tensor([0, 0]), 1.0)
    found.sum().backward()
    assert found.tolist() == pytest.approx([0.0, -2e4])
    assert entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-2)
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()
