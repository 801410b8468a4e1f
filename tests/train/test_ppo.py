"""PPO and its critic against the papers' formulas, written out in loops; and mistakes that these checks catch."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.critic import CriticObjective
from ponder.train.objective import KL, Critic, Tokens
from ponder.train.pack import pack, plan
from ponder.train.ppo import PPO, AdaptiveKLController
from toy_answers import Answer, Now, Terms, World, agree, estimate, measured, token_mean, world

W, FRESH = world(1), world(3, drift=(0.0,))
PLAIN = {"whiten_advantages": False, "kl": KL(0.02, "k1", "reward")}


def rewards(w: World, a: Answer, p: PPO, beta: float, earned: float) -> list[float]:
    """-beta KL at each token the policy wrote; what was earned comes with the last."""
    kl = p.kl if p.kl is not None and p.kl.where == "reward" else None
    out = [-beta * estimate(kl.estimator, w.old[t], w.reference[t]) if kl else 0.0 for t in a.rows]
    out[-1] += earned
    return out


def one(w: World, a: Answer, p: PPO, r: list[float]) -> list[float]:
    """GAE: sum_l (gamma lam)^l delta_{t+l}, each sum by itself; Monte Carlo: G_t - V_t; TD: r_t + gamma V' - V_t."""
    v = [w.values[t] for t in a.rows] + [0.0]
    count = len(a.rows)
    if p.advantage_estimator == "mc":
        return [sum(p.gamma ** (u - t) * r[u] for u in range(t, count)) - v[t] for t in range(count)]
    delta = [r[t] + p.gamma * v[t + 1] - v[t] for t in range(count)]
    if p.advantage_estimator == "td":
        return delta
    return [sum((p.gamma * p.lam) ** (u - t) * delta[u] for u in range(t, count)) for t in range(count)]


def advantages(w: World, p: PPO, beta: float, earned: dict[Answer, float]) -> dict[Answer, list[float]]:
    out = {a: one(w, a, p, rewards(w, a, p, beta, x)) for a, x in earned.items()}
    if p.whiten_advantages:
        every = [x for values in out.values() for x in values]
        mean = sum(every) / len(every)
        std = math.sqrt(sum((x - mean) ** 2 for x in every) / len(every))
        out = {a: [(x - mean) / std for x in values] for a, values in out.items()}
    if p.advantage_clip is not None:
        out = {a: [min(max(x, -p.advantage_clip), p.advantage_clip) for x in values] for a, values in out.items()}
    return out


def start(p: PPO) -> float:
    """The KL coefficient at first."""
    return 0.0 if p.kl is None else p.kl.beta


def raw(w: World) -> dict[Answer, float]:
    return {a: float(a.reward) for group in w.judged() for a in group}  # type: ignore[arg-type]


def loss(w: World, now: Now, p: PPO, beta: float | None = None, earned: dict[Answer, float] | None = None) -> Any:
    terms: Terms = {}
    result = advantages(w, p, start(p) if beta is None else beta, raw(w) if earned is None else earned)
    high = p.clip if p.clip_high is None else p.clip_high
    for a, values in result.items():
        terms[a] = []
        for t, x in zip(a.rows, values, strict=True):
            rho = torch.exp(now.lp[t] - w.old[t])
            term = -min(rho * x, min(max(rho, 1 - p.clip), 1 + high) * x) - p.entropy_coef * now.entropy[t]
            if p.kl is not None and p.kl.where == "loss":
                term = term + p.kl.beta * estimate(p.kl.estimator, now.lp[t], w.reference[t])
            terms[a].append(term)
    return token_mean(terms)


