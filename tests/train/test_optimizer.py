"""AdamW and its master weights against the formulas, and where its moments live."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from fakes import tiny_decoder
from ponder.errors import PonderError, RunError, UsageError
from ponder.train import adam_states, optimizer
from ponder.train.optimizer import AdamW, MasterWeights


def gradients(net: nn.Module, step: int, size: float = 1.0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {n: torch.randn(p.shape, generator=draw) * size for n, p in net.named_parameters()}


@pytest.mark.parametrize("states", ["float32", "cpu"])
def test_gradients_are_gone_before_weights_come_from_the_host(states: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = tiny_decoder()
    masters = MasterWeights(net, AdamW(states=states))  # type: ignore[arg-type]
    kept: list[bool] = []
    monkeypatch.setattr(
        masters, "_copy_to_parameters", lambda: kept.append(any(p.grad is not None for p in net.parameters()))
    )
    give(masters, gradients(net, 0))
    assert masters.step(1.0) and kept == [states != "cpu"]
    assert all(p.grad is None for p in net.parameters())


def by_hand(net: nn.Module, settings: AdamW, steps: int, size: float = 1.0) -> dict[str, np.ndarray]:
    """Loshchilov & Hutter (2019), algorithm 2, in float64; the gradient is clipped by its global norm before."""
    w = {n: p.detach().double().numpy().copy() for n, p in net.named_parameters()}
    m, v = ({n: np.zeros_like(x) for n, x in w.items()} for _ in range(2))
    b1, b2 = settings.betas
    for t in range(1, steps + 1):
        g = {n: x.double().numpy() for n, x in gradients(net, t, size).items()}
        norm = math.sqrt(sum((x**2).sum() for x in g.values()))
        for n in w:
            clipped = g[n] * min(1.0, settings.max_grad_norm / norm)
            lr = settings.lr_at(t - 1)
            m[n] = b1 * m[n] + (1 - b1) * clipped
            v[n] = b2 * v[n] + (1 - b2) * clipped**2
            decay = settings.weight_decay if w[n].ndim > 1 else 0.0
            w[n] -= lr * decay * w[n]
            w[n] -= lr * (m[n] / (1 - b1**t)) / (np.sqrt(v[n] / (1 - b2**t)) + settings.eps)
    return w


def give(masters: MasterWeights, grads: dict[str, Tensor]) -> None:
    for n, p in masters.params.items():
        p.grad = grads[n].to(p.device, p.dtype, copy=True)
    masters.accumulate()


def taken(net: nn.Module, settings: AdamW, steps: int, size: float = 1.0) -> MasterWeights:
    masters = MasterWeights(net, settings)
    for t in range(1, steps + 1):
        give(masters, gradients(net, t, size))
        masters.step(masters.grad_norm())
    return masters


def test_gradients_of_large_networks_are_summed_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are those of whole micro-batches, and no parameter keeps a gradient of its own."""
    nets = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    results = []
    for net, most in zip(nets, (1 << 30, 0), strict=True):
        monkeypatch.setattr(optimizer, "MAX_PENDING_GRADIENT_BYTES", most)
        masters = MasterWeights(net, AdamW())
        draw = torch.Generator().manual_seed(0)
        with masters.accumulating():
            for _ in range(3):
                net(torch.randn(5, 8, generator=draw).bfloat16()).square().sum().backward()
                assert [p.grad is None for p in net.parameters()] == [most == 0] * 4
                masters.accumulate()
        results.append(masters.gradients())
        masters.zero_grad()
        net(torch.ones(1, 8).bfloat16()).sum().backward()
        assert all(p.grad is not None for p in net.parameters()) and not masters.gradients()
    assert results[0].keys() == results[1].keys() and all(g.dtype == torch.float32 for g in results[1].values())
    assert all(torch.equal(results[0][n], g) for n, g in results[1].items())


SETTINGS = [
    AdamW(lr=0.01), AdamW(lr=0.01, weight_decay=0.1), AdamW(lr=0.01, warmup_steps=3, decay_steps=6, min_lr_ratio=0.2),
    AdamW(lr=0.01, max_grad_norm=0.3), AdamW(lr=0.01, betas=(0.5, 0.9), eps=1e-3, max_grad_norm=math.inf),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "cpu"])
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "decay", "schedule", "clip", "betas"])
def test_steps_follow_the_formula(settings: AdamW, kind: str) -> None:
    net = tiny_decoder("untied")
    size = 0.01 if settings.max_grad_norm == 0.3 else 1.0
    expected = by_hand(net, settings, 5, size)
    taken(net, with_states(settings, kind), 5, size)
    for name, p in net.named_parameters():
        assert np.allclose(p.detach().numpy(), expected[name], rtol=1e-5, atol=1e-6), name


