"""A learner of reward models: its network reads numbers at tokens where a policy's reads log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.pack import pack, split_microbatches
from ponder.train.readouts import LOGPROB_OFFSET_NOTE
from ponder.train.reward_objectives import TARGET_NOTE, RewardObjective, RewardTarget
from ponder.types import Trace


def make_reward_learner(
    net: DecoderWithHead | DecoderWithReference,
    objective: RewardObjective,
    optimizer: AdamW = AdamW(),
    **compute: Any,
) -> Learner:
    """`compute`: keyword arguments of `Learner`; `head_only=True` trains the head and nothing else."""
    reference = net.reference if isinstance(net, DecoderWithReference) else None
    return Learner(net, objective, optimizer, readout=objective.readout, reference=reference, **compute)


def predict(
    learner: Learner, traces: Sequence[Trace]
) -> Iterator[tuple[Trace, list[RewardTarget], NDArray[np.float64]]]:
    """For each credited trace its targets, and the numbers [M, O] that the network reads at these M places."""
    learner.write_reference_logprobs(traces)
    notes = (TARGET_NOTE,) if learner.reference is None else (TARGET_NOTE, "reference")
    if isinstance(learner.whole_net, DecoderWithHead) and learner.whole_net.head.logprob_weights:
        notes = (*notes, LOGPROB_OFFSET_NOTE)
    work = learner.plan(traces)
    for part in split_microbatches(work, learner.max_tokens_per_microbatch, keep_traces_whole=True):
        batch = pack(part, learner.net.device, notes)
        with torch.no_grad():
            numbers = learner.readout.loss_inputs(learner, batch).values_N.cpu().double().numpy()  # MPS: no float64
        target = batch.notes[TARGET_NOTE].cpu().numpy()
        tree = batch.tree_N.cpu().numpy()
        for number, work_of in enumerate(part):
            at = np.flatnonzero((tree == number) & ~np.isnan(target))
            trained = [i for chain in work_of.chains for i in chain.steps]
            steps = [i for i in trained if not np.isnan(work_of.trace.steps[i].notes[TARGET_NOTE][-1])]
            targets = [(i, float(target[n])) for i, n in zip(steps, at, strict=True)]
            yield work_of.trace, targets, numbers[at]
