"""Corrections for tokens that were sampled with other probabilities than the learner's: by older weights, as in
asynchronous RL, or by an engine that computes in another precision.

The ratio k = pi_proximal / pi_behaviour is of the policy that the step starts from to the policy that sampled, for each
token. A correction turns it into a weight of the token's policy gradient; KL and entropy terms are of the learner's own
distribution and stay as they are. Every policy gradient here is linear in the advantage, clipped ones too for
weights that are not negative, so the weight multiplies the advantage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ponder.errors import UsageError
from ponder.train.objective import Stats, Tokens


class RolloutCorrection(Protocol):
    """Weights of tokens from their ratios."""

    def weigh(self, ratio_N: Tensor) -> Tensor:
        """[N]: 0 or more, 1 where the ratio is 1."""
        ...


@dataclass(frozen=True, slots=True)
class TruncatedIS:
    """Truncated importance sampling: min(k, cap)."""

    paper: ClassVar[str] = "Ionides 2008, doi:10.1198/106186008X320456; Yao et al. 2025, off-policy RL by engines"
    cap: float = 2.0

    def __post_init__(self) -> None:
        if not self.cap >= 1:
            raise UsageError(f"cap is {self.cap}; it is the largest weight, and at least 1")

    def weigh(self, ratio_N: Tensor) -> Tensor:
        return ratio_N.clamp(max=self.cap)


@dataclass(frozen=True, slots=True)
class IcePop:
    """k where it lies within [low, high]; a token outside is left out."""

    paper: ClassVar[str] = "Ling Team 2025, arXiv:2510.18855"
    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise UsageError(f"IcePop keeps ratios from {self.low} to {self.high}; 1 must lie between them")

    def weigh(self, ratio_N: Tensor) -> Tensor:
        return torch.where((ratio_N >= self.low) & (ratio_N <= self.high), ratio_N, 0.0)


@dataclass(frozen=True, slots=True)
class DecoupledPPO:
    """k itself: the clip is around the proximal policy, and the weight corrects for the one that sampled."""

    paper: ClassVar[str] = "Hilton et al. 2022, arXiv:2110.00641; Fu et al. 2025 (AReaL), arXiv:2505.24298"

    def weigh(self, ratio_N: Tensor) -> Tensor:
        return ratio_N


ROLLOUT_CORRECTIONS = {"tis": TruncatedIS, "icepop": IcePop, "decoupled": DecoupledPPO}


def correct_rollouts(correction: RolloutCorrection, tokens: Tokens, sampled_N: Tensor) -> tuple[Tokens, Stats]:
    """The tokens with weighted advantages, and what to record. `sampled_N`: log-probabilities when they were sampled; a
    token whose own is unknown (NaN) has the weight 1."""
    ratio_N = torch.where(sampled_N.isnan(), 1.0, (tokens.old_N.detach() - sampled_N).exp())
    weight_N = correction.weigh(ratio_N)
    stats = {
        "rollout_correction/ratio": ratio_N,
        "rollout_correction/ratio_squared": ratio_N.square(),
        "rollout_correction/changed": (weight_N != ratio_N).float(),
        "rollout_correction/weight": weight_N,
    }
    return replace(tokens, advantage_N=tokens.advantage_N * weight_N), stats


def effective_sample_share(ratio: float, ratio_squared: float) -> float:
    """Kish's effective sample size over the number of tokens, from the means of the ratio and of its square."""
    return ratio * ratio / ratio_squared if ratio_squared > 0 else 0.0
