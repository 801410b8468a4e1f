"""Distillation of a teacher's next-token distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ponder.errors import UsageError
from ponder.train.imitation import SFT
from ponder.train.objective import Stats, Tokens


@dataclass(frozen=True)
class Distill(SFT):
    """Learn a teacher's whole next-token distribution on given or sampled answers (GKD).

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
