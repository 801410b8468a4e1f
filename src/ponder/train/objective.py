"""What is being optimised: a credit rule, a loss and a normaliser under their paper's name.

The learner does not know which one runs. Shapes: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import UsageError
from ponder.train import losses
from ponder.types import Trace

ObjectiveState = dict[str, float]  # what an objective remembers from step to step: controllers, running means
ReferenceDivergence = Callable[[float], Tensor]  # mix -> [N]


@dataclass(frozen=True, slots=True)
class KL:
    """How far from a reference one may go: a coefficient, an estimator (Schulman 2020), and where it enters.

    In the loss k1 has no gradient in expectation, so it is refused there.
    """

    beta: float = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise UsageError(f"a KL coefficient must be 0 or positive, not {self.beta}")
        if self.estimator not in losses.KL_ESTIMATORS or self.where not in ("loss", "reward"):
            raise UsageError(f"KL is k1, k2 or k3, in the loss or the reward; not {self.estimator} in the {self.where}")
        if self.beta and self.where == "loss" and self.estimator == "k1":
            raise UsageError("k1 in the loss has no gradient in expectation: use k3 or k2, or put it in the reward")

    def loss(self, logprobs_N: Tensor, reference_N: Tensor | None) -> Tensor | float:
        if not self.beta or self.where != "loss":
            return 0.0
        assert reference_N is not None, "a KL term needs the reference's log-probabilities"
        return self.beta * losses.KL_ESTIMATORS[self.estimator](logprobs_N, reference_N)


NO_KL = KL()


@dataclass(slots=True)
class Tokens:
    """A micro-batch's trained tokens as the loss sees them; what a readout does not give is empty."""

    advantage_N: Tensor
    sequence_N: Tensor  # 0, 1, 2, ...: which completion each token belongs to
    tree_N: Tensor  # and which trace
    logprobs_N: Tensor  # with gradient
    entropy_N: Tensor  # with gradient
    old_N: Tensor  # log-probability under the weights that sampled; on fresh samples the current one, detached
    values_N: Tensor  # of a critic, with gradient
    notes: dict[str, Tensor] = field(default_factory=dict)  # of the objective's own asking
    divergence: ReferenceDivergence | None = None  # from the reference's whole distribution

    @property
    def reference_N(self) -> Tensor | None:
        return self.notes.get("reference")


Stats = dict[str, Tensor]  # per token, to be averaged into metrics


class Objective(Protocol):
    @property
    def kl(self) -> KL: ...

    @property
    def needs_reference(self) -> bool:
        """Does the loss read the reference, though there is no KL coefficient (DPO, distillation)?"""
        ...

    @property
    def needs_reference_distribution(self) -> bool:
        """Of the reference, does it read whole distributions (distillation), not log-probabilities?"""
        ...

    @property
    def trains_zero_advantage(self) -> bool:
        """Has a token with advantage 0 a gradient all the same?"""
        ...

    @property
    def needs_whole_trace(self) -> bool:
        """Must the completions of a trace stay in one micro-batch?"""
        ...

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        """Write advantages on all traces of a step; returns metrics."""
        ...

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        """Each token's share in the loss, by sequence, from the trained tokens of all sequences of the step."""
        ...

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        """[N], and what to record."""
        ...


class BaseObjective:
    """Defaults of an `Objective`; a paper says otherwise where it differs."""

    kl: KL = NO_KL
    entropy_coef: float = 0.0
    needs_reference_distribution: bool = False
    alone: bool = False  # will a single completion per problem do? Else others are its baseline

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def trains_zero_advantage(self) -> bool:
        return bool(self.entropy_coef or (self.kl.beta and self.kl.where == "loss"))

    @property
    def needs_whole_trace(self) -> bool:
        return False
