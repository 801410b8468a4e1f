"""The noise of policy gradients: the pool's sums are the learner's gradients, and drawn noise is the exact one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fakes import char_policy, tiny_decoder, trace_group
from ponder.book import gradient_noise
from ponder.book.figure import FigureRun
from ponder.book.gradient_noise import (
    GradientPool,
    advantages,
    answer_gradient,
    answer_lengths,
    center_pool,
    inner_products,
    measure_noise,
)
from ponder.cli import recipe_files
from ponder.errors import UsageError
from ponder.nets import hf
from ponder.train.learner import Learner
from ponder.train.policy_gradient import REINFORCE, RLOO
from ponder.types import Problem, Score, Trace, user_messages


@pytest.mark.parametrize(("estimator", "rule"), [
    ("none", REINFORCE(baseline="none")), ("batch", REINFORCE()), ("loo", RLOO(kl=None)),
])  # fmt: skip
def test_weighted_sum_is_the_learners_gradient(estimator: str, rule: REINFORCE | RLOO) -> None:
    groups = [
        ([5, 6], [[7, 8, 2], [9, 2], [7, 7, 7, 2]], [1.0, 0.0, 1.0]),
        ([11], [[3, 2], [4, 4, 2], [8, 2]], [0.0, 0.0, 1.0]),
    ]

    def traces() -> list[Trace]:
        return [trace_group(*group) for group in groups]

    learner = Learner(tiny_decoder(), REINFORCE(baseline="none"))
    rewards = [np.array(r) for _, _, r in groups]
    expected: torch.Tensor | float = 0.0
    for trace, weights in zip(traces(), advantages(estimator, rewards), strict=True):
        for leaf, weight in zip(trace.answers(), weights, strict=True):
            expected = expected + answer_gradient(learner, trace, leaf) * float(weight) / 6
    whole, own = traces(), Learner(tiny_decoder(), rule)
    rule.credit(whole, "wanted", {})
    result = own.gradient(whole)
    flat = -torch.cat([result[name].flatten() for name in sorted(result)])
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(flat, expected, atol=1e-5 * float(expected.abs().max()))


def pool() -> GradientPool:
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(6, 4))
    raw = GradientPool(np.array([1.0, 0, 1, 0, 0, 1]), np.array([0, 0, 0, 1, 1, 1]), gradient @ gradient.T)
    centered = gradient - np.repeat([gradient[:3].mean(0), gradient[3:].mean(0)], 3, axis=0)
    assert np.allclose(center_pool(raw).product_MM, centered @ centered.T)
    return center_pool(raw)


@pytest.mark.parametrize("estimator", ["none", "batch", "loo", "mean", "grpo"])
def test_drawn_noise_is_that_of_all_groups(estimator: str) -> None:
    """All 81 pairs of groups of two, each equally likely."""
    own = pool()
    weights = []
    for first in itertools.product(range(3), repeat=2):
        for second in itertools.product(range(3, 6), repeat=2):
            drawn = [np.array(first), np.array(second)]
            weight = np.zeros(6)
            for i, a in zip(drawn, advantages(estimator, [own.reward_M[i] for i in drawn]), strict=True):
                np.add.at(weight, i, a / 4)
            weights.append(weight)
    K, true = own.product_MM, own.reward_M / 6
    mean = np.mean(weights, axis=0)
    noise = np.mean([(w - mean) @ K @ (w - mean) for w in weights])
    length = mean @ K @ true / (true @ K @ true)
    result = measure_noise(own, estimator, 2, 6000, seed=1)
    assert result.length == pytest.approx(length, abs=0.05)
    assert result.noise == pytest.approx(np.sqrt(4 * noise / (true @ K @ true)) / abs(length), rel=0.05)
    if estimator in ("none", "loo"):
        assert length == pytest.approx(1.0), "unbiased"
    if estimator == "mean":
        assert length == pytest.approx(0.5), "shrunk by 1 - 1/G"


def test_equal_rewards_leave_no_gradient_with_a_group_baseline() -> None:
    own = replace(pool(), reward_M=np.ones(6))
    assert all(not a.any() for a in advantages("loo", [own.reward_M[:3], own.reward_M[3:]]))


def test_least_noisy_baseline_is_the_minimum() -> None:
    """Of the second moment of (r - b) g, which alone depends on the baseline."""
    own = pool()
    best = answer_lengths(own)["least noisy baseline"]
    square = np.diag(own.product_MM)
    tried = np.linspace(-1, 2, 3001)
    moments = [float((((own.reward_M - b) ** 2) * square).mean()) for b in tried]
    assert tried[int(np.argmin(moments))] == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("kept", [1, 3, 7, 20])
def test_inner_products_by_blocks_are_those_of_all_at_once(kept: int) -> None:
    grads = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    asked: list[int] = []

    def gradient(at: int) -> torch.Tensor:
        asked.append(at)
        return grads[at]

    assert np.allclose(inner_products(gradient, 7, kept), (grads @ grads.T).numpy(), atol=1e-5)
    assert len(asked) == sum(7 - begin for begin in range(0, 7, kept)), "each once, where all are held"


FEW = {"problems": 2, "n": 12, "max_tokens": 3, "template": "{{ messages[-1].content }}"}


def build_few(name: str, **settings: Any) -> Any:
    recipe = recipe_files.load_recipe(recipe_files.find_recipe(name))
    return recipe_files.build_job(recipe, settings | FEW)


def test_figure_of_a_model_and_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A character model that is asked for a digit: it starts as it is, and is right now and then."""
    policy = char_policy()
    hf.save(policy.net, tmp_path / "mine")
    policy.tokenizer.save(tmp_path / "mine")
    monkeypatch.setattr(gradient_noise, "GROUP_SIZES", (2, 4))
    monkeypatch.setattr(gradient_noise, "DRAWS", 20)
    run = FigureRun(str(tmp_path / "mine"), 0, tmp_path / "run", build_few, f"{__file__}:EvenTask", device="cpu")
    data = gradient_noise.FIGURE.run(run)
    assert data["problems"] == 2 and data["answers"] == 24 and 0 < data["accuracy"] < 1
    assert len(data["loo"]["noise"]) == 2 and data["none"]["length"][1] > 0
    with pytest.raises(UsageError, match="has the reward 0: nothing is learned"):
        gradient_noise.FIGURE.run(replace(run, task=f"{__file__}:NeverTask", folder=tmp_path / "never"))


