"""Learning from answers that are given: fine-tuning, the best of one's own samples, preferences, a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder import settings
from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.objective import BaseObjective, ObjectiveState, RolloutSettings, Stats, Tokens
from ponder.types import Trace


@dataclass(frozen=True)
class SFT(BaseObjective):
    """Supervised fine-tuning: token mean of -log p over the answer's tokens."""

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
    """Rejection-sampling fine-tuning: imitate one's own answers that were right, at most so many per problem."""

    paper: ClassVar[str] = "Yuan et al. 2023, arXiv:2308.01825"
    needs_group = False
    needs_reward = True
    learns_from_samples = True
    learns_from_given = False
    min_reward: float = 1.0  # reward from which an answer is right
    max_per_problem: int = 4  # different answers per problem; the first ones

    def __post_init__(self) -> None:
        settings.check_finite(self)
        if self.max_per_problem < 1:
            raise UsageError(
                f"rejection sampling keeps at most {self.max_per_problem} answers per problem: keep at least 1"
            )

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        kept = judged = 0
        for trace in traces:
            items = credit.scored_answers(trace, scorer)
            right = {trace.token_ids(w.leaf).tobytes(): w.leaf for w in reversed(items) if w.reward >= self.min_reward}
            chosen = sorted(right.values())[: self.max_per_problem]  # the same answer twice teaches nothing new
            credit.assign_imitation(trace, chosen)
            kept, judged = kept + len(chosen), judged + len(items)
        return {"frac_kept": kept / max(1, judged)}


@dataclass(frozen=True)
class DPO(BaseObjective):
    """Direct preference optimisation: of each trace's answers the best is preferred to the worst.

    `loss_type="ipo"` is Azar et al. 2023; `label_smoothing` is the conservative variant (Mitchell 2023). `nll_weight` adds so much of the
    preferred answer's mean -log p, so that it does not become less likely too (Pang et al. 2024, arXiv:2404.19733).
    """

    paper: ClassVar[str] = "Rafailov et al. 2023, arXiv:2305.18290"
    needs_pairs = True
    learns_from_given = True
    beta: float = 0.1
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: float = 0.0
    nll_weight: float = 0.0

    def __post_init__(self) -> None:
        settings.check_finite(self)
        if not (self.beta > 0 and 0 <= self.label_smoothing < 0.5) or self.loss_type not in ("sigmoid", "ipo"):
            raise UsageError("DPO needs beta > 0, label_smoothing in [0, 0.5) and loss_type 'sigmoid' or 'ipo'")
        if not self.nll_weight >= 0:
            raise UsageError(f"nll_weight is {self.nll_weight}; the weight of imitation is 0 or more")
        if self.loss_type == "ipo" and self.label_smoothing:
            raise UsageError("IPO has no label smoothing: use loss_type='sigmoid', or label_smoothing=0")

    @property
    def needs_reference(self) -> bool:
        return True

    @property
    def needs_whole_trace(self) -> bool:
        return True

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        pairs = 0
        for trace in traces:
            written = [i for i in trace.answers() if len(trace.steps[i].token_ids)]
            scored = [(r, i) for i in written if (r := trace.score(i, scorer)) is not None]
            if not scored or max(r for r, _ in scored) == min(r for r, _ in scored):
                continue
            best, worst = max(scored, key=lambda s: s[0])[1], min(scored, key=lambda s: s[0])[1]
            for leaf, sign in ((best, 1.0), (worst, -1.0)):
                if credit.has_branches(trace, leaf):
                    raise UsageError("a pair must not share steps: DPO compares whole answers")
                for i in (i for i in trace.path(leaf)[1:] if trace.steps[i].sampled or i == leaf):
                    trace.steps[i].advantages = np.full(len(trace.steps[i].token_ids), sign, np.float32)
            pairs += 1
        return {"pairs": float(pairs)}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.sequence_mean(lengths)  # each of a pair carries half of the pair's loss

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        assert tokens.reference_N is not None
        gain_N = (tokens.logprobs_N - tokens.reference_N) * tokens.advantage_N
        margin_P = losses.sum_per_sequence(gain_N, tokens.tree_N)
        if self.loss_type == "ipo":
            loss_P = losses.ipo_loss(margin_P, self.beta)
        else:
            loss_P = losses.dpo_loss(margin_P, self.beta, self.label_smoothing)
        margin_N = margin_P.detach()[tokens.tree_N]
        loss_N = loss_P[tokens.tree_N]
        if self.nll_weight:  # half of the answers are preferred ones, and each has its share of the mean over all
            loss_N = loss_N + 2 * self.nll_weight * losses.reinforce(tokens.logprobs_N, tokens.advantage_N.clamp(min=0))
        return loss_N, {"rewards/margins": self.beta * margin_N, "rewards/accuracies": margin_N > 0}


@dataclass(frozen=True)
class Distill(SFT):
    """Learn a teacher's whole next-token distribution on given or own answers (GKD).

    forward: KL(teacher | student); reverse: KL(student | teacher); jsd: the generalised Jensen-Shannon divergence
    with the teacher's share `jsd_mix` in the mixture.
    """

    paper: ClassVar[str] = "Agarwal et al. 2024, arXiv:2306.13649; Hinton et al. 2015, arXiv:1503.02531"
    needs_group = False
    needs_teacher = True
    learns_from_samples = True
    needs_reference_distribution = True
    divergence: Literal["forward", "reverse", "jsd"] = "forward"
    jsd_mix: float = 0.5

    def __post_init__(self) -> None:
        if self.divergence not in ("forward", "reverse", "jsd") or not 0 < self.jsd_mix < 1:
            raise UsageError(
                f"distillation is forward, reverse or jsd with jsd_mix in (0, 1), not {self.divergence} {self.jsd_mix}"
            )

    def unused(self) -> dict[str, str]:
        return (
            {} if self.divergence == "jsd" else {"jsd_mix": f"the divergence is {self.divergence}: give divergence=jsd"}
        )

    @property
    def needs_reference(self) -> bool:
        return True

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        assert tokens.divergence is not None
        mix = {"forward": 0.0, "reverse": 1.0, "jsd": self.jsd_mix}[self.divergence]
        loss_N = tokens.divergence(mix)
        return torch.where(tokens.advantage_N != 0, loss_N, 0.0), {}
