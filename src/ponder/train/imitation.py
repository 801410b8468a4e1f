"""Objectives that imitate answers: supervised fine-tuning, and rejection sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder import settings
from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.objective import BaseObjective, ObjectiveState, RolloutSettings, Stats, Tokens
from ponder.types import Trace


@dataclass(frozen=True)
class SFT(BaseObjective):
    """Supervised fine-tuning: token mean of -log p over the tokens of the answers."""

    paper: ClassVar[str] = "Ouyang et al. 2022, arXiv:2203.02155"
    needs_reward = False
    learns_from_samples = False
    learns_from_given = True

    def check(self, rollouts: RolloutSettings) -> list[str]:
        if not self.learns_from_samples:
            raise UsageError("imitating one's own answers, right or wrong, teaches nothing: use RejectionSampling")
        return []

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        for trace in traces:
            credit.assign_imitation(trace)
        return {}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.token_mean(lengths)

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        return losses.reinforce(tokens.logprobs_N, tokens.advantage_N), {}


@dataclass(frozen=True)
class RejectionSampling(SFT):
    """Rejection-sampling fine-tuning: imitate the policy's own correct answers, at most `max_per_problem` of each."""

    paper: ClassVar[str] = "Yuan et al. 2023, arXiv:2308.01825"
    needs_group = False
    needs_reward = True
    learns_from_samples = True
    learns_from_given = False
    min_reward: float = 1.0  # an answer with at least this reward is correct
    max_per_problem: int = 4  # distinct answers, the first ones

    def __post_init__(self) -> None:
        settings.check_finite(self)
        if self.max_per_problem < 1:
            raise UsageError(
                f"rejection sampling keeps at most {self.max_per_problem} answers per problem: keep at least 1"
            )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        num_kept = num_scored = 0
        for trace in traces:
            items = credit.scored_answers(trace, scorer)
            right = {trace.token_ids(w.leaf).tobytes(): w.leaf for w in reversed(items) if w.reward >= self.min_reward}
            chosen = sorted(right.values())[: self.max_per_problem]  # without repeats
            credit.assign_imitation(trace, chosen)
            num_kept, num_scored = num_kept + len(chosen), num_scored + len(items)
        return {"frac_kept": num_kept / max(1, num_scored)}
