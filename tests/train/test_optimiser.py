"""AdamW and its master weights against the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fakes import tiny
from ponder.errors import UsageError
from ponder.train.optimiser import AdamW, Masters


def gradients(net: torch.nn.Module, step: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {n: torch.randn(p.shape, generator=draw) * size for n, p in net.named_parameters()}


def by_hand(net: torch.nn.Module, settings: AdamW, steps: int, size: float = 1.0) -> dict[str, np.ndarray]:
    """Loshchilov & Hutter (2019), algorithm 2, in float64; the gradient is clipped by its global norm before."""
    w = {n: p.detach().double().numpy().copy() for n, p in net.named_parameters()}
    m, v = ({n: np.zeros_like(x) for n, x in w.items()} for _ in range(2))
    b1, b2 = settings.betas
    for t in range(1, steps + 1):
        g = {n: x.double().numpy() for n, x in gradients(net, t, size).items()}
        norm = math.sqrt(sum((x**2).sum() for x in g.values()))
        for n in w:
            clipped = g[n] * min(1.0, settings.max_norm / norm)
            lr = settings.rate(t - 1)
            m[n] = b1 * m[n] + (1 - b1) * clipped
            v[n] = b2 * v[n] + (1 - b2) * clipped**2
            decay = settings.weight_decay if w[n].ndim > 1 else 0.0
            w[n] -= lr * decay * w[n]
            w[n] -= lr * (m[n] / (1 - b1**t)) / (np.sqrt(v[n] / (1 - b2**t)) + settings.eps)
    return w


def taken(net: torch.nn.Module, settings: AdamW, steps: int, size: float = 1.0) -> Masters:
    masters = Masters(net, settings)  # type: ignore[arg-type]
    for t in range(1, steps + 1):
        for n, g in gradients(net, t, size).items():
            masters.params[n].grad = g.to(masters.params[n].dtype)
        masters.collect()
        masters.step(masters.norm())
    return masters


SETTINGS = [
    AdamW(lr=0.01), AdamW(lr=0.01, weight_decay=0.1), AdamW(lr=0.01, warmup=3, decay_steps=6),
    AdamW(lr=0.01, max_norm=0.3), AdamW(lr=0.01, betas=(0.5, 0.9), eps=1e-3, max_norm=math.inf),
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "decay", "schedule", "clip", "betas"])
def test_steps_follow_the_formula(settings: AdamW) -> None:
    net = tiny("untied")
    expected = by_hand(net, settings, 5, size=0.01 if settings.max_norm == 0.3 else 1.0)
    taken(net, settings, 5, size=0.01 if settings.max_norm == 0.3 else 1.0)
    for name, p in net.named_parameters():
        assert np.allclose(p.detach().numpy(), expected[name], rtol=1e-5, atol=1e-6), name


def test_clipping_uses_the_global_norm() -> None:
    net = tiny()
    masters = Masters(net, AdamW(lr=1.0, betas=(0.0, 0.0), eps=1e9, max_norm=0.5))  # one step is g / 1e9
    given = gradients(net, 1, 5.0)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in given.values()))
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    for n, g in given.items():
        masters.params[n].grad = g.clone()
    assert float(masters.norm()) == pytest.approx(norm, rel=1e-6)
    seen: dict[str, torch.Tensor] = {}
    step = masters.adam.step
    masters.adam.step = lambda: (seen.update({n: w.grad.clone() for n, w in masters.weights.items()}), step())  # type: ignore
    masters.step(masters.norm())
    for n, g in given.items():
        torch.testing.assert_close(seen[n], g * 0.5 / norm)
    assert math.sqrt(sum(float(g.square().sum()) for g in seen.values())) == pytest.approx(0.5, rel=1e-5)
    assert before.keys() == seen.keys()


def test_a_small_gradient_is_not_scaled_up() -> None:
    net = tiny()
    masters = Masters(net, AdamW(max_norm=1e6))
    for n, g in gradients(net, 1).items():
        masters.params[n].grad = g.clone()
    seen: list[torch.Tensor] = []
    step = masters.adam.step
    masters.adam.step = lambda: (seen.extend(w.grad.clone() for w in masters.weights.values()), step())  # type: ignore
    masters.step(masters.norm())
    assert all(torch.equal(a, b) for a, b in zip(seen, gradients(net, 1).values(), strict=True))


def test_schedule() -> None:
    rule = AdamW(lr=2.0, warmup=4, decay_steps=12)
    assert [rule.rate(i) for i in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert rule.rate(4) == 2.0 and rule.rate(8) == pytest.approx(1.0) and rule.rate(12) == pytest.approx(0.0)
    assert rule.rate(10_000) == pytest.approx(0.0) and AdamW(lr=2.0).rate(10_000) == 2.0


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"lr": -1.0}, {"lr": math.nan}, {"max_norm": 0.0}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        AdamW(**settings)


# float32 masters under a network in bfloat16


def test_small_updates_survive_in_the_masters() -> None:
    net = tiny(dtype=torch.bfloat16)
    start = {n: p.detach().float().clone() for n, p in net.named_parameters()}
    settings = AdamW(lr=1e-5)
    masters = Masters(net, settings)
    for _ in range(30):
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        masters.collect()
        masters.step(masters.norm())
    for n, w in masters.weights.items():
        moved = start[n] - w.detach()
        torch.testing.assert_close(moved, torch.full_like(moved, 30e-5), rtol=0.01, atol=1e-6)  # Adam: lr each
        assert torch.equal(masters.params[n].detach(), w.detach().bfloat16()), "the network holds them, rounded"
    large = start["embed_tokens.weight"].abs() > 0.25
    rounded = (start["embed_tokens.weight"] - 1e-5).bfloat16().float()
    assert torch.equal(rounded[large], start["embed_tokens.weight"][large]), "bfloat16 alone would not have moved"


def test_micro_batches_add_up_in_float32() -> None:
    net = tiny(dtype=torch.bfloat16)
    masters = Masters(net, AdamW())
    for value in [256.0] + [1.0] * 8:  # bfloat16: 256 + 1 = 256
        for p in net.parameters():
            p.grad = torch.full_like(p, value)
        masters.collect()
        assert all(p.grad is None for p in net.parameters())
    assert all(w.grad is not None and (w.grad == 264).all() for w in masters.weights.values())
    masters.forget()
    assert float(masters.norm()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_restores_exactly(dtype: torch.dtype) -> None:
    settings = AdamW(lr=0.01, warmup=5)
    whole = taken(tiny(dtype=dtype), settings, 4)
    half = taken(tiny(dtype=dtype), settings, 2)
    saved = {n: t.clone() for n, t in half.state().items()}
    again = Masters(tiny(seed=5, dtype=dtype), settings)
    with torch.no_grad():
        for n, p in again.params.items():
            p.copy_(half.params[n])
    again.restore(saved, half.steps)
    for t in (3, 4):
        for n, g in gradients(again.net, t).items():
            again.params[n].grad = g.to(dtype)
        again.collect()
        again.step(again.norm())
    assert again.steps == whole.steps == 4
    assert all(torch.equal(w, again.weights[n]) for n, w in whole.weights.items())
    assert all(torch.equal(t, again.state()[n]) for n, t in whole.state().items())


def test_frozen_parameters_are_not_optimised() -> None:
    net = tiny()
    net.embed_tokens.requires_grad_(False)
    masters = Masters(net, AdamW())
    assert not [n for n in masters.weights if "embed" in n]