def with_states(settings: AdamW, kind: str) -> AdamW:
    named = {name: getattr(settings, name) for name in AdamW.__slots__}
    return AdamW(**{**named, "states": kind})


def test_any_module_can_be_trained() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))  # a value head, say
    expected = by_hand(net, AdamW(lr=0.01), 3)
    taken(net, AdamW(lr=0.01), 3)
    assert all(np.allclose(p.detach().numpy(), expected[n], atol=1e-6) for n, p in net.named_parameters())


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_transposed_weight_is_stepped_in_place(kind: str) -> None:
    net = nn.Linear(64, 80, bias=False)
    net.weight = nn.Parameter(torch.randn(64, 80).T)
    expected = by_hand(net, AdamW(lr=0.01), 3)
    taken(net, AdamW(lr=0.01, states=kind), 3)  # type: ignore[arg-type]
    assert not net.weight.is_contiguous()
    assert np.allclose(net.weight.detach().numpy(), expected["weight"], atol=1e-6)


def test_clipping_uses_the_global_norm() -> None:
    net = tiny_decoder()
    masters = MasterWeights(net, AdamW(betas=(0.0, 0.0), max_grad_norm=0.5))  # the first moment is the gradient
    given = gradients(net, 1, 5.0)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in given.values()))
    give(masters, given)
    assert masters.grad_norm() == pytest.approx(norm, rel=1e-6)
    masters.step(masters.grad_norm())
    seen = {n: masters.tensors()[f"exp_avg.{n}"] for n in given}
    for n, g in given.items():
        torch.testing.assert_close(seen[n], g * 0.5 / norm)
    assert math.sqrt(sum(float(g.square().sum()) for g in seen.values())) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("most", [1e6, math.inf])
def test_a_small_gradient_is_not_scaled_up(most: float) -> None:
    net = tiny_decoder()
    masters = MasterWeights(net, AdamW(betas=(0.0, 0.0), max_grad_norm=most))
    give(masters, gradients(net, 1))
    masters.step(masters.grad_norm())
    assert all(torch.equal(masters.tensors()[f"exp_avg.{n}"], g) for n, g in gradients(net, 1).items())


def test_step_without_gradient_changes_nothing() -> None:
    net = tiny_decoder()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    masters = MasterWeights(net, AdamW(lr=0.1, weight_decay=0.5))
    masters.step(masters.grad_norm())
    assert masters.steps == 1 and all(torch.equal(before[n], p) for n, p in net.named_parameters())


def test_schedule() -> None:
    rule = AdamW(lr=2.0, warmup_steps=4, decay_steps=12)
    assert [rule.lr_at(i) for i in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert rule.lr_at(4) == 2.0 and rule.lr_at(8) == pytest.approx(1.0) and rule.lr_at(12) == pytest.approx(0.0)
    assert rule.lr_at(10_000) == pytest.approx(0.0) and AdamW(lr=2.0).lr_at(10_000) == 2.0


def test_schedule_ends_at_its_floor() -> None:
    rule = AdamW(lr=2.0, warmup_steps=4, decay_steps=12, min_lr_ratio=0.1)
    assert rule.lr_at(0) == 0.5 and rule.lr_at(4) == 2.0
    assert rule.lr_at(8) == pytest.approx(1.1) and rule.lr_at(12) == rule.lr_at(10_000) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "settings",
    [{"lr": 0.0}, {"lr": -1.0}, {"lr": math.nan}, {"max_grad_norm": 0.0}, {"warmup_steps": -1}, {"decay_steps": -5},
     {"min_lr_ratio": -0.1}, {"min_lr_ratio": 1.5}, {"states": "int4"}],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()),
)  # fmt: skip
def test_invalid_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        AdamW(**settings)  # type: ignore[arg-type]


# float32 masters under a network in bfloat16


