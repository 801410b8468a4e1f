"""The critic of an actor-critic objective: its loss, and a learner whose network reads one value per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train import losses
from ponder.train.learner import Learner
from ponder.train.objective import BaseObjective, Critic, ObjectiveState, Stats, Tokens
from ponder.train.readouts import ValueReadout
from ponder.types import Trace

CRITIC_METRICS = (
    "loss",
    "grad_norm",
    "lr",
    "skipped_steps",
    "oom_retries",
)  # of the critic's step, in the run's metrics


@dataclass(frozen=True)
class CriticObjective(BaseObjective):
    """Regress each token's return, over the same tokens as the policy's loss."""

    value_clip: float | None = 0.2

    @property
    def trains_zero_advantage(self) -> bool:
        return True

    def credit(self, traces: Sequence[Trace], scorer: str, state: ObjectiveState) -> dict[str, float]:
        return {}

    def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
        return losses.token_mean(lengths)

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        old_N, returns_N = tokens.notes["values"], tokens.notes["returns"]
        return losses.value_loss(tokens.values_N, old_N, returns_N, self.value_clip), {}


def make_critic_learner(net: Decoder, critic: Critic, **compute: Any) -> Learner:
    """A learner of values. A network without a head is copied and gets one whose values begin at 0; a trained value or
    reward model goes on from its own. `compute`: keyword arguments of `Learner`."""
    with_head = net if isinstance(net, DecoderWithHead) else DecoderWithHead.from_decoder(net)
    return Learner(with_head, CriticObjective(critic.value_clip), critic.optimizer, readout=ValueReadout(), **compute)


def write_values(learner: Learner, traces: Sequence[Trace]) -> None:
    """Note the value before each of the policy's tokens beside it."""
    learner.write_notes(traces, [s for t in traces for s in t.steps if s.sampled], "values", learner.net)


def critic_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a critic's step under the names they have beside the policy's."""
    return {f"critic/{name}": metrics[name] for name in CRITIC_METRICS if name in metrics}
