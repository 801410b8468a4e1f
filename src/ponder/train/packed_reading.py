"""Read many stored answers in packed passes, as training does: answers to one prompt share its computation.

For scores of thousands of answers at once; a search scores through an engine (`models/head_reader.py`).
Shapes: T tokens of a pass, N tokens that are read, E width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.errors import ModelError
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.nets.tree_attention import make_tree_attention
from ponder.reason.operators.logprob_features import NO_LOGPROBS, features_at
from ponder.train.chunked_lm_head import token_logprobs
from ponder.train.pack import PackedBatch, chains, group_by_trace, pack, split_microbatches
from ponder.train.readouts import token_positions
from ponder.types import Step, Trace

PASS_TOKENS = 16384  # of a forward pass

ReadBatch = Callable[[PackedBatch, Tensor], Tensor]  # what is read of each token, from the hidden states of a pass


def answer_logprobs(net: Decoder, traces: Sequence[Trace], pass_tokens: int = PASS_TOKENS) -> list[list[float]]:
    """The log-probability of each answer of each trace: the sum over the tokens that a model wrote on its path."""

    def read(batch: PackedBatch, hidden_TE: Tensor) -> Tensor:
        hidden_NE = hidden_TE[batch.source_N]
        return token_logprobs(hidden_NE, net.lm_head.weight, batch.target_N, 1.0, net.banned_token)[0]

    return _of_answers(net, traces, read, lambda parts: float(sum(p.sum(dtype=np.float64) for p in parts)), pass_tokens)


def answer_scores(net: DecoderWithHead, traces: Sequence[Trace], pass_tokens: int = PASS_TOKENS) -> list[list[float]]:
    """What a reward model says at the end of each answer of each trace."""

    def read(batch: PackedBatch, hidden_TE: Tensor) -> Tensor:
        return net.head.interpret(net.raw_scores(hidden_TE[token_positions(batch)]))

    numbers = _of_answers(net, traces, read, lambda parts: float(parts[-1][-1]), pass_tokens)
    if not net.head.logprob_weights:
        return numbers
    return [
        [_add_logprobs(net.head, z, trace, i) for z, i in zip(own, trace.answers(), strict=True)]
        for own, trace in zip(numbers, traces, strict=True)
    ]


def _add_logprobs(head: ScoreHead, number: float, trace: Trace, leaf: int) -> float:
    features = features_at(trace, leaf, [-1])
    if features is None:
        raise ModelError(f"{trace.problem.id}: {NO_LOGPROBS}")
    return head.add_logprobs(number, features[0].tolist())


def _of_answers(
    net: Decoder,
    traces: Sequence[Trace],
    read: ReadBatch,
    reduce: Callable[[Sequence[NDArray[np.float32]]], float],
    pass_tokens: int,
) -> list[list[float]]:
    """What is read of the steps of each answer, reduced to one number. Of equal texts one is read."""
    first: list[dict[bytes, int]] = []  # of each trace, by its tokens, the first answer of that text
    for trace in traces:
        first.append({trace.token_ids(i).tobytes(): i for i in reversed(trace.answers())})
    written = [
        {key: _written_steps(trace, i) for key, i in own.items()} for trace, own in zip(traces, first, strict=True)
    ]
    wanted = {id(step) for own in written for steps in own.values() for step in steps}
    values = dict(_read_steps(net, traces, wanted, read, pass_tokens))
    scores = [{key: reduce([values[id(s)] for s in steps]) for key, steps in own.items()} for own in written]
    return [
        [own[trace.token_ids(i).tobytes()] for i in trace.answers()] for trace, own in zip(traces, scores, strict=True)
    ]


@torch.no_grad()
def _read_steps(
    net: Decoder, traces: Sequence[Trace], wanted: set[int], read: ReadBatch, pass_tokens: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """What is read of the tokens of each wanted step, by the step's id."""
    work = group_by_trace((t, chain) for t in traces for chain in chains(t, lambda s: id(s) in wanted))
    compiled = net.device.type == "cuda"
    for part in split_microbatches(work, pass_tokens):
        batch = pack(part, net.device)
        attend = make_tree_attention(batch.lengths, batch.parents, net.config, net.device, net.dtype)
        local_T = net.local_ids(batch.ids_T)
        positions = net.tree_positions(local_T, attend.positions_T, batch.lengths, batch.parents)
        values = read(batch, net(local_T, positions, attend, compiled)).float().cpu().numpy()
        ends = np.cumsum([len(s.token_ids) for s in batch.steps])[:-1]
        yield from ((id(step), own) for step, own in zip(batch.steps, np.split(values, ends), strict=True))


def _written_steps(trace: Trace, leaf: int) -> list[Step]:
    """The steps on the path to an answer that a model wrote; where none was sampled, all of them."""
    path = [trace.steps[i] for i in trace.path(leaf)[1:] if len(trace.steps[i].token_ids)]
    return [step for step in path if step.sampled] or path
