"""Stored answers read in packed passes: against a plain network in float64, one answer at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fakes import mixed_groups, perturb, tiny_decoder, trace_group
from ponder.nets.decoder_with_head import DecoderWithHead, ScoreHead
from ponder.train.packed_reading import answer_logprobs, answer_scores
from ponder.types import Step, Trace, ids
from reference_decoder import plain_hidden, plain_logprobs, weights64


def stored_answers() -> list[Trace]:
    """Groups, one with equal texts, and an answer of two steps with a tool's output between them."""
    twins = trace_group([5, 9], [[7, 8, 2], [7, 8, 2], [7, 2]], id="twins")
    at = twins.add(Step(0, "", ids([11, 12]), np.full(2, -1.0, np.float32), "stop"))
    at = twins.add(Step(at, "", ids([30, 31])))
    twins.add(Step(at, "", ids([13, 2]), np.full(2, -1.0, np.float32), "eos"))
    return [*mixed_groups(tool=False), twins]


@pytest.mark.parametrize("pass_tokens", [1, 40, 10**6])
def test_log_probabilities_match_plain_sums(pass_tokens: int) -> None:
    net, traces = tiny_decoder(scale=0.1), stored_answers()
    w = weights64(net)
    expected = []
    for trace in traces:
        for leaf in trace.answers():
            own = [i for i in trace.path(leaf)[1:] if trace.steps[i].sampled]
            parts = [
                plain_logprobs(net, w, trace.token_ids(i).tolist(), len(trace.steps[i].token_ids)).sum() for i in own
            ]
            expected.append(float(torch.stack(parts).sum().detach()))
    found = answer_logprobs(net, traces, pass_tokens)
    assert [len(own) for own in found] == [len(trace.answers()) for trace in traces]
    assert [x for own in found for x in own] == pytest.approx(expected, abs=1e-4)
    assert found[-1][0] == found[-1][1] != found[-1][2]


@pytest.mark.parametrize("pass_tokens", [1, 40, 10**6])
def test_scores_match_the_plain_head_at_the_end(pass_tokens: int) -> None:
    head = ScoreHead("outcome", "logit", temperature=1.7)
    net = perturb(DecoderWithHead.from_decoder(tiny_decoder(scale=0.1), head), 0.05, seed=4)
    assert isinstance(net, DecoderWithHead)
    w, traces = weights64(net), stored_answers()
    expected = [
        float(
            torch.sigmoid(
                plain_hidden(w, net.config, t.token_ids(i).tolist())[-1] @ w["score.weight"][0] / 1.7
            ).detach()
        )
        for t in traces
        for i in t.answers()
    ]
    found = [x for own in answer_scores(net, traces, pass_tokens) for x in own]
    assert found == pytest.approx(expected, abs=1e-5)
