"""PPO with a critic (Schulman et al. 2017; for language models Ziegler et al. 2019, Ouyang et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.objective import KL, BaseObjective, ObjectiveState, Stats, Tokens
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import ClippedSurrogate, kl_per_token
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class AdaptiveKLController:
    """The controller of Ziegler et al. 2019 (arXiv:1909.08593): moves the KL coefficient to hold a target."""

    target: float = 6.0  # nats per completion
    horizon: float = 10_000  # completions

    def __post_init__(self) -> None:
        if not (0 < self.target < math.inf and 0 < self.horizon < math.inf):
            given = f"{self.target} and {self.horizon}"
            raise UsageError(f"the KL's target and horizon must be positive and finite, not {given}")

    def next_beta(self, beta: float, kl: float, completions: int) -> float:
        error = float(np.clip(kl / self.target - 1, -0.2, 0.2))
        return beta * (1 + error * completions / self.horizon)


@dataclass(frozen=True, slots=True)
class Critic:
    """The value network: where it starts, how it learns, and how long it learns alone."""

    model: str | None = None  # a folder or run with a trained value or reward model; None: the policy's own weights
    optimizer: AdamW = AdamW(lr=1e-5)
    value_clip: float | None = 0.2  # of the value's change within a step; None: no clipping
    warmup_steps: int = 0  # steps in which only the critic learns

    def __post_init__(self) -> None:
        if self.value_clip is not None and not 0 < self.value_clip < math.inf:
            raise UsageError(
                f"the critic's value_clip is {self.value_clip}; it must be positive and finite, or None: no clipping"
            )
        if not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise UsageError(f"the critic's warmup_steps is {self.warmup_steps}; a number of steps is whole, 0 or more")


@dataclass(frozen=True)
class PPO(ClippedSurrogate):
    """Per-token advantages from a critic, token mean, KL k1 in each token's reward (as InstructGPT: beta 0.02)."""

    paper: ClassVar[str] = "Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155"
    alone = True
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL = KL(0.02, "k1", "reward")
    entropy_coef: float = 0.0
    advantage_estimator: Literal["gae", "mc", "td"] = "gae"
    gamma: float = 1.0
    lam: float = 0.95
    critic: Critic = Critic()
    whiten_advantages: bool = True  # advantages, over the global batch
    advantage_clip: float | None = None  # advantages are clipped to +- this
    normalize_rewards: bool = False  # by a running mean and std of all rewards so far
    reward_clip: float | None = None  # rewards are clipped to +- this
    adaptive_kl: AdaptiveKLController | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("advantage_clip", self.advantage_clip), ("reward_clip", self.reward_clip)):
            if most is not None and not 0 < most < math.inf:
                raise UsageError(f"{name} is {most}; it must be positive and finite, or None: no clipping")
        if not (0 < self.gamma <= 1 and 0 <= self.lam <= 1):
            raise UsageError(f"PPO needs gamma in (0, 1] and lam in [0, 1], not {self.gamma} and {self.lam}")
        if self.adaptive_kl and not (self.kl.beta and self.kl.where == "reward"):
            raise UsageError("an adaptive KL coefficient needs a KL term in the reward to start from")

    def unused(self) -> dict[str, str]:
        return (
            {}
            if self.advantage_estimator == "gae"
            else {"lam": f"the advantage is {self.advantage_estimator}: give advantage_estimator=gae"}
        )

    @property
    def gae_lambda(self) -> float:
        """lambda: Monte Carlo is GAE's 1, TD its 0."""
        return {"gae": self.lam, "mc": 1.0, "td": 0.0}[self.advantage_estimator]

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        items = [w for trace in traces for w in credit.scored_answers(trace, scorer)]
        if not items:
            return {}
        beta = state.get("kl_beta", self.kl.beta)
        kls = [kl_per_token(w, self.kl) for w in items]
        final_rewards = self._rewards([w.reward for w in items], state)
        advantages: list[Array] = []
        for item, kl_t, reward in zip(items, kls, final_rewards, strict=True):
            rewards_t = -beta * kl_t
            rewards_t[-1] += reward
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
            r = (r - mean) / std if std > 1e-6 else r - mean
        return r if self.reward_clip is None else r.clip(-self.reward_clip, self.reward_clip)


def explained_variance(items: Sequence[ScoredAnswer], advantages: Sequence[Array]) -> float:
    """Share of the returns' variance that the critic foresaw; 1 is all of it."""
    residuals = np.concatenate(advantages)  # return less value
    returns = residuals + np.concatenate([w.note("values") for w in items])
    spread = returns.var()
    return float(1 - residuals.var() / spread) if spread > 0 else 0.0


@dataclass(frozen=True)
class CriticObjective(BaseObjective):
    """The critic's objective: regress each token's return, over the same tokens as the policy's loss."""

    value_clip: float | None = 0.2

    @property
    def trains_zero_advantage(self) -> bool:
        return True

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        return {}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.token_mean(lengths)

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        old_N, returns_N = tokens.notes["values"], tokens.notes["returns"]
        return losses.value_loss(tokens.values_N, old_N, returns_N, self.value_clip), {}
