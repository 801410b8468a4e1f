"""The KL term in the reward: a policy that is its reference pays nothing, and rounding becomes no advantage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes import trace_group
from ponder.train.credit import scored_answers
from ponder.train.kl_penalty import LOGPROB_ROUNDING, kl_per_token
from ponder.train.objective import KL, Objective
from ponder.train.policy_gradient import DAPO, GRPO, GSPO, REINFORCE, RLOO, ReinforcePlusPlus
from ponder.train.ppo import PPO, PPOMax
from ponder.types import Trace

Drift = Callable[[np.random.Generator, np.ndarray], np.ndarray]
K1, K3 = KL(0.02, "k1", "reward"), KL(0.05, "k3", "reward")
RULES: dict[str, Objective] = {
    "reinforce": REINFORCE(kl=K1), "rloo": RLOO(), "reinforce++": ReinforcePlusPlus(),
    "reinforce++, baseline": ReinforcePlusPlus(group_baseline=True), "reinforce++, k3": ReinforcePlusPlus(kl=K3),
    "grpo, k1": GRPO(kl=K1), "grpo, k3": GRPO(kl=K3), "grpo, batch std": GRPO(kl=K3, scale_rewards="batch"),
    "gspo": GSPO(kl=K3), "dapo": DAPO(kl=K1), "ppo": PPO(), "ppo, mc": PPO(advantage_estimator="mc"),
    "ppo-max": PPOMax(),
}  # fmt: skip
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def rounded(rng: np.random.Generator, logprobs: np.ndarray) -> np.ndarray:
    """As float32 kernels that add up in another order: some units in the last place of the logits, which are larger."""
    return rng.normal(size=len(logprobs)) * 1e-5


def moved(rng: np.random.Generator, logprobs: np.ndarray) -> np.ndarray:
    return rng.normal(size=len(logprobs)) * 2e-3


def groups(rewards: Sequence[Sequence[float]], drift: Drift) -> list[Trace]:
    """One group for each list of rewards, with log-probabilities that have drifted from the reference's."""
    rng = np.random.default_rng(0)
    traces = [trace_group([5, 6], [range(3 + i) for i in range(len(own))], own) for own in rewards]
    for step in (s for trace in traces for s in trace.steps[1:]):
        step.notes["reference"] = -rng.exponential(3, len(step.token_ids)).astype(np.float32)
        step.logprobs = (step.notes["reference"] + drift(rng, step.notes["reference"])).astype(np.float32)
        step.notes["values"] = np.zeros(len(step.token_ids), np.float32)
    return traces


def advantages(rule: Objective, traces: Sequence[Trace]) -> np.ndarray:
    rule.credit(traces, "wanted", {})
    return np.concatenate([s.advantages for t in traces for s in t.steps[1:] if s.advantages is not None])


@rules
def test_rounding_gives_no_advantage_where_rewards_are_zero(rule: Objective) -> None:
    traces = groups([[0.0] * 4, [0.0] * 4], rounded)
    assert not advantages(rule, traces).any()


@pytest.mark.parametrize("rule", [r for n, r in RULES.items() if not n.startswith("ppo")])
def test_rounding_gives_no_advantage_where_rewards_are_equal(rule: Objective) -> None:
    traces = groups([[0.3, 0.1 + 0.2, 0.3, 0.3]] * 2, rounded)
    assert not advantages(rule, traces).any()


@rules
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_rounding_changes_no_advantage_where_rewards_differ(rule: Objective, unit: float) -> None:
    """Rewards of any size: they are compared with each other, not with 1."""
    rewards = [[unit, 0.0, 0.0, unit], [0.0, unit, unit, unit]]
    given = advantages(rule, groups(rewards, rounded))
    assert given.any()
    np.testing.assert_array_equal(given, advantages(replace(rule, kl=None), groups(rewards, rounded)))  # type: ignore[type-var]


@rules
def test_policy_that_has_moved_pays(rule: Objective) -> None:
    traces = groups([[0.0] * 4, [0.0] * 4], moved)
    assert advantages(rule, traces).any()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_one_token_that_has_moved_makes_all_of_its_batch_count(estimator: str) -> None:
    first, last = groups([[0.0, 0.0], [0.0, 0.0]], rounded)
    step = last.steps[1]
    assert step.logprobs is not None
    step.logprobs[1] = step.notes["reference"][1] + 0.01
    items = [item for trace in (last, first) for item in scored_answers(trace, "wanted")]
    one, *others = kl_per_token(items, KL(0.1, estimator, "reward"))  # type: ignore[arg-type]
    difference = step.notes["reference"].astype(float) - step.logprobs.astype(float)
    expected = {"k1": -difference, "k2": difference**2 / 2, "k3": np.exp(difference) - 1 - difference}[estimator]
    np.testing.assert_allclose(one, expected, rtol=1e-6, atol=1e-15)
    assert one.all() and all(other.any() for other in others)
    assert not any(other.any() for other in kl_per_token(items[1:], KL(0.1, estimator, "reward")))  # type: ignore[arg-type]


def test_bound_is_relative_to_large_log_probabilities() -> None:
    """A float32 of -100 has fewer digits behind the point."""
    for size, factor in ((0.01, 1.0), (1.0, 1.0), (100.0, 100.0)):
        for share in (0.9, 1.1):
            (trace,) = groups([[0.0]], lambda rng, logprobs: logprobs)
            trace.steps[1].notes["reference"][:] = -size
            trace.steps[1].logprobs = np.full(3, -size - share * factor * LOGPROB_ROUNDING, np.float32)
            (kl,) = kl_per_token(scored_answers(trace, "wanted"), K1)
            assert kl.any() == (share > 1)
