"""The pieces of the losses, against NumPy and against differences of NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ponder.errors import UsageError
from ponder.train import losses
from ponder.train.algorithms import ONLINE
from ponder.train.objective import KL, Tokens

Array = np.ndarray


def numbers(seed: int = 0, count: int = 200) -> tuple[Array, Array, Array, Array]:
    """Log-probabilities now, as sampled and of the reference, and advantages."""
    rng = np.random.default_rng(seed)
    new, old, reference = -rng.exponential(2.0, (3, count))
    return new, old, reference, rng.normal(size=count)


def same(result: Callable[[torch.Tensor], torch.Tensor], slow: Callable[[float, int], float], x: Array) -> None:
    """Values, and slopes by central differences, element by element."""
    leaf = torch.tensor(x, requires_grad=True)
    out = result(leaf)
    np.testing.assert_allclose(out.detach(), [slow(v, i) for i, v in enumerate(x)], rtol=1e-12, atol=1e-12)
    out.sum().backward()
    h = 1e-6
    slopes = [(slow(v + h, i) - slow(v - h, i)) / (2 * h) for i, v in enumerate(x)]
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad, slopes, rtol=1e-5, atol=1e-7)


def clip(x: float, low: float, high: float) -> float:
    return low if x < low else high if x > high else x


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0001, 3.0)])
def test_clipped_surrogate(low: float, high: float) -> None:
    new, old, _, adv = numbers()

    def slow(x: float, i: int) -> float:
        rho = math.exp(x - old[i])
        return -min(rho * adv[i], clip(rho, 1 - low, 1 + high) * adv[i])

    o, a = torch.tensor(old), torch.tensor(adv)
    same(lambda x: losses.clipped_surrogate(losses.ratio(x, o), a, low, high), slow, new)
    rho = losses.ratio(torch.tensor(new), o)
    moves = [abs(slow(x + 1e-6, i) - slow(x - 1e-6, i)) > 0 for i, x in enumerate(new)]
    assert losses.is_clipped(rho, a, low, high).tolist() == [not m for m in moves], "`cut` is where nothing moves"
    assert not losses.is_clipped(rho, 0 * a, low, high).any(), "and not where nothing was to be gained"


# ratio, advantage, is there a gradient: clipped only where the move has gone far enough already
CLIPS = [
    (1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True),
    (1.0, 1.0, True), (1.0, -1.0, True),
]  # fmt: skip


@pytest.mark.parametrize(("ratio", "advantage", "moves"), CLIPS)
def test_clip_stops_the_gradient_on_the_right_side(ratio: float, advantage: float, moves: bool) -> None:
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    losses.clipped_surrogate(losses.ratio(new, torch.zeros(1)), torch.tensor([advantage]), 0.2, 0.2).sum().backward()
    assert new.grad is not None
    assert float(new.grad) == pytest.approx(-ratio * advantage if moves else 0.0, rel=1e-6)


def test_large_ratios_stay_finite() -> None:
    new = torch.tensor([-1.0, -900.0, 0.0], requires_grad=True)
    rho = losses.ratio(new, torch.tensor([-900.0, -1.0, 0.0]))
    losses.clipped_surrogate(rho, torch.tensor([1.0, -1.0, 0.0]), 0.2, 0.2).sum().backward()
    assert torch.isfinite(rho).all() and new.grad is not None and torch.isfinite(new.grad).all()
    assert rho[0] > 1e8 and rho[1] < 1e-8


def test_reinforce_and_cispo() -> None:
    new, old, _, adv = numbers(5)
    o, a = torch.tensor(old), torch.tensor(adv)
    same(lambda x: losses.reinforce(x, a), lambda x, i: -adv[i] * x, new)
    weight = [clip(math.exp(new[i] - old[i]), 0.7, 1.28) for i in range(len(new))]
    same(
        lambda x: losses.cispo(x, losses.ratio(x, o), a, 0.3, 0.28), lambda x, i: -weight[i] * adv[i] * x, new
    )  # the weight is a constant: it was computed once, outside
    assert min(weight) == 0.7 and max(weight) == 1.28


def test_sequence_ratio() -> None:
    new, old, _, _ = numbers(6, 9)
    sequence = [0, 0, 0, 1, 2, 2, 2, 2, 2]
    leaf = torch.tensor(new, requires_grad=True)
    rho = losses.sequence_ratio(leaf, torch.tensor(old), torch.tensor(sequence))
    expected = []
    for s in sequence:
        members = [i for i in range(9) if sequence[i] == s]
        expected.append(math.exp(sum(new[i] - old[i] for i in members) / len(members)))
    np.testing.assert_allclose(rho.detach(), expected, rtol=1e-12)
    rho[3:].sum().backward()
    slopes = [0, 0, 0, expected[3], *[expected[-1]] * 5]  # five tokens share it, and each moves it by a fifth
    np.testing.assert_allclose(leaf.grad, slopes, rtol=1e-12)


def test_sum_per_sequence() -> None:
    assert losses.sum_per_sequence(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1])).tolist() == [3.0, 4.0]
    assert losses.sum_per_sequence(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []


# KL


def test_kl_estimates() -> None:
    new, _, reference, _ = numbers(1)
    ref = torch.tensor(reference)
    same(lambda x: losses.k1(x, ref), lambda x, i: x - reference[i], new)
    same(lambda x: losses.k2(x, ref), lambda x, i: 0.5 * (x - reference[i]) ** 2, new)

    def k3(x: float, i: int) -> float:
        ratio = math.exp(reference[i]) / math.exp(x)
        return ratio - 1 - math.log(ratio)

    same(lambda x: losses.k3(x, ref), k3, new)
    assert (losses.k3(torch.tensor(new), ref) >= 0).all() and not losses.k3(ref, ref).any()


def test_kl_estimates_mean_the_kl() -> None:
    """Over all tokens of a small vocabulary, weighted by pi: k1 and k3 give KL(pi, ref) exactly."""
    rng = np.random.default_rng(3)
    pi, ref = (np.log(x / x.sum()) for x in rng.uniform(0.1, 1, (2, 12)))
    exact = float((np.exp(pi) * (pi - ref)).sum())
    for k in (losses.k1, losses.k3):
        assert float((np.exp(pi) * k(torch.tensor(pi), torch.tensor(ref)).numpy()).sum()) == pytest.approx(exact)


@pytest.mark.parametrize(("kind", "of"), [("k1", "nothing"), ("k2", "reverse"), ("k3", "forward")])
def test_kl_gradients_in_the_loss(kind: str, of: str) -> None:
    """In expectation: k1 has none, k2 that of KL(pi | ref), k3 that of KL(ref | pi). So k1 is refused there."""
    rng = np.random.default_rng(4)
    logits = torch.tensor(rng.normal(size=8), requires_grad=True)
    ref = torch.tensor(rng.normal(size=8)).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (result,) = torch.autograd.grad((logp.detach().exp() * losses.KL_ESTIMATORS[kind](logp, ref)).sum(), logits)
    logp = logits.log_softmax(-1)
    true = {"nothing": (logits * 0).sum(), "reverse": (logp.exp() * (logp - ref)).sum(),
            "forward": (ref.exp() * (ref - logp)).sum()}[of]  # fmt: skip
    (expected,) = torch.autograd.grad(true, logits)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gap", [1.0, 5.0, 19.0, 21.0, 40.0, 300.0])
def test_k3_pulls_towards_the_reference_from_any_distance(gap: float) -> None:
    new = torch.tensor([-1.0 - gap, -1.0 + min(gap, 0.9)], requires_grad=True)
    k = losses.k3(new, torch.tensor([-1.0, -1.0]))
    k.sum().backward()
    assert new.grad is not None and torch.isfinite(k).all() and torch.isfinite(new.grad).all()
    assert new.grad[0] < 0 < new.grad[1], "too unlikely: up; too likely: down"
    if gap < 20:
        assert float(new.grad[0]) == pytest.approx(1 - math.exp(gap), rel=1e-5)


def test_invalid_kl_terms_are_refused() -> None:
    with pytest.raises(UsageError, match="k1 in the loss has no gradient"):
        KL(0.1, "k1", "loss")
    KL(0.1, "k1", "reward")
    for settings in ((-0.1,), (0.0,), (float("nan"),), (0.1, "k4"), (0.1, "k3", "both")):
        with pytest.raises(UsageError, match="KL"):
            KL(*settings)  # type: ignore[arg-type]


def test_beta_alone_moves_the_policy_towards_the_reference() -> None:
    """Every objective with a KL in the loss and nothing else to learn."""
    none = torch.zeros(0)
    for name, kind in ONLINE.items():
        if name in ("ppo", "ppo-max", "rejection", "rloo", "reinforce", "reinforce++"):
            continue
        logp = torch.tensor([-1.0, -3.0], requires_grad=True)
        tokens = Tokens(
            torch.zeros(2), torch.tensor([0, 0]), torch.tensor([0, 0]), logp, none, logp.detach(), none,
            {"reference": torch.tensor([-2.0, -2.0])},
        )  # fmt: skip
        kind(kl=KL(0.1)).loss(tokens)[0].sum().backward()
        assert logp.grad is not None
        np.testing.assert_allclose(logp.grad, [0.1 * (1 - math.exp(-1)), 0.1 * (1 - math.exp(1))], rtol=1e-5)


# Values and preferences


@pytest.mark.parametrize("held", [None, 0.2, 1.0])
def test_value_loss(held: float | None) -> None:
    old, new, returns, _ = numbers(7)

    def slow(x: float, i: int) -> float:
        square = (x - returns[i]) ** 2
        if held is None:
            return square / 2
        return max(square, (clip(x, old[i] - held, old[i] + held) - returns[i]) ** 2) / 2

    same(lambda x: losses.value_loss(x, torch.tensor(old), torch.tensor(returns), held), slow, new)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_preference_losses(smoothing: float) -> None:
    margin = np.linspace(-30, 30, 41)
    s = smoothing

    def slow(x: float, i: int) -> float:
        return (1 - s) * math.log(1 + math.exp(-0.7 * x)) + s * math.log(1 + math.exp(0.7 * x))

    same(lambda x: losses.dpo_loss(x, 0.7, s), slow, margin)
    same(lambda x: losses.ipo_loss(x, 0.7), lambda x, i: (x - 1 / 1.4) ** 2, margin)
    far = losses.dpo_loss(torch.tensor([-1e4, 1e4]), 1.0)
    assert far.tolist() == [1e4, 0.0]


# Normalisers


def test_normalisers() -> None:
    lengths = [2, 5, 1]
    each = {
        losses.sequence_mean: [1 / (2 * 3), 1 / (5 * 3), 1 / 3], losses.token_mean: [1 / 8] * 3,
        losses.sequence_sum: [1 / 3] * 3, (lambda n: losses.sequence_sum(n, 10.0)): [1 / 30] * 3,
    }  # fmt: skip
    for weigh, expected in each.items():
        result = weigh(lengths)
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, expected, rtol=1e-15)


@pytest.mark.parametrize("kind", [k for k in ONLINE.values() if hasattr(k, "clip")], ids=lambda k: k.__name__)
def test_invalid_clip_ranges_are_refused(kind: Any) -> None:
    for settings in ({"clip": 0.0}, {"clip": -0.2}, {"clip_high": 0.0}, {"clip": float("nan")}):
        with pytest.raises(UsageError, match="positive clip ranges"):
            kind(**settings)
    assert kind(clip=0.1, clip_high=None).upper_clip == 0.1