CASES = {
    "instructgpt": PPO(),
    "gae": PPO(gamma=0.9, lam=0.6, **PLAIN),
    "mc": PPO(advantage_estimator="mc", gamma=0.9, **PLAIN),
    "td": PPO(advantage_estimator="td", gamma=0.9, lam=0.5, **PLAIN),
    "mc, whitened": PPO(advantage_estimator="mc"),
    "clip higher, entropy": PPO(clip=0.1, clip_high=0.4, entropy_coef=0.05),
    "k2 in the reward": PPO(kl=KL(0.5, "k2", "reward")),
    "k3 in the reward": PPO(kl=KL(0.5, "k3", "reward"), whiten_advantages=False),
    "k3 in the loss": PPO(kl=KL(0.5, "k3")),
    "no kl": PPO(kl=None),
    "advantages clipped": PPO(advantage_clip=0.7),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    for w in (W, FRESH):
        agree(CASES[name], lambda w, n: loss(w, n, CASES[name]), w)


def test_rewards_are_clipped() -> None:
    held = {a: min(max(x, -0.4), 0.4) for a, x in raw(W).items()}
    assert held != raw(W)
    agree(PPO(reward_clip=0.4), lambda w, n: loss(w, n, PPO(), earned=held), W)


def test_returns_are_those_before_whitening() -> None:
    """The critic learns A + V with A as GAE gives it."""
    for p in (
        PPO(gamma=0.9),
        PPO(gamma=0.9, advantage_estimator="td"),
        PPO(gamma=0.9, advantage_estimator="mc", advantage_clip=0.1),
    ):
        expected = advantages(W, replace(p, whiten_advantages=False, advantage_clip=None), 0.02, raw(W))
        result = measured(p, W, {})
        steps = iter([s for t in result.traces for s in t.steps if "returns" in s.notes])
        for a, values in expected.items():
            mine = np.concatenate([next(steps).notes["returns"] for _ in a.parts])
            np.testing.assert_allclose(mine, [x + W.values[t] for x, t in zip(values, a.rows, strict=True)], rtol=1e-5)
        assert next(steps, None) is None, "an undecided answer has no return"


def test_credit_metrics() -> None:
    result = measured(PPO(whiten_advantages=False), W, {})
    left = [x for values in advantages(W, PPO(whiten_advantages=False), 0.02, raw(W)).values() for x in values]
    values = [W.values[t] for a in raw(W) for t in a.rows]
    returns = np.add(left, values)
    assert result.told["value/mean"] == pytest.approx(np.mean(values))
    assert result.told["value/explained_variance"] == pytest.approx(1 - np.var(left) / np.var(returns))
    assert result.told["kl_beta"] == 0.02
    assert PPO().credit([], "wanted", {}) == {}


# What goes on from step to step


def test_adaptive_kl_follows_ziegler() -> None:
    """e = clip(KL / target - 1, -0.2, 0.2); beta <- beta (1 + e n / horizon): over steps, through JSON."""
    memory: dict[str, float] = {}
    target, horizon, beta, errors = 0.25, 50.0, 0.05, []
    p = PPO(kl=KL(beta, "k1", "reward"), adaptive_kl=AdaptiveKLController(target, horizon))
    for seed in range(3, 8):
        w = world(seed, groups=[seed % 5, (seed + 1) % 5])
        agree(p, lambda w, n, beta=beta: loss(w, n, p, beta), w, memory)
        assert measured(p, w, memory).told["kl_beta"] == pytest.approx(beta)
        answers = list(raw(w))
        kl = sum(w.old[t] - w.reference[t] for a in answers for t in a.rows) / len(answers)
        errors.append(min(max((kl - target) / target, -0.2), 0.2))
        beta *= 1 + errors[-1] * len(answers) / horizon
        memory = json.loads(json.dumps(memory))
        assert memory["kl_beta"] == pytest.approx(beta)
    assert {0.2, -0.2} < {round(e, 12) for e in errors}, "both limits and the middle were met"


def test_rewards_are_normalised_by_running_statistics() -> None:
    memory: dict[str, float] = {}
    seen: list[float] = []
    p = PPO(normalize_rewards=True, reward_clip=1.2)
    for seed in range(4):
        w = world(seed, groups=[seed, (seed + 1) % 5])
        seen += raw(w).values()
        mean = sum(seen) / len(seen)
        std = math.sqrt(sum((x - mean) ** 2 for x in seen) / len(seen))
        earned = {a: min(max((x - mean) / std, -1.2), 1.2) for a, x in raw(w).items()}
        agree(p, lambda w, n, earned=earned: loss(w, n, p, earned=earned), w, memory)
        measured(p, w, memory)
        memory = json.loads(json.dumps(memory))


def test_equal_rewards_are_normalised_to_zero() -> None:
    w = world(0, groups=[2])
    result = measured(PPO(normalize_rewards=True, kl=None, whiten_advantages=False, advantage_estimator="mc"), w, {})
    returns = [s.notes["returns"] for t in result.traces for s in t.steps if s.sampled]
    assert not np.concatenate(returns).any()


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_normalised_rewards_do_not_depend_on_their_unit(unit: float) -> None:
    p, state = PPO(normalize_rewards=True), {}
    result = p._rewards([unit * r for r in (1.0, 0.0, 0.0, 1.0, 0.5)], state)
    expected = np.array([0.5, -0.5, -0.5, 0.5, 0.0]) / math.sqrt(0.2)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, 1e-9, 33000.7])
