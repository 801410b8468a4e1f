"""An objective: a credit rule, a loss and a normaliser under their paper's name, and what it needs from a training job.

Neither the learner nor the RL loop knows which one runs: they ask. Shapes: N trained tokens of a micro-batch.
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
from ponder.train.optimizer import AdamW
from ponder.types import Sampling, Trace

ObjectiveState = dict[str, float]  # what an objective keeps from step to step: controllers, running means
ReferenceDivergence = Callable[[float], Tensor]  # mix -> [N]


@dataclass(frozen=True, slots=True)
class KL:
    """A KL term against a reference: a coefficient, an estimator (Schulman 2020), and where the term enters.

    In the loss k1 has no gradient in expectation, so it is refused there. No KL term is `kl=None`.
    """

    beta: float
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise UsageError(
                f"a KL coefficient must be positive and finite, not {self.beta}: kl=None leaves the term out"
            )
        if self.estimator not in losses.KL_ESTIMATORS or self.where not in ("loss", "reward"):
            raise UsageError(f"KL is k1, k2 or k3, in the loss or the reward; not {self.estimator} in the {self.where}")
        if self.where == "loss" and self.estimator == "k1":
            raise UsageError("k1 in the loss has no gradient in expectation: use k3 or k2, or put it in the reward")

    def loss(self, logprobs_N: Tensor, reference_N: Tensor | None) -> Tensor:
        """[N]: the coefficient times the estimate of each token."""
        assert reference_N is not None, "a KL term needs the reference's log-probabilities"
        return self.beta * losses.KL_ESTIMATORS[self.estimator](logprobs_N, reference_N)


@dataclass(frozen=True, slots=True)
class Critic:
    """The value network of an objective: where it starts, how it learns, and how long it learns alone."""

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


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How an RL job samples and learns, for the checks of an objective."""

    sampling: Sampling
    group_size: int | None  # completions per problem; None: the strategy has no such number
    optimizer_steps_per_batch: int  # on the samples of one step


@dataclass(slots=True)
class Tokens:
    """The trained tokens of a micro-batch as the loss sees them; what a readout does not provide is empty."""

    advantage_N: Tensor
    sequence_N: Tensor  # 0, 1, 2, ...: which completion each token belongs to
    tree_N: Tensor  # and which trace
    logprobs_N: Tensor  # with gradient
    entropy_N: Tensor  # with gradient
    old_N: Tensor  # log-probability under the weights that sampled; on fresh samples the current one, detached
    values_N: Tensor  # of a critic, with gradient
    notes: dict[str, Tensor] = field(default_factory=dict)  # numbers beside the tokens, by name (Step.notes)
    divergence: ReferenceDivergence | None = None  # computes the divergence from the reference's distribution

    @property
    def reference_N(self) -> Tensor | None:
        return self.notes.get("reference")


Stats = dict[str, Tensor]  # [N] each, averaged into metrics


class Objective(Protocol):
    """What the learner and the training jobs ask of an objective. `BaseObjective` has the usual answers."""

    @property
    def kl(self) -> KL | None: ...

    # What the RL loop asks

    @property
    def needs_group(self) -> bool:
        """Are the other completions of a problem the baseline? Then a single completion teaches nothing."""
        ...

    @property
    def needs_reward(self) -> bool:
        """Is anything learned from rewards? If so, a run whose rewards are all equal stops."""
        ...

    @property
    def needs_teacher(self) -> bool:
        """Does it learn from another model, which the job must name?"""
        ...

    @property
    def needs_pairs(self) -> bool:
        """Does it learn from pairs of a preferred and a rejected answer?"""
        ...

    @property
    def learns_from_samples(self) -> bool:
        """Can it learn from completions that the policy sampled (an RL job)?"""
        ...

    @property
    def learns_from_given(self) -> bool:
        """Can it learn from given answers (a fine-tuning job)?"""
        ...

    @property
    def critic(self) -> Critic | None:
        """The settings of its value network. The loop then notes "values" beside tokens before `credit`, which leaves
        "returns" there for the critic to learn."""
        ...

    @property
    def dynamic_sampling_rounds(self) -> int:
        """How many further rounds of sampling may replace groups of equal rewards, unless the job says otherwise."""
        ...

    @property
    def credit_needs_reference(self) -> bool:
        """Does `credit` read the reference's log-probabilities?"""
        ...

    def check(self, rollouts: RolloutSettings) -> list[str]:
        """Warnings about an RL job with these settings. Raises UsageError where the job cannot work."""
        ...

    # What the learner asks

    @property
    def needs_reference(self) -> bool:
        """Does the loss read the reference, though there is no KL term (DPO, distillation)?"""
        ...

    @property
    def needs_reference_distribution(self) -> bool:
        """Does the loss read the reference's whole distributions (distillation), not log-probabilities?"""
        ...

    @property
    def trains_zero_advantage(self) -> bool:
        """Does a token with advantage 0 have a gradient all the same?"""
        ...

    @property
    def needs_whole_trace(self) -> bool:
        """Must the completions of a trace stay in one micro-batch?"""
        ...

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        """Write advantages on all traces of a step. Returns metrics."""
        ...

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        """The weight in the loss of each token of each sequence, from the trained tokens of all sequences."""
        ...

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        """The loss of each token [N], and what to record."""
        ...


class BaseObjective:
    """The usual answers of an `Objective`; a subclass overrides those that its paper answers otherwise."""

    kl: KL | None = None
    entropy_coef: float = 0.0
    needs_group: bool = True
    needs_reward: bool = True
    needs_teacher: bool = False
    needs_pairs: bool = False
    learns_from_samples = True  # constants of the class, and no fields
    learns_from_given = False
    critic: Critic | None = None
    dynamic_sampling_rounds: int = 0
    needs_reference_distribution: bool = False

    @property
    def credit_needs_reference(self) -> bool:
        return self.kl is not None and self.kl.where == "reward"

    def check(self, rollouts: RolloutSettings) -> list[str]:
        return []

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def trains_zero_advantage(self) -> bool:
        return bool(self.entropy_coef or (self.kl is not None and self.kl.where == "loss"))

    @property
    def needs_whole_trace(self) -> bool:
        return False

    def kl_loss(self, tokens: Tokens) -> Tensor | float:
        """[N]: the KL term of each token where it enters the loss, else 0."""
        if self.kl is None or self.kl.where != "loss":
            return 0.0
        return self.kl.loss(tokens.logprobs_N, tokens.reference_N)
