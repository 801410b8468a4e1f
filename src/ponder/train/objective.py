"""What is being optimised: a credit rule, a loss and a normaliser under their paper's name.

The learner does not know which one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import UsageError
from ponder.train import credit, losses
from ponder.types import Trace


class Objective(Protocol):
    @property
    def beta(self) -> float:
        """Weight of the KL term; a reference model is kept only where it is not 0."""
        ...

    @property
    def clip(self) -> float:
        """How far a token's ratio may move before it is clipped; inf: never."""
        ...

    def credit(self, trace: Trace, scorer: str) -> None:
        """Write advantages on the trace."""
        ...

    def weigh(self, lengths: Sequence[int]) -> list[NDArray[np.float64]]:
        """Each token's share in the loss, from the lengths of all sequences of the optimiser step."""
        ...

    def loss(self, logprobs_N: Tensor, old_N: Tensor, reference_N: Tensor | None, advantages_N: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GRPO:
    """Group Relative Policy Optimization (Shao et al. 2024, DeepSeekMath): clip 0.2, k3 in the loss, beta 0.04."""

    clip: float = 0.2
    beta: float = 0.04
    bessel: bool = False

    def __post_init__(self) -> None:
        if not (self.clip > 0 and self.beta >= 0):
            raise UsageError(f"GRPO needs clip > 0 and beta >= 0, not clip {self.clip} and beta {self.beta}")

    def credit(self, trace: Trace, scorer: str) -> None:
        credit.grpo(trace, scorer, self.bessel)

    def weigh(self, lengths: Sequence[int]) -> list[NDArray[np.float64]]:
        return losses.sequence_mean(lengths)

    def loss(self, logprobs_N: Tensor, old_N: Tensor, reference_N: Tensor | None, advantages_N: Tensor) -> Tensor:
        loss_N = losses.clipped(logprobs_N, old_N, advantages_N, self.clip, self.clip)
        if self.beta and reference_N is not None:
            loss_N = loss_N + self.beta * losses.k3(logprobs_N, reference_N)
        return loss_N


@dataclass(frozen=True, slots=True)
class SFT:
    """Supervised fine-tuning: token mean of -log p over the answer's tokens."""

    @property
    def beta(self) -> float:
        return 0.0

    @property
    def clip(self) -> float:
        return float("inf")

    def credit(self, trace: Trace, scorer: str) -> None:
        credit.imitate(trace)

    def weigh(self, lengths: Sequence[int]) -> list[NDArray[np.float64]]:
        return losses.token_mean(lengths)

    def loss(self, logprobs_N: Tensor, old_N: Tensor, reference_N: Tensor | None, advantages_N: Tensor) -> Tensor:
        return -logprobs_N * advantages_N
