"""Policy gradients without a critic, each with the definitions and defaults of its paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder import settings
from ponder.errors import UnknownName, UsageError
from ponder.train import credit, losses
from ponder.train.credit import Array, ScoredAnswer
from ponder.train.kl_penalty import groups_with_kl_penalty, kl_per_token
from ponder.train.objective import KL, BaseObjective, ObjectiveState, RolloutSettings, Stats, Tokens
from ponder.types import Trace
from ponder.verify.rewards.token_length import soft_overlong_penalty


def assign_group_advantages(
    trace: Trace, items: Sequence[ScoredAnswer], advantage: Callable[[list[float]], Array]
) -> None:
    """Write advantages within a group. A group with fewer than two scored answers gets none."""
    if len(items) > 1:
        advantages = advantage([w.reward for w in items])
        credit.assign_to_answers(trace, {w.leaf: float(a) for w, a in zip(items, advantages, strict=True)})
    elif len(trace.answers()) == 1:
        advantage([0.0])  # raises UsageError


def check_clip_ranges(name: str, *values: float) -> None:
    if not all(v > 0 for v in values):
        raise UsageError(f"{name} needs positive clip ranges, not {' and '.join(map(str, values))}")


class SequenceReinforce(BaseObjective):
    """-A log pi summed over a completion, mean over completions; KL in the reward."""

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.sequence_sum(lengths)

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        return losses.reinforce(tokens.logprobs_N, tokens.advantage_N) + self.kl_loss(tokens), {}

    def check(self, rollouts: RolloutSettings) -> list[str]:
        if rollouts.optimizer_steps_per_batch == 1:
            return []
        return [f"{type(self).__name__} has no ratio: all but the first optimiser step are off policy"]


@dataclass(frozen=True)
class REINFORCE(SequenceReinforce):
    """Williams 1992, with a baseline: the mean reward of the batch, or a running one over all steps before."""

    paper: ClassVar[str] = "Williams 1992, doi:10.1007/BF00992696"
    needs_group = False
    baseline: Literal["batch", "running", "none"] = "batch"
    baseline_decay: float = 0.9  # of the running mean
    kl: KL | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.baseline_decay <= 1:
            raise UsageError(
                f"baseline_decay is {self.baseline_decay}; it is the share of the running mean that stays, from 0 to 1"
            )

    def unused(self) -> dict[str, str]:
        return (
            {}
            if self.baseline == "running"
            else {"baseline_decay": f"the baseline is {self.baseline}: give baseline=running"}
        )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        groups = groups_with_kl_penalty(traces, scorer, self.kl)
        rewards = [w.reward for items in groups for w in items]
        if self.baseline == "batch" and sum(len(t.answers()) for t in traces) == 1:
            raise UsageError("a batch of one has no baseline: ask more problems, or use --algorithm.baseline running")
        if not rewards or (self.baseline == "batch" and len(rewards) == 1):
            return {}  # no answer was scored, or only one
        mean = float(np.mean(rewards))
        before = state.get("baseline", mean)  # at the first step the batch's own mean
        base = {"batch": mean, "running": before, "none": 0.0}[self.baseline]
        state["baseline"] = self.baseline_decay * before + (1 - self.baseline_decay) * mean
        all_equal = credit.are_equal(rewards) and self.baseline == "batch"
        for trace, items in zip(traces, groups, strict=True):
            credit.assign_to_answers(trace, {w.leaf: 0.0 if all_equal else w.reward - base for w in items})
        return {"baseline": base}


@dataclass(frozen=True)
class RLOO(SequenceReinforce):
    """REINFORCE leave-one-out: the others of the group are the baseline, KL k1 in the reward."""

    paper: ClassVar[str] = "Ahmadian et al. 2024, arXiv:2402.14740"
    kl: KL | None = KL(0.03, "k1", "reward")

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        for trace, items in zip(traces, groups_with_kl_penalty(traces, scorer, self.kl), strict=True):
            assign_group_advantages(trace, items, credit.leave_one_out)
        return {}


class ClippedSurrogate(BaseObjective):
    """PPO's clipped surrogate on each token's ratio, with a KL term and an entropy bonus where there is one."""

    clip: float = 0.2
    clip_high: float | None = None

    def __post_init__(self) -> None:
        check_clip_ranges(type(self).__name__, self.clip, self.upper_clip)
        settings.check_finite(self)

    @property
    def upper_clip(self) -> float:
        return self.clip if self.clip_high is None else self.clip_high

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.token_mean(lengths)

    def ratio(self, tokens: Tokens) -> Tensor:
        return losses.ratio(tokens.logprobs_N, tokens.old_N)

    def surrogate(self, tokens: Tokens, rho_N: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's loss of each token, and whether it is clipped."""
        loss_N = losses.clipped_surrogate(rho_N, tokens.advantage_N, self.clip, self.upper_clip)
        return loss_N, losses.is_clipped(rho_N.detach(), tokens.advantage_N, self.clip, self.upper_clip)

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        loss_N, clipped_N = self.surrogate(tokens, self.ratio(tokens))
        loss_N = loss_N + self.kl_loss(tokens)
        if self.entropy_coef:
            loss_N = loss_N - self.entropy_coef * tokens.entropy_N
        return loss_N, {"clip_ratio/region_mean": clipped_N}


