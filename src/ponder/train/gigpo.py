"""GiGPO: group-in-group policy optimisation, for episodes in an environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ponder.errors import UsageError
from ponder.train import credit
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.objective import KL, ObjectiveState
from ponder.train.policy_gradient import GRPO
from ponder.types import Trace


@dataclass(frozen=True)
class GiGPO(GRPO):
    """GRPO whose advantage has a second part, by turn: A = A_episode + `step_weight` A_turn.

    A_episode is GRPO's, of the sum of an episode's rewards. A_turn compares the turns of a group that began in the same
    state (the anchor states of the paper) by their discounted returns, (R_t - mean) / std, and is 0 for a turn that is
    alone in its state. Two states are the same where the environment said the same: its last turn, or the prompt. The
    clipped ratio is per token.
    """

    paper: ClassVar[str] = "Feng et al. 2025, arXiv:2505.10978"
    kl: KL | None = KL(0.01)
    gamma: float = 0.95  # discount per turn, of the returns within a state
    step_weight: float = 1.0  # the paper's omega

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gamma <= 1:
            raise UsageError(f"gamma is {self.gamma}; it is a discount in (0, 1]")
        if self.scale_rewards == "batch":
            raise UsageError("GiGPO divides by the std of a group, or by 1: scale_rewards is group or none")

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        metrics = super().credit(traces, scorer, state)
        in_groups = turns = 0
        for trace in traces:
            items = credit.scored_answers(trace, scorer)
            if len(items) < 2:
                continue
            for members in anchor_groups(items, self.gamma):
                turns += len(members)
                in_groups += len(members) if len(members) > 1 else 0
                returns = [value for _, value in members]
                scaled = self._relative(returns)
                for (step, _), advantage in zip(members, scaled, strict=True):
                    whole = trace.steps[step].advantages
                    assert whole is not None  # by GRPO's credit
                    trace.steps[step].advantages = whole + np.float32(self.step_weight * advantage)
        return metrics | {"anchor_states/turns_in_groups": in_groups / turns if turns else 0.0}

    def _relative(self, returns: Sequence[float]) -> Array:
        if len(returns) < 2:
            return np.zeros(len(returns))
        return credit.group_relative(returns, divide_by_std=self.scale_rewards == "group", bessel=self.bessel)


def anchor_groups(items: Sequence[ScoredAnswer], gamma: float) -> list[list[tuple[int, float]]]:
    """The turns of a group's episodes by the state that they began in: each step with its discounted return."""
    groups: dict[str, dict[int, float]] = defaultdict(dict)
    for item in items:
        rewards = np.array(item.turn_rewards())
        rewards[-1] += item.reward - rewards.sum()
        for step, value in zip(item.steps, credit.rewards_to_go(rewards, gamma), strict=True):
            groups[_state(item.trace, step)][step] = float(value)
    return [list(members.items()) for members in groups.values()]


def _state(trace: Trace, step: int) -> str:
    """What the policy read last before this turn."""
    parent = trace.steps[step].parent
    assert parent is not None
    return ("turn " if trace.steps[parent].turn else "prompt ") + trace.steps[parent].text
