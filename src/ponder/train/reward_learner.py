"""The judge's learner: its network reads numbers where the policy's reads log-probabilities, each at its token itself.

Shapes: N trained tokens of a micro-batch, M places among them at which a number is read, O numbers of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup
from ponder.train.learner import Learner
from ponder.train.objective import Tokens
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.pack import PackedBatch, pack, split_microbatches
from ponder.train.reward_objectives import TARGET_NOTE, RewardObjective, RewardTarget
from ponder.types import Step, Trace


class RewardLearner(Learner):
    """Over a network that reads numbers. `head_only`: all of it but the head stays as it is."""

    net: DecoderWithHead
    objective: RewardObjective

    def __init__(
        self,
        net: DecoderWithHead,
        objective: RewardObjective,
        optimizer: AdamW = AdamW(),
        *,
        max_tokens_per_microbatch: int = 0,
        frozen_layers: int = 0,
        head_only: bool = False,
        gradient_checkpointing: bool = False,
        process_group: DataParallelGroup = SINGLE_PROCESS,
    ) -> None:
        super().__init__(
            net, objective, optimizer, max_tokens_per_microbatch=max_tokens_per_microbatch, frozen_layers=frozen_layers, gradient_checkpointing=gradient_checkpointing,
            process_group=process_group,
        )  # fmt: skip
        if head_only:
            net.requires_grad_(False)
        net.score.requires_grad_(True)  # also where only adapters learn besides
        self.master_weights = MasterWeights(net, optimizer)

    def predict(self, traces: Sequence[Trace]) -> Iterator[tuple[Trace, list[RewardTarget], NDArray[np.float64]]]:
        """Of credited traces: each one's places, and the numbers [M, O] that are read there."""
        for part in split_microbatches(self._plan(traces), self.max_tokens_per_microbatch, keep_traces_whole=True):
            batch = pack(part, self.net.device, (TARGET_NOTE,))
            with torch.no_grad():
                numbers = self.read(self.net, batch).cpu().double().numpy()  # MPS has no float64
            target = batch.notes[TARGET_NOTE].cpu().numpy()
            tree = batch.tree_N.cpu().numpy()
            for number, work in enumerate(part):
                at = np.flatnonzero((tree == number) & ~np.isnan(target))
                steps = [i for chain in work.chains for i in chain.steps]
                places = [(i, float(target[n])) for i, n in zip(steps, at, strict=True)]
                yield work.trace, places, numbers[at]

    def _tokens(self, batch: PackedBatch) -> Tokens:
        numbers_NO = self.read(self.net, batch)
        none = numbers_NO.new_zeros(0)
        return Tokens(batch.advantage_N, batch.sequence_N, batch.tree_N, none, none, none, numbers_NO, batch.notes)

    def _note_old(self, traces: Sequence[Trace], steps: Sequence[Step]) -> None:
        """There is no ratio."""

    def read(self, net: object, batch: PackedBatch) -> Tensor:
        """[N, O]."""
        assert isinstance(net, DecoderWithHead)
        return net.raw_scores(self._hidden(net, replace(batch, source_N=token_positions(batch))))


def token_positions(batch: PackedBatch) -> Tensor:
    """[N]: where each trained token itself lies; the packer says where the one before it does."""
    source = batch.source_N.cpu().numpy()
    alone = _single_token_segments(batch) if any(len(step.token_ids) == 1 for step in batch.steps) else {}
    out, at = np.empty_like(source), 0
    for step in batch.steps:
        here = source[at : at + len(step.token_ids)]
        if len(here) > 1:
            out[at : at + len(here)] = np.append(here[1:], here[-1] + 1)
        else:
            out[at] = alone[int(here[0]), int(step.token_ids[0])]
        at += len(here)
    return torch.from_numpy(out).to(batch.source_N.device)


def _single_token_segments(batch: PackedBatch) -> dict[tuple[int, int], int]:
    """Where runs of one token lie, by the place of the token before and by the token: equal ones have equal states."""
    starts = np.cumsum([0, *batch.lengths])
    ids = batch.ids_T.cpu().numpy()
    runs: Iterable[tuple[int, int, int]] = zip(range(len(batch.parents)), batch.lengths, batch.parents, strict=True)
    return {
        (int(starts[parent + 1]) - 1, int(ids[starts[s]])): int(starts[s])
        for s, length, parent in runs
        if length == 1 and parent >= 0
    }