def test_rewards_that_were_equal_in_all_steps_are_normalised_to_zero(reward: float) -> None:
    """Their running mean and mean square are rounded at each step."""
    p, state, rng = PPO(normalize_rewards=True), {}, np.random.default_rng(0)
    for _ in range(300):
        assert not p._rewards([reward] * int(rng.integers(1, 60)), state).any()


# The critic


def critic_loss(w: World, p: PPO, values_N: torch.Tensor, objective: CriticObjective) -> torch.Tensor:
    """As the critic's learner does, from the traces that PPO credited."""
    traces, rows = w.traces()
    p.credit(traces, "wanted", {})
    (work,) = [plan(traces, objective.weigh, objective.trains_zero_advantage)]
    batch = pack(work, torch.device("cpu"), ["values", "returns"])
    n = [row for step in batch.steps for row in rows[id(step)]]
    none = torch.zeros(0)
    notes = {name: values.double() for name, values in batch.notes.items()}
    tokens = Tokens(batch.advantage_N, batch.sequence_N, batch.tree_N, none, none, none, values_N[n], notes)
    return (objective.loss(tokens)[0] * batch.weight_N.double()).sum()


def slow_critic_loss(w: World, p: PPO, values_N: torch.Tensor, clip: float | None) -> Any:
    """1/2 max((V - R)^2, (clip(V, old +- c) - R)^2), R = A + V_old; mean over tokens."""
    terms: Terms = {}
    for a, values in advantages(w, replace(p, whiten_advantages=False, advantage_clip=None), start(p), raw(w)).items():
        terms[a] = []
        for t, x in zip(a.rows, values, strict=True):
            old, v = w.values[t], values_N[t]
            square = (v - (x + old)) ** 2
            if clip is not None:
                square = max(square, (min(max(v, old - clip), old + clip) - (x + old)) ** 2)
            terms[a].append(square / 2)
    return token_mean(terms)


def check_critic(objective: CriticObjective, clip: float | None) -> None:
    start = torch.tensor(W.values, dtype=torch.float64)
    moved = start + torch.from_numpy(np.random.default_rng(0).normal(size=len(start)) * 0.4)
    grads = []
    for of in (
        lambda v: critic_loss(W, PPO(gamma=0.9), v, objective),
        lambda v: slow_critic_loss(W, PPO(gamma=0.9), v, clip),
    ):
        values_N = moved.clone().requires_grad_()
        of(values_N).backward()
        assert values_N.grad is not None
        grads.append(values_N.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-8)
    result, expected = (
        critic_loss(W, PPO(gamma=0.9), moved, objective),
        slow_critic_loss(W, PPO(gamma=0.9), moved, clip),
    )
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


