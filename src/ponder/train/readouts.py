"""A readout: what a learner reads from hidden states and hands to the loss. The learner does not know which one it has.

A policy reads log-probabilities, a critic one value before each token, a reward model its head's numbers at each token,
an implicit one the log-ratio to its reference.
Shapes: N trained tokens of a micro-batch, O numbers of a head, E width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train.chunked_lm_head import divergence, token_logprobs
from ponder.train.losses import sum_per_sequence
from ponder.train.objective import Tokens
from ponder.train.pack import PackedBatch

if TYPE_CHECKING:
    from ponder.train.learner import Learner

LM_LOGPROBS_NOTE = "lm_logprobs"  # the note with the log-probabilities that a reward model reads beside its numbers
LOGPROB_OFFSET_NOTE = "logprob_offset"  # the note with what sampled log-probabilities add to a head's number
_MIN_TEMPERATURE = 1e-30  # the smallest number to divide by in float32


class Readout(Protocol):
    @property
    def needs_old_logprobs(self) -> bool:
        """Does the loss compare with the weights from before the first of several optimiser steps?"""
        ...

    def read(self, learner: Learner, net: Decoder, batch: PackedBatch) -> Tensor:
        """What is read of each trained token: [N], or [N, O]."""
        ...

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        """The trained tokens of a micro-batch as the loss sees them, with gradient."""
        ...


@dataclass(frozen=True)
class LogprobReadout:
    """A policy's log-probabilities at the temperature of sampling."""

    temperature: float = 1.0
    needs_old_logprobs = True

    def __post_init__(self) -> None:
        if not _MIN_TEMPERATURE <= self.temperature <= 1 / _MIN_TEMPERATURE:
            raise UsageError(
                f"temperature is {self.temperature}; log-probabilities need one that is positive and finite"
            )

    def read(self, learner: Learner, net: Decoder, batch: PackedBatch) -> Tensor:
        return self._read(learner, net, batch)[0]

    def _read(self, learner: Learner, net: Decoder, batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities and entropies [N], and the hidden states that this rank computed."""
        hidden_nE, rows = learner.own_hidden_states(net, batch)
        targets = batch.target_N if rows is None else batch.target_N[rows]
        read = token_logprobs(hidden_nE, net.lm_head.weight, targets, self.temperature, net.banned_token)
        logprobs_N, entropy_N = (learner.all_rows(values, rows, batch) for values in read)
        return logprobs_N, entropy_N, hidden_nE

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        net = learner.net
        logprobs_N, entropy_N, hidden_nE = self._read(learner, net, batch)
        old_N = batch.notes.get("old")

        def reference_divergence(mix: float) -> Tensor:
            reference = learner.reference
            assert reference is not None
            with torch.no_grad(), learner.without_adapters_if_reference(reference):
                teacher_nE, rows = learner.own_hidden_states(reference, batch)
            heads = net.lm_head.weight, reference.lm_head.weight
            found = divergence(hidden_nE, heads[0], teacher_nE, heads[1], self.temperature, mix, net.banned_token)
            return learner.all_rows(found, rows, batch)

        return Tokens(
            batch.advantage_N, batch.sequence_N, batch.tree_N, logprobs_N, entropy_N,
            logprobs_N.detach() if old_N is None else old_N,
            logprobs_N.new_zeros(0), batch.notes, reference_divergence,
        )  # fmt: skip


@dataclass(frozen=True)
class ValueReadout:
    """A critic's values. V(t) is read at the token before t: the return to expect once all up to there is written."""

    needs_old_logprobs = False

    def read(self, learner: Learner, net: Decoder, batch: PackedBatch) -> Tensor:
        assert isinstance(net, DecoderWithHead)
        return net.values(learner.hidden_states(net, batch))

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        return _head_tokens(self.read(learner, learner.net, batch), batch)


@dataclass(frozen=True)
class RewardReadout:
    """A reward model's numbers [N, O], each read at its token itself, with what sampled log-probabilities add where
    that is noted; `with_logprobs` also log-probabilities [N] of the tokens, from the same pass."""

    with_logprobs: bool = False
    needs_old_logprobs = False

    def read(self, learner: Learner, net: Decoder, batch: PackedBatch) -> Tensor:
        assert isinstance(net, DecoderWithHead)
        return net.raw_scores(learner.hidden_states(net, replace(batch, source_N=token_positions(batch))))

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        net = learner.net
        if not self.with_logprobs:
            return _head_tokens(_add_offset(self.read(learner, net, batch), batch), batch)
        assert isinstance(net, DecoderWithHead)
        both_2N = torch.cat([token_positions(batch), batch.source_N])
        own_NE, before_NE = learner.hidden_states(net, replace(batch, source_N=both_2N)).chunk(2)
        logprobs_N, _ = token_logprobs(before_NE, net.lm_head.weight, batch.target_N, 1.0, net.banned_token)
        passes = 3 if torch.is_grad_enabled() else 1  # the gradient is two products more
        learner.flops += passes * 2.0 * before_NE.shape[0] * net.lm_head.weight.numel()
        tokens = _head_tokens(_add_offset(net.raw_scores(own_NE), batch), batch)
        tokens.notes = {**tokens.notes, LM_LOGPROBS_NOTE: logprobs_N}
        return tokens


@dataclass(frozen=True)
class LogRatioReadout(LogprobReadout):
    """An implicit reward model's number [N, 1]: beta times the sum of log pi - log pi_ref over all trained tokens of
    the answer, the same at each of them. The reference's log-probabilities are noted beside the tokens."""

    beta: float = 1.0
    needs_old_logprobs = False

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        logprobs_N = self.read(learner, learner.net, batch)
        ratio_S = sum_per_sequence(logprobs_N - batch.notes["reference"], batch.sequence_N)
        return _head_tokens((self.beta * ratio_S)[batch.sequence_N][:, None], batch)


@dataclass(frozen=True)
class PrefixLogRatioReadout(LogRatioReadout):
    """An implicit reward model's number of a prefix [N, 1]: beta times the sum of log pi - log pi_ref over the answer's
    trained tokens up to here."""

    def loss_inputs(self, learner: Learner, batch: PackedBatch) -> Tokens:
        ratio_N = self.read(learner, learner.net, batch) - batch.notes["reference"]
        return _head_tokens((self.beta * cumulative_per_sequence(ratio_N, batch.sequence_N))[:, None], batch)


def cumulative_per_sequence(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """At each token the sum over its sequence's tokens up to it. The tokens of a sequence lie side by side."""
    whole_S = sum_per_sequence(values_N, sequence_N)
    return values_N.cumsum(0) - (whole_S.cumsum(0) - whole_S)[sequence_N]


def _add_offset(numbers_NO: Tensor, batch: PackedBatch) -> Tensor:
    offset_N = batch.notes.get(LOGPROB_OFFSET_NOTE)
    return numbers_NO if offset_N is None else numbers_NO + offset_N[:, None].to(numbers_NO)


def _head_tokens(values_N: Tensor, batch: PackedBatch) -> Tokens:
    none = values_N.new_zeros(0)
    return Tokens(batch.advantage_N, batch.sequence_N, batch.tree_N, none, none, none, values_N, batch.notes)


def token_positions(batch: PackedBatch) -> Tensor:
    """[N]: where each trained token itself lies. The packer gives the position of the token before it."""
    source = batch.source_N.cpu().numpy()
    single = _single_token_segments(batch) if any(len(step.token_ids) == 1 for step in batch.steps) else {}
    out, at = np.empty_like(source), 0
    for step in batch.steps:
        here = source[at : at + len(step.token_ids)]
        if len(here) > 1:
            out[at : at + len(here)] = np.append(here[1:], here[-1] + 1)
        else:
            out[at] = single[int(here[0]), int(step.token_ids[0])]
        at += len(here)
    return torch.from_numpy(out).to(batch.source_N.device)


def _single_token_segments(batch: PackedBatch) -> dict[tuple[int, int], int]:
    """Positions of segments of one token, by the position of the token before and the token. Equal ones have equal
    hidden states."""
    starts = np.cumsum([0, *batch.lengths])
    ids = batch.ids_T.cpu().numpy()
    segments: Iterable[tuple[int, int, int]] = zip(range(len(batch.parents)), batch.lengths, batch.parents, strict=True)
    return {
        (int(starts[parent + 1]) - 1, int(ids[starts[s]])): int(starts[s])
        for s, length, parent in segments
        if length == 1 and parent >= 0
    }