def test_rewards_that_differ_by_rounding_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SimpleNamespace(reward_M=np.array([0.1 + 0.2, 0.3]))
    monkeypatch.setattr(gradient_noise, "gradient_pool", lambda *_: pool)
    run = cast(FigureRun, SimpleNamespace(run_recipe=lambda name: tmp_path, model="mine", device="cpu", seed=0))
    with pytest.raises(UsageError, match=r"has the reward 0\.3: nothing is learned"):
        gradient_noise.FIGURE.run(run)


@dataclass(frozen=True)
class EvenVerifier:
    """Right is an answer whose first character is an even digit or no digit."""

    never: bool = False
    name: str = "even"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(trace.steps[i].text[:1] in "02468abcdef" and not self.never)) for i in steps]

    def extract_answer(self, text: str) -> str | None:
        return text or None


@dataclass(frozen=True)
class EvenTask:
    name: str = "even"
    never: bool = False

    @property
    def train(self) -> list[Problem]:
        return [Problem(str(i), user_messages(f"{i}=")) for i in range(4)]

    @property
    def test(self) -> list[Problem]:
        return [Problem("t", user_messages("7="))]

    @property
    def verifier(self) -> EvenVerifier:
        return EvenVerifier(self.never)


@dataclass(frozen=True)
class NeverTask(EvenTask):
    never: bool = True
