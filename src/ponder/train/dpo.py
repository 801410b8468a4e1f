"""Direct preference optimisation, and IPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder import settings
from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.train.objective import BaseObjective, ObjectiveState, Stats, Tokens
from ponder.types import Trace


@dataclass(frozen=True)
class DPO(BaseObjective):
    """Direct preference optimisation: of each trace's answers the best is preferred to the worst.

    `loss_type="ipo"` is Azar et al. 2023; `label_smoothing` is the conservative variant (Mitchell 2023). `nll_weight`
    is the weight of the preferred answer's mean -log p, which keeps that answer from becoming less likely (Pang et al.
    2024, arXiv:2404.19733).
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
            answers = [i for i in trace.answers() if len(trace.steps[i].token_ids)]
            scored = [(r, i) for i in answers if (r := trace.score(i, scorer)) is not None]
            if credit.are_equal([r for r, _ in scored]):
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
        if self.nll_weight:  # times 2: only half of the answers that the mean is over are preferred
            loss_N = loss_N + 2 * self.nll_weight * losses.reinforce(tokens.logprobs_N, tokens.advantage_N.clamp(min=0))
        return loss_N, {"rewards/margins": self.beta * margin_N, "rewards/accuracies": margin_N > 0}