@dataclass(frozen=True)
class ReinforcePlusPlus(ClippedSurrogate):
    """REINFORCE++: the reward minus the KL of this and later tokens, normalised over the global batch; PPO's clip."""

    paper: ClassVar[str] = "Hu et al. 2025, arXiv:2501.03262"
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL | None = KL(0.01, "k1", "reward")
    entropy_coef: float = 0.0
    group_baseline: bool = False  # the paper's REINFORCE++-baseline: subtract the group's mean reward first

    @property
    def needs_group(self) -> bool:  # type: ignore[override]
        return self.group_baseline

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        items: list[ScoredAnswer] = []
        for trace in traces:
            group = credit.scored_answers(trace, scorer)
            if self.group_baseline and len(group) > 1:
                centred = credit.group_relative([w.reward for w in group], divide_by_std=False)
                group = [replace(w, reward=float(a)) for w, a in zip(group, centred, strict=True)]
            items += group if len(group) > 1 or not self.group_baseline else []
        beta = 0.0 if self.kl is None else self.kl.beta
        kls = kl_per_token(items, self.kl)
        raw = [w.reward - beta * credit.rewards_to_go(kl) for w, kl in zip(items, kls, strict=True)]
        credit.assign_to_tokens(items, credit.whiten(raw))
        return {}


LossType = Literal["grpo", "dapo", "dr_grpo", "luspo"]
ScaleRewards = Literal["group", "batch", "none"]
SamplingLevel = Literal["token", "sequence"]


def assign_scaled_advantages(
    traces: Sequence[Trace], groups: Sequence[Sequence[ScoredAnswer]], scale_rewards: ScaleRewards, bessel: bool
) -> None:
    """Write (reward - the group's mean) / std on each group: the group's std, that of all rewards of the step, or 1."""
    if scale_rewards != "batch":
        for trace, items in zip(traces, groups, strict=True):
            assign_group_advantages(
                trace, items, lambda r: credit.group_relative(r, divide_by_std=scale_rewards == "group", bessel=bessel)
            )
        return
    std = credit.reward_std([w.reward for items in groups for w in items], bessel)
    for trace, items in zip(traces, groups, strict=True):
        assign_group_advantages(
            trace, items, lambda r: credit.group_relative(r, divide_by_std=False) / (std or 1.0)
        )  # std is 0 only where every advantage is


@dataclass(frozen=True)
class GRPO(ClippedSurrogate):
    """Group Relative Policy Optimization: k3 in the loss with beta 0.04, mean within each completion first.

    `loss_type`, `scale_rewards` and `importance_sampling_level` are those of TRL's GRPOConfig, for a run that is to
    match one of its; the defaults are the paper's. TRL's std is that of `bessel`.
    """

    paper: ClassVar[str] = "Shao et al. 2024, arXiv:2402.03300"
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL | None = KL(0.04)
    entropy_coef: float = 0.0
    bessel: bool = False  # the std of n - 1, not of n
    scale_rewards: ScaleRewards = "group"  # which rewards' std divides the advantages
    # grpo: mean per completion; dapo: mean over all tokens; dr_grpo: sum over a constant length; luspo: sum
    loss_type: LossType = "grpo"
    max_completion_tokens: int | None = None  # the constant length of dr_grpo
    importance_sampling_level: SamplingLevel = "token"  # sequence: one ratio per completion, as GSPO

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {"loss_type": LossType, "scale_rewards": ScaleRewards, "importance_sampling_level": SamplingLevel}
        for name, choices in kinds.items():
            if getattr(self, name) not in get_args(choices):
                raise UnknownName(name, str(getattr(self, name)), get_args(choices))
        if self.loss_type == "dr_grpo" and not self.max_completion_tokens:
            raise UsageError("loss_type dr_grpo divides by a constant length: give max_completion_tokens")
        if self.max_completion_tokens is not None and self.max_completion_tokens < 1:
            raise UsageError(f"max_completion_tokens is {self.max_completion_tokens}; a length is at least 1")

    def unused(self) -> dict[str, str]:
        out: dict[str, str] = {}
        if self.loss_type != "dr_grpo":
            out["max_completion_tokens"] = "only loss_type=dr_grpo divides by a constant length"
        if self.scale_rewards == "none":
            out["bessel"] = "scale_rewards is none, so that no std divides the advantages"
        return out

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        groups = groups_with_kl_penalty(traces, scorer, self.kl)
        assign_scaled_advantages(traces, groups, self.scale_rewards, self.bessel)
        return {}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        if self.loss_type == "dapo":
            return losses.token_mean(lengths)
        if self.loss_type == "grpo":
            return losses.sequence_mean(lengths)
        return losses.sequence_sum(
            lengths, float(self.max_completion_tokens or 1) if self.loss_type == "dr_grpo" else 1
        )

    def ratio(self, tokens: Tokens) -> Tensor:
        if self.importance_sampling_level == "token":
            return super().ratio(tokens)
        return losses.sequence_ratio(tokens.logprobs_N, tokens.old_N, tokens.sequence_N)