@pytest.mark.parametrize("kind", ["float32", "cpu", "int8"])
def test_master_weights_keep_small_updates(kind: str) -> None:
    net = tiny_decoder(dtype=torch.bfloat16)
    start = {n: p.detach().float().clone() for n, p in net.named_parameters()}
    masters = MasterWeights(net, AdamW(lr=1e-5, states=kind))  # type: ignore[arg-type]
    for _ in range(30):
        give(masters, {n: torch.ones(p.shape) for n, p in net.named_parameters()})
        masters.step(masters.grad_norm())
    for n, w in masters.weights.items():
        moved = start[n] - w.detach()
        torch.testing.assert_close(moved, torch.full_like(moved, 30e-5), rtol=0.01, atol=1e-6)  # Adam: lr each
        assert torch.equal(masters.params[n].detach(), w.detach().bfloat16()), "the network holds them, rounded"
    large = start["embed_tokens.weight"].abs() > 0.25
    rounded = (start["embed_tokens.weight"] - 1e-5).bfloat16().float()
    assert torch.equal(rounded[large], start["embed_tokens.weight"][large]), "bfloat16 alone would not have moved"


def test_microbatch_gradients_are_summed_in_float32() -> None:
    net = tiny_decoder(dtype=torch.bfloat16)
    masters = MasterWeights(net, AdamW())
    for value in [256.0] + [1.0] * 8:  # bfloat16: 256 + 1 = 256
        give(masters, {n: torch.full(p.shape, value) for n, p in net.named_parameters()})
        assert all(p.grad is None for p in net.parameters())
    assert all((g == 264).all() and g.dtype == torch.float32 for g in masters.gradients().values())
    assert masters.gradients().keys() == masters.params.keys()
    masters.zero_grad()
    assert masters.grad_norm() == 0 and not masters.gradients()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_or_zeros_can_be_summed_in_place(dtype: torch.dtype) -> None:
    """Two peers with half the gradients each, of which one has none for the norms, take the step of one with all."""
    settings = AdamW(lr=0.01)
    halves = [gradients(tiny_decoder(), t) for t in (1, 2)]
    if dtype == torch.bfloat16:
        halves = [{n: g.bfloat16().float() for n, g in half.items()} for half in halves]
    halves[1] = {n: torch.zeros_like(g) if "norm" in n else g for n, g in halves[1].items()}
    one, *peers = (MasterWeights(tiny_decoder(dtype=dtype), settings) for _ in range(3))
    for half in halves:  # as micro-batches
        for n, p in one.params.items():
            p.grad = half[n].to(dtype) if p.grad is None else p.grad + half[n].to(dtype)
        one.accumulate()
    give(peers[0], halves[0])
    for n, p in peers[1].params.items():
        p.grad = None if "norm" in n else halves[1][n].to(dtype)
    peers[1].accumulate()
    assert not any("norm" in n for n in peers[1].gradients())
    lists = [peer.gradients_or_zeros() for peer in peers]
    assert [g.shape for g in lists[0]] == [p.shape for p in one.params.values()]
    assert all(g.dtype == torch.float32 for g in lists[1])
    for a, b in zip(*lists, strict=True):
        total = a + b
        a.copy_(total), b.copy_(total)
    for masters in (one, *peers):
        masters.step(masters.grad_norm())
    for n, w in one.weights.items():
        assert torch.equal(peers[0].weights[n], peers[1].weights[n])
        torch.testing.assert_close(w, peers[0].weights[n], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["float32", "int8", "cpu"])
def test_state_restores_exactly(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam_states, "MIN_INT8_ELEMENTS", 1000)  # so that some of the tiny network's weights are not
    settings = AdamW(lr=0.01, warmup_steps=5, states=kind)  # type: ignore[arg-type]
    whole = taken(tiny_decoder(dtype=dtype), settings, 4)
    half = taken(tiny_decoder(dtype=dtype), settings, 2)
    kinds = {t.dtype for n, t in half.tensors().items() if n.startswith("exp_avg.")}
    assert kinds == ({torch.float32, torch.uint8} if kind == "int8" else {torch.float32})
    saved, facts = load(save(half.tensors())), half.counters()
    assert all(saved[f"weight.{n}"].dtype == torch.float32 for n in half.params)
    again = MasterWeights(tiny_decoder(seed=5, dtype=dtype), settings)
    again.restore(saved, facts)
    assert all(torch.equal(p, again.params[n]) for n, p in half.params.items()), "the network's own, too"
    for t in (3, 4):
        give(again, gradients(again.net, t))
        again.step(again.grad_norm())
    assert again.counters() == whole.counters() == {"steps": 4}
    assert again.tensors().keys() == whole.tensors().keys()
    assert all(torch.equal(t, again.tensors()[n]) for n, t in whole.tensors().items())
    assert all(torch.equal(p, again.params[n]) for n, p in whole.params.items())


