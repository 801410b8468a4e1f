"""A learner of reward models: its network reads numbers at tokens where a policy's reads log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.pack import pack, split_microbatches
from ponder.train.readouts import RewardReadout
from ponder.train.reward_objectives import TARGET_NOTE, RewardObjective, RewardTarget
from ponder.types import Trace


def make_reward_learner(
    net: DecoderWithHead, objective: RewardObjective, optimizer: AdamW = AdamW(), **compute: Any
) -> Learner:
    """`compute`: keyword arguments of `Learner`; `head_only=True` trains the head and nothing else."""
    return Learner(net, objective, optimizer, readout=RewardReadout(), **compute)


def predict(
    learner: Learner, traces: Sequence[Trace]
) -> Iterator[tuple[Trace, list[RewardTarget], NDArray[np.float64]]]:
    """For each credited trace its targets, and the numbers [M, O] that the network reads at these M places."""
    work = learner.plan(traces)
    for part in split_microbatches(work, learner.max_tokens_per_microbatch, keep_traces_whole=True):
        batch = pack(part, learner.net.device, (TARGET_NOTE,))
        with torch.no_grad():
            numbers = learner.read(learner.net, batch).cpu().double().numpy()  # MPS has no float64
        target = batch.notes[TARGET_NOTE].cpu().numpy()
        tree = batch.tree_N.cpu().numpy()
        for number, work_of in enumerate(part):
            at = np.flatnonzero((tree == number) & ~np.isnan(target))
            steps = [i for chain in work_of.chains for i in chain.steps]
            targets = [(i, float(target[n])) for i, n in zip(steps, at, strict=True)]
            yield work_of.trace, targets, numbers[at]