def credit_of_grpo(
    objective: BaseObjective, traces: Sequence[Trace], scorer: str, state: ObjectiveState
) -> dict[str, float]:
    """The credit of GRPO's paper, for objectives that take it over."""
    groups = groups_with_kl_penalty(traces, scorer, objective.kl)
    assign_scaled_advantages(traces, groups, "group", bessel=False)
    return {}


@dataclass(frozen=True)
class DrGRPO(ClippedSurrogate):
    """GRPO done right: no std in the advantage, tokens summed over a constant length, no KL."""

    paper: ClassVar[str] = "Liu et al. 2025, arXiv:2503.20783"
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL | None = None
    entropy_coef: float = 0.0
    max_completion_tokens: int = 3000  # the constant length, the paper's token limit; it only scales the gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_completion_tokens < 1:
            raise UsageError(
                f"Dr. GRPO divides by a constant length, which must be at least 1, not {self.max_completion_tokens}"
            )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        for trace, items in zip(traces, groups_with_kl_penalty(traces, scorer, self.kl), strict=True):
            assign_group_advantages(trace, items, lambda r: credit.group_relative(r, divide_by_std=False))
        return {}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.sequence_sum(lengths, self.max_completion_tokens)


@dataclass(frozen=True)
class DAPO(ClippedSurrogate):
    """Clip higher, mean over all tokens, dynamic sampling, a soft penalty for overlong answers, no KL."""

    paper: ClassVar[str] = "Yu et al. 2025, arXiv:2503.14476"
    clip: float = 0.2
    clip_high: float | None = 0.28
    kl: KL | None = None
    entropy_coef: float = 0.0
    # tokens; the penalty grows from 0 at max_completion_tokens - overlong_buffer to -1 here
    max_completion_tokens: int = 20480
    overlong_buffer: int = 4096  # 0: no penalty
    mask_truncated: bool = False  # leave truncated answers out of the loss
    dynamic_sampling_rounds = 10

    def unused(self) -> dict[str, str]:
        return (
            {}
            if self.overlong_buffer
            else {"max_completion_tokens": "there is no penalty for overlong answers: give overlong_buffer"}
        )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        lowest = 0.0
        groups = groups_with_kl_penalty(traces, scorer, self.kl, include_truncated=not self.mask_truncated)
        for trace, items in zip(traces, groups, strict=True):
            cost = [soft_overlong_penalty(w.length, self.max_completion_tokens, self.overlong_buffer) for w in items]
            lowest = min([lowest, *cost])
            shaped = [replace(w, reward=w.reward + c) for w, c in zip(items, cost, strict=True)]
            assign_group_advantages(trace, shaped, credit.group_relative)
        return {"overlong_penalty/min": lowest}


@dataclass(frozen=True)
class GSPO(ClippedSurrogate):
    """One ratio per sequence, the exponential of its mean log-ratio, and the clip on that; no KL."""

    paper: ClassVar[str] = "Zheng et al. 2025, arXiv:2507.18071"
    clip: float = 3e-4
    clip_high: float | None = 4e-4
    kl: KL | None = None
    entropy_coef: float = 0.0

    credit = credit_of_grpo

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.sequence_mean(lengths)

    def ratio(self, tokens: Tokens) -> Tensor:
        return losses.sequence_ratio(tokens.logprobs_N, tokens.old_N, tokens.sequence_N)


@dataclass(frozen=True)
class CISPO(ClippedSurrogate):
    """The clipped ratio is a constant weight on A log pi, so no token loses its gradient; mean over all tokens.

    The paper leaves the lower side open and tunes the upper one; weights up to 5 are those of Khatri et al. 2025.
    """

    paper: ClassVar[str] = "MiniMax 2025, arXiv:2506.13585"
    clip: float = float("inf")
    clip_high: float | None = 4.0
    kl: KL | None = None
    entropy_coef: float = 0.0

    credit = credit_of_grpo

    def surrogate(self, tokens: Tokens, rho_N: Tensor) -> tuple[Tensor, Tensor]:
        loss_N = losses.cispo(tokens.logprobs_N, rho_N, tokens.advantage_N, self.clip, self.upper_clip)
        clipped_N = (rho_N.detach() > 1 + self.upper_clip) | (rho_N.detach() < 1 - self.clip)
        return loss_N, clipped_N


@dataclass(frozen=True)
class TreeCredit(ClippedSurrogate):
    """Credit in a tree of answers: the advantage of a step is the mean reward below it minus that below its parent."""

    paper: ClassVar[str] = "with treerl: Hou et al. 2025, arXiv:2506.11902"
    clip: float = 0.2
    clip_high: float | None = None
    kl: KL | None = None
    entropy_coef: float = 0.0
    treerl: bool = False  # the paper's advantage: global plus local, over the square root of the leaves below

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit_needs_reference:
            raise UsageError(
                "answers of a tree share tokens, so a KL term cannot enter the reward of one: put it in the loss"
            )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        for trace in traces:
            credit.assign_tree_credit(trace, scorer, self.treerl)
        return {}
