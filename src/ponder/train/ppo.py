"""PPO with a critic (Schulman et al. 2017; for language models Ziegler et al. 2019, Ouyang et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ponder.errors import UsageError
from ponder.train import credit
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.kl_penalty import kl_per_token
from ponder.train.objective import KL, Critic, ObjectiveState
from ponder.train.policy_gradient import ClippedSurrogate
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class AdaptiveKLController:
    """The controller of Ziegler et al. 2019 (arXiv:1909.08593): moves the KL coefficient to hold a target."""

    target: float = 6.0  # nats per completion
    horizon: float = 10_000  # completions

    def __post_init__(self) -> None:
        if not (0 < self.target < math.inf and 0 < self.horizon < math.inf):
            values = f"{self.target} and {self.horizon}"
            raise UsageError(f"the KL's target and horizon must be positive and finite, not {values}")

    def next_beta(self, beta: float, kl: float, completions: int) -> float:
        error = float(np.clip(kl / self.target - 1, -0.2, 0.2))
        return beta * (1 + error * completions / self.horizon)


@dataclass(frozen=True)
class PPO(ClippedSurrogate):
    """Per-token advantages from a critic, token mean, KL k1 in each token's reward (as InstructGPT: beta 0.02)."""

    paper: ClassVar[str] = "Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155"
    needs_group = False
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL | None = KL(0.02, "k1", "reward")
    entropy_coef: float = 0.0
    advantage_estimator: Literal["gae", "mc", "td"] = "gae"
    gamma: float = 1.0
    lam: float = 0.95
    critic: Critic = Critic()
    whiten_advantages: bool = True  # over the global batch
    advantage_clip: float | None = None  # clip advantages to +- this
    normalize_rewards: bool = False  # by the running mean and std of all rewards so far
    reward_clip: float | None = None  # clip rewards to +- this
    adaptive_kl: AdaptiveKLController | None = None
    pretraining_coef: float = 0.0  # PPO-ptx: of -log p of the job's `pretraining_data`; 27.8 for InstructGPT

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("advantage_clip", self.advantage_clip), ("reward_clip", self.reward_clip)):
            if most is not None and not 0 < most < math.inf:
                raise UsageError(f"{name} is {most}; it must be positive and finite, or None: no clipping")
        if not (0 < self.gamma <= 1 and 0 <= self.lam <= 1):
            raise UsageError(f"PPO needs gamma in (0, 1] and lam in [0, 1], not {self.gamma} and {self.lam}")
        if not 0 <= self.pretraining_coef < math.inf:
            raise UsageError(f"pretraining_coef is {self.pretraining_coef}; it must be 0 or more, and finite")
        if self.adaptive_kl and not self.credit_needs_reference:
            raise UsageError("an adaptive KL coefficient needs a KL term in the reward to start from")

    def unused(self) -> dict[str, str]:
        return (
            {}
            if self.advantage_estimator == "gae"
            else {"lam": f"the advantage is {self.advantage_estimator}: give advantage_estimator=gae"}
        )

    @property
    def gae_lambda(self) -> float:
        """GAE's lambda: 1 for Monte Carlo, 0 for TD."""
        return {"gae": self.lam, "mc": 1.0, "td": 0.0}[self.advantage_estimator]

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        items = [w for trace in traces for w in credit.scored_answers(trace, scorer)]
        if not items:
            return {}
        beta = state.get("kl_beta", 0.0 if self.kl is None else self.kl.beta)
        kls = kl_per_token(items, self.kl)
        final_rewards = self._rewards([w.reward for w in items], state)
        advantages: list[Array] = []
        for item, kl_t, reward in zip(items, kls, final_rewards, strict=True):
            rewards_t = item.rewards_t(reward) - beta * kl_t
            values_t = item.note("values")
            advantage_t = credit.gae(rewards_t, values_t, self.gamma, self.gae_lambda)
            for i, part in item.split(advantage_t + values_t):
                item.trace.steps[i].notes["returns"] = part
            advantages.append(advantage_t)
        metrics = {"kl_beta": beta, "value/mean": float(np.mean(np.concatenate([w.note("values") for w in items])))}
        metrics["value/explained_variance"] = explained_variance(items, advantages)
        advantages = credit.whiten(advantages) if self.whiten_advantages else advantages
        if self.advantage_clip is not None:
            advantages = [a.clip(-self.advantage_clip, self.advantage_clip) for a in advantages]
        credit.assign_to_tokens(items, advantages)
        if self.adaptive_kl is not None:
            kl = float(np.mean([k.sum() for k in kls]))
            state["kl_beta"] = self.adaptive_kl.next_beta(beta, kl, len(items))
        return metrics

    def _rewards(self, rewards: Sequence[float], state: ObjectiveState) -> Array:
        r = np.asarray(rewards, dtype=np.float64)
        if self.normalize_rewards:
            count, mean, square = (state.get(f"reward/{k}", 0.0) for k in ("count", "mean", "square"))
            total = count + len(r)
            mean, square = (count * mean + r.sum()) / total, (count * square + (r**2).sum()) / total
            state |= {"reward/count": total, "reward/mean": float(mean), "reward/square": float(square)}
            std = np.sqrt(max(square - mean**2, 0.0))
            # Of equal rewards the variance is the rounding of their squares, which adds up step by step.
            r = (r - mean) / std if std > 1e-6 * np.sqrt(square) else np.zeros_like(r)
        return r if self.reward_clip is None else r.clip(-self.reward_clip, self.reward_clip)


@dataclass(frozen=True)
class PPOMax(PPO):
    """PPO-max: PPO with normalised and clipped rewards, a stronger KL in each token's reward, normalised advantages,
    clipped values, and a critic that learns alone at first.

    Start the policy from a fine-tuned model and the critic from the reward model (`critic.model`). Of the numbers only
    the KL weight is known to be the paper's; the clip of rewards and the critic's first steps are ours.
    """

    paper: ClassVar[str] = "Zheng et al. 2023, arXiv:2307.04964"
    kl: KL | None = KL(0.05, "k1", "reward")
    normalize_rewards: bool = True
    reward_clip: float | None = 0.8
    critic: Critic = Critic(warmup_steps=10)


def explained_variance(items: Sequence[ScoredAnswer], advantages: Sequence[Array]) -> float:
    """The share of the returns' variance that the critic predicted; 1 is all of it."""
    residuals = np.concatenate(advantages)  # return minus value
    returns = residuals + np.concatenate([w.note("values") for w in items])
    spread = returns.var()
    return float(1 - residuals.var() / spread) if spread > 0 else 0.0