def _lacking(tensors: dict[str, Tensor]) -> None:
    del tensors["exp_avg_sq.norm.weight"]


def _misshapen(tensors: dict[str, Tensor]) -> None:
    tensors["weight.norm.weight"] = torch.zeros(31)


def _of_another_type(tensors: dict[str, Tensor]) -> None:
    tensors["exp_avg.norm.weight"] = tensors["exp_avg.norm.weight"].to(torch.uint8)


def _of_more_layers(tensors: dict[str, Tensor]) -> None:
    tensors["weight.layers.9.norm.weight"] = torch.zeros(32)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [(_lacking, "exp_avg_sq.norm.weight"), (_misshapen, r"weight.norm.weight .*\(31,\)"),
     (_of_another_type, "exp_avg.norm.weight .*uint8"), (_of_more_layers, "layers.9")],
)  # fmt: skip
def test_restore_names_mismatch_and_changes_nothing(spoil: Callable[[dict[str, Tensor]], None], named: str) -> None:
    saved = {n: t.clone() for n, t in taken(tiny_decoder(), AdamW(), 2).tensors().items()}
    spoil(saved)
    masters = MasterWeights(tiny_decoder(seed=5), AdamW())
    before = {n: t.clone() for n, t in masters.tensors().items()}
    with pytest.raises(RunError, match=named):
        masters.restore(saved, {"steps": 2})
    assert masters.steps == 0 and all(torch.equal(t, before[n]) for n, t in masters.tensors().items())
    with pytest.raises(PonderError, match="steps"):
        masters.restore(masters.tensors(), {})


def test_frozen_parameters_stay_untouched() -> None:
    net = tiny_decoder()
    net.embed_tokens.requires_grad_(False)
    frozen = net.embed_tokens.weight.detach().clone()
    masters = taken(net, AdamW(lr=0.1, weight_decay=0.1), 2)
    assert not [n for n in masters.tensors() if "embed" in n] and len(masters.gradients_or_zeros()) == len(
        masters.params
    )
    assert torch.equal(net.embed_tokens.weight, frozen) and net.embed_tokens.weight.grad is None


# moments in host memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_states_of_cpu_network_are_exact(dtype: torch.dtype) -> None:
    rule = AdamW(lr=0.01, weight_decay=0.1, warmup_steps=2, decay_steps=4)
    plain, host = (
        taken(tiny_decoder(dtype=dtype), with_states(rule, kind), 5).tensors() for kind in ("float32", "cpu")
    )
    assert plain.keys() == host.keys() and all(torch.equal(t, host[n]) for n, t in plain.items())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_states_of_gpu_network(dtype: torch.dtype) -> None:
    rule = AdamW(lr=0.01, weight_decay=0.1, warmup_steps=2, decay_steps=4)
    near, far = (taken(tiny_decoder(dtype=dtype).cuda(), with_states(rule, kind), 5) for kind in ("float32", "cpu"))
    assert {t.device.type for t in far.tensors().values()} == {"cpu"}
    assert all(w.is_pinned() for w in far.weights.values())
    for n, w in near.weights.items():
        torch.testing.assert_close(w.cpu(), far.weights[n], rtol=1e-5, atol=1e-6)
        assert torch.equal(far.params[n].cpu(), far.weights[n].to(dtype)), "the network holds them"
    again = MasterWeights(tiny_decoder(seed=5, dtype=dtype).cuda(), with_states(rule, "cpu"))
    again.restore(load(save(far.tensors())), far.counters())
    assert all(torch.equal(p, again.params[n]) for n, p in far.params.items())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_gpu_step_does_not_synchronize(kind: str) -> None:
    net = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 8)).cuda().bfloat16()
    masters = taken(net, AdamW(states=kind), 1)  # type: ignore[arg-type]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    masters.accumulate()
    norm = masters.grad_norm()
    torch.cuda.set_sync_debug_mode("error")
    try:
        masters.step(norm)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_increments_version_counters(dtype: torch.dtype) -> None:
    net = tiny_decoder().to(dtype)
    before = [p._version for p in net.parameters()]
    taken(net, AdamW(), 1)
    assert all(p._version > b for p, b in zip(net.parameters(), before, strict=True))


def test_settings_that_are_no_numbers_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="lr is 'x'; it must be a number"):
        AdamW(lr="x")  # type: ignore[arg-type]
