"""Losses against the formulas, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ponder.errors import UsageError
from ponder.train import losses
from ponder.train.objective import GRPO, SFT


def numbers(seed: int = 0, count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    new, old, reference = -rng.exponential(2.0, (3, count))
    return new, old, reference, rng.normal(size=count)


def by_hand(new: np.ndarray, old: np.ndarray, advantage: np.ndarray, low: float, high: float) -> np.ndarray:
    out = []
    for n, o, a in zip(new, old, advantage, strict=True):
        rho = np.exp(n - o)
        kept = 1 - low if rho < 1 - low else 1 + high if rho > 1 + high else rho
        out.append(-min(rho * a, kept * a))
    return np.array(out)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0001, 3.0)])
def test_clipped_surrogate(low: float, high: float) -> None:
    new, old, _, advantage = numbers()
    found = losses.clipped(*(torch.tensor(x) for x in (new, old, advantage)), low, high)
    assert np.allclose(found.numpy(), by_hand(new, old, advantage, low, high), rtol=1e-12)


# ratio, advantage, is there a gradient: clipped only where the move has gone far enough already
CLIPS = [
    (1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True),
    (1.0, 1.0, True), (1.0, -1.0, True),
]  # fmt: skip


@pytest.mark.parametrize(("ratio", "advantage", "moves"), CLIPS)
def test_clip_stops_the_gradient_on_the_right_side(ratio: float, advantage: float, moves: bool) -> None:
    new = torch.tensor([np.log(ratio)], requires_grad=True)
    losses.clipped(new, torch.zeros(1), torch.tensor([advantage]), 0.2, 0.2).sum().backward()
    assert new.grad is not None
    expected = -ratio * advantage if moves else 0.0
    assert float(new.grad) == pytest.approx(expected, rel=1e-6)


def test_kl_estimates() -> None:
    new, _, reference, _ = numbers(1)
    a, b = torch.tensor(new), torch.tensor(reference)
    assert np.allclose(losses.k1(a, b), new - reference)
    assert np.allclose(losses.k2(a, b), 0.5 * (new - reference) ** 2)
    ratio = np.exp(reference) / np.exp(new)
    assert np.allclose(losses.k3(a, b), ratio - 1 - np.log(ratio))
    assert (losses.k3(a, b) >= 0).all()
    assert not losses.k3(a, a).any()


def test_kl_estimates_mean_the_kl() -> None:
    """Over all tokens of a small vocabulary, weighted by pi: k1 and k3 give KL(pi, ref) exactly."""
    rng = np.random.default_rng(3)
    pi, ref = (np.log(x / x.sum()) for x in rng.uniform(0.1, 1, (2, 12)))
    exact = float((np.exp(pi) * (pi - ref)).sum())
    for estimate in (losses.k1, losses.k3):
        assert float((np.exp(pi) * estimate(torch.tensor(pi), torch.tensor(ref)).numpy()).sum()) == pytest.approx(exact)


def test_k3_in_the_loss_pulls_towards_the_reference() -> None:
    new, reference = torch.tensor([-1.0, -3.0], requires_grad=True), torch.tensor([-2.0, -2.0])
    losses.k3(new, reference).sum().backward()
    assert new.grad is not None and new.grad[0] > 0 > new.grad[1], "too likely: down; too unlikely: up"
    assert new.grad.tolist() == pytest.approx([1 - np.exp(-1), 1 - np.exp(1)])


def test_normalisers() -> None:
    by_sequence = losses.sequence_mean([2, 5, 1])
    assert [len(w) for w in by_sequence] == [2, 5, 1]
    assert [float(w.sum()) for w in by_sequence] == pytest.approx([1 / 3] * 3)
    by_token = losses.token_mean([2, 5, 1])
    assert np.concatenate(by_token).tolist() == pytest.approx([1 / 8] * 8)


def test_grpo_is_clip_plus_beta_k3() -> None:
    new, old, reference, advantage = numbers(2)
    a, b, r, d = (torch.tensor(x) for x in (new, old, reference, advantage))
    expected = by_hand(new, old, advantage, 0.2, 0.2) + 0.04 * (np.exp(reference - new) - 1 - (reference - new))
    assert np.allclose(GRPO().loss(a, b, r, d), expected), "the paper's settings are the defaults"
    assert np.allclose(GRPO(beta=0.0).loss(a, b, None, d), by_hand(new, old, advantage, 0.2, 0.2))
    assert [float(w[0]) for w in GRPO().weigh([4, 1])] == [1 / 8, 1 / 2]


def test_sft_is_minus_log_p() -> None:
    new, old, _, _ = numbers(4)
    ones = torch.ones(len(new), dtype=torch.float64)
    assert np.allclose(SFT().loss(torch.tensor(new), torch.tensor(old), None, ones), -new)


@pytest.mark.parametrize("settings", [{"clip": 0.0}, {"clip": -0.2}, {"beta": -0.1}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="clip"):
        GRPO(**settings)
