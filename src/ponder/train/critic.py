"""The critic: a learner whose network reads one value per token where the policy's reads log-probabilities.

V(t) is read at the token before t: what is to be expected once everything up to there is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train import losses
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup
from ponder.train.learner import Learner
from ponder.train.objective import BaseObjective, Critic, ObjectiveState, Stats, Tokens
from ponder.train.pack import PackedBatch
from ponder.types import Step, Trace


@dataclass(frozen=True)
class CriticObjective(BaseObjective):
    """The critic's objective: regress each token's return, over the same tokens as the policy's loss."""

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


class CriticLearner(Learner):
    """Made of a network that may be a policy's (its values begin at 0) or a trained value or reward model."""

    net: DecoderWithHead

    def __init__(
        self,
        net: Decoder,
        critic: Critic,
        *,
        max_tokens_per_microbatch: int = 0,
        epochs_per_batch: int = 1,
        minibatches: int = 1,
        frozen_layers: int = 0,
        gradient_checkpointing: bool = False,
        process_group: DataParallelGroup = SINGLE_PROCESS,
    ) -> None:
        self.warmup_steps = critic.warmup_steps
        valued = net if isinstance(net, DecoderWithHead) else DecoderWithHead.from_decoder(net)
        super().__init__(
            valued, CriticObjective(critic.value_clip), critic.optimizer,
            max_tokens_per_microbatch=max_tokens_per_microbatch, epochs_per_batch=epochs_per_batch, minibatches=minibatches, frozen_layers=frozen_layers,
            gradient_checkpointing=gradient_checkpointing, process_group=process_group,
        )  # fmt: skip

    def write_values(self, traces: Sequence[Trace]) -> None:
        """Write the value before each of the policy's tokens beside it."""
        self._note(traces, [s for t in traces for s in t.steps if s.sampled], "values", self.net)

    def step(self, traces: Sequence[Trace], *args: object) -> dict[str, float]:
        told = super().step(traces, *args)  # type: ignore[arg-type]
        kept = ("loss", "grad_norm", "lr", "skipped_steps", "oom_retries")
        return {f"critic/{name}": told[name] for name in kept if name in told}

    def _tokens(self, batch: PackedBatch) -> Tokens:
        values_N = self.read(self.net, batch)
        none = values_N.new_zeros(0)
        return Tokens(batch.advantage_N, batch.sequence_N, batch.tree_N, none, none, none, values_N, batch.notes, None)

    def _note_old(self, traces: Sequence[Trace], steps: Sequence[Step]) -> None:
        """A value's loss has no ratio."""

    def read(self, net: Decoder, batch: PackedBatch) -> Tensor:
        assert isinstance(net, DecoderWithHead)
        return net.values(self._hidden(net, batch))