class Smaller(CriticObjective):
    """The smaller of the two squares: clipping then rewards moving away."""

    def loss(self, tokens: Any) -> Any:
        old, returns = tokens.notes["values"], tokens.notes["returns"]
        held = old + (tokens.values_N - old).clamp(-self.value_clip, self.value_clip)
        return torch.minimum((tokens.values_N - returns) ** 2, (held - returns) ** 2) / 2, {}


class BySequence(CriticObjective):
    def weigh(self, lengths: Any) -> Any:
        return losses.sequence_mean(lengths)


def test_critic_loss() -> None:
    check_critic(CriticObjective(None), None)
    check_critic(CriticObjective(0.2), 0.2)
    assert Critic().value_clip == 0.2 and CriticObjective(0.2).trains_zero_advantage
    for broken in (Smaller(0.2), BySequence(0.2), CriticObjective(None), CriticObjective(0.3)):
        with pytest.raises(AssertionError, match="not close"):
            check_critic(broken, 0.2)


# Mistakes


class PerSequence(PPO):
    """Whitens each completion by itself."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        output = replace(PPO(), whiten_advantages=False).credit(traces, scorer, memory)
        for step in (s for t in traces for s in t.steps if s.advantages is not None and len(s.advantages) > 1):
            step.advantages = (step.advantages - step.advantages.mean()) / step.advantages.std()
        return output


class ThroughTools(PPO):
    """Lets GAE run through a tool's tokens, as if the policy had written them with value 0."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        steps = [s for t in traces for s in t.steps if s.parent is not None and not s.sampled]
        for step in steps:
            nothing = np.zeros(len(step.token_ids), np.float32)
            step.logprobs, step.notes = nothing, {"reference": nothing, "values": nothing}
        told = super().credit(traces, scorer, memory)
        for step in steps:
            step.logprobs = step.advantages = None
        return told


class MeanOfSequences(PPO):
    def weigh(self, lengths: Any) -> Any:
        return losses.sequence_mean(lengths)


class PaysTwice(PPO):
    """The reward comes with every token."""

    def credit(self, traces: Any, scorer: str, memory: Any) -> Any:
        items = [w for t in traces for w in credit.scored_answers(t, scorer)]
        out = []
        for w in items:
            r = w.reward - self.kl.beta * (w.note("logprobs") - w.note("reference"))
            out.append(credit.gae(r, w.note("values"), self.gamma, self.lam))
        credit.assign_to_tokens(items, credit.whiten(out))
        return {}


MISTAKES = [
    (PerSequence(), "instructgpt"), (ThroughTools(), "instructgpt"), (ThroughTools(gamma=0.9, lam=0.6, **PLAIN), "gae"),
    (MeanOfSequences(), "instructgpt"), (PaysTwice(), "instructgpt"), (PPO(whiten_advantages=False), "instructgpt"),
    (PPO(lam=1.0), "instructgpt"), (PPO(gamma=0.99), "instructgpt"), (PPO(kl=KL(0.02, "k2", "reward")), "instructgpt"),
    (PPO(advantage_estimator="td", gamma=0.9, **PLAIN), "mc"),
    (PPO(entropy_coef=-0.05, clip=0.1, clip_high=0.4), "clip higher, entropy"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "name"), MISTAKES, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_reference_detects_wrong_objectives(broken: Any, name: str) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        agree(broken, lambda w, n: loss(w, n, CASES[name]), W)


def test_invalid_settings_are_refused() -> None:
    for settings, words in (
        ({"gamma": 0.0}, "gamma"), ({"gamma": 1.1}, "gamma"), ({"lam": -0.1}, "lam"), ({"lam": 1.5}, "lam"),
        ({"clip": 0.0}, "clip"), ({"adaptive_kl": AdaptiveKLController(), "kl": None}, "adaptive"),
        ({"adaptive_kl": AdaptiveKLController(), "kl": KL(0.1, "k3", "loss")}, "adaptive"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            PPO(**settings)  # type: ignore[arg-type]
    trace = world(groups=[0]).traces()[0][0]
    trace.steps[1].notes.pop("values")
    with pytest.raises(UsageError, match="each token's values"):
        PPO().credit([trace], "wanted", {})
