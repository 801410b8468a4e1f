"""Continuous batching against a plain loop: the whole sequence again for every token, in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fakes import CONFIGS, group, plain_logits, plain_logprobs, tiny, weights64
from ponder.engine import batch, rows
from ponder.engine.batch import Request, Row
from ponder.errors import ModelError
from ponder.nets.decoder import Decoder
from ponder.train import pack
from ponder.train.learner import Learner
from ponder.train.objective import NO_KL
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, ids

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [8, 60, 7], [12, 12, 50, 9, 30, 4, 61, 22]]


def request(prompt: Sequence[int], n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 12, **sampling}), n, seed)


def run(net: Decoder, requests: Sequence[Request], eos: Sequence[int] = (), max_rows: int = 64) -> list[list[Row]]:
    return batch.run(net, requests, frozenset(eos), lambda row: False, max_rows)


def written(groups: list[list[Row]]) -> list[list[list[int]]]:
    return [[row.token_ids for row in rows] for rows in groups]


def plain_greedy(net: Decoder, prompt: Sequence[int], count: int, eos: Sequence[int] = ()) -> list[int]:
    w = {n: p.detach() for n, p in weights64(net).items()}  # no graph: it would only cost time
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(plain_logits(w, net.config, tokens)[-1].argmax()))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


@functools.cache
def greedy_by_kind(kind: str) -> list[list[int]]:
    return [plain_greedy(tiny(kind), p, 12) for p in PROMPTS]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_greedy_equals_a_plain_loop(kind: str) -> None:
    net = tiny(kind)
    expected = greedy_by_kind(kind)
    for max_rows in (64, 3, 1):
        found = run(net, [request(p, temperature=0.0) for p in PROMPTS], max_rows=max_rows)
        assert written(found) == [[e] for e in expected]
    assert len({tuple(e) for e in expected}) == len(PROMPTS) and max(len(set(e)) for e in expected) > 3


@pytest.mark.parametrize("mistake", ["window", "position", "stale"])
def test_a_broken_cache_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "window":
        real = rows.Rows.__call__
        monkeypatch.setattr(rows.Rows, "__call__", lambda *a, scale, window: real(*a, scale=scale, window=None))
    elif mistake == "position":
        advance = rows.Rows.advance

        def late(self: rows.Rows) -> None:
            advance(self)
            self._back = self._back - 1

        monkeypatch.setattr(rows.Rows, "advance", late)
    else:  # rows that leave take the wrong cache along
        monkeypatch.setattr(rows.Rows, "keep", lambda self, alive: _wrong_keep(self, alive))
    with pytest.raises(AssertionError):
        test_greedy_equals_a_plain_loop("window") if mistake != "stale" else test_a_row_that_leaves_moves_no_other()


def _wrong_keep(self: rows.Rows, alive: torch.Tensor) -> None:
    self.lengths_B = self.lengths_B[alive]
    self.kv = [kv[:, : len(alive)] for kv in self.kv]


def test_a_row_that_leaves_moves_no_other() -> None:
    net = tiny()
    wanted = [3, 12, 1, 9, 5]
    found = run(net, [request(p, temperature=0.0, max_tokens=n) for p, n in zip(PROMPTS, wanted, strict=True)])
    assert written(found) == [[plain_greedy(net, p, n)] for p, n in zip(PROMPTS, wanted, strict=True)]
    assert [r.stop for g in found for r in g] == ["length"] * 5


def test_long_sequences_cross_the_steps_in_which_the_cache_grows() -> None:
    net = tiny("window")
    edge = rows._GROW
    for length in (edge - 2, edge - 1, edge, edge + 1):
        prompt = np.random.default_rng(length).integers(3, 64, length).tolist()
        (found,) = run(net, [request(prompt, temperature=0.0, max_tokens=4)])
        assert found[0].token_ids == plain_greedy(net, prompt, 4)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_samples_do_not_depend_on_their_company(kind: str) -> None:
    net = tiny(kind)
    requests = [request(p, n=3, seed=i, temperature=1.2) for i, p in enumerate(PROMPTS)]
    together = run(net, requests)
    assert len({tuple(t) for g in written(together) for t in g}) == 15, "the n of a group differ"
    alone = [run(net, [r])[0] for r in requests]
    backwards = run(net, requests[::-1])[::-1]
    crowded = run(net, requests, max_rows=4)
    for other in (alone, backwards, crowded):
        assert written(other) == written(together)
        for a, b in zip(together, other, strict=True):
            for x, y in zip(a, b, strict=True):
                assert np.allclose(x.logprobs, y.logprobs, atol=1e-5)
    other_seed = run(net, [request(PROMPTS[0], n=3, seed=99, temperature=1.2)])
    assert written(other_seed)[0] != written(together)[0]


def test_a_larger_group_begins_with_the_smaller() -> None:
    net = tiny()
    few, many = (run(net, [request([7, 8], n=n, seed=4)])[0] for n in (2, 6))
    assert [r.token_ids for r in many[:2]] == [r.token_ids for r in few]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7])
def test_more_requests_than_rows(max_rows: int) -> None:
    """Every continuation comes back, in its place, and no more rows than allowed are in flight."""
    net = tiny()
    requests = [request(PROMPTS[i % 5], n=1 + i % 4, seed=i, max_tokens=1 + i % 6) for i in range(9)]
    most: list[int] = []
    real = rows.Rows.add

    class Counting(rows.Rows):
        def add(self, *args: Any) -> None:
            real(self, *args)
            most.append(len(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "Rows", Counting)
        found = run(net, requests, max_rows=max_rows)
    assert max(most) <= max_rows
    assert written(found) == written(run(net, requests, max_rows=1000))
    for i, rows_ in enumerate(found):
        assert [(r.request, r.number) for r in rows_] == [(i, j) for j in range(requests[i].n)]


def test_prompts_larger_than_a_prefill_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_PREFILL_TOKENS", 6)
    net = tiny()
    found = run(net, [request(p, temperature=0.0, max_tokens=3) for p in PROMPTS])
    assert written(found) == [[plain_greedy(net, p, 3)] for p in PROMPTS]


def test_progress_counts_every_token_once() -> None:
    told: list[int] = []
    requests = [request(PROMPTS[i % 5], n=2, seed=i, max_tokens=2 + 3 * (i % 3)) for i in range(8)]
    found = batch.run(tiny(), requests, frozenset(), lambda row: False, 5, told.append)
    assert sum(told) == sum(len(r.token_ids) for g in found for r in g)


# when a row ends


def test_end_of_sequence_is_kept_and_ends() -> None:
    net = tiny()
    free = greedy_by_kind("llama")[1]
    eos = free[4]
    (found,) = run(net, [request(PROMPTS[1], temperature=0.0)], eos=[eos])
    first = free.index(eos)
    assert found[0].token_ids == free[: first + 1] and found[0].stop == "eos"
    assert len(found[0].logprobs) == first + 1, "EOS has its log-probability too"
    (one,) = run(net, [request(PROMPTS[1], temperature=0.0, max_tokens=first + 1)], eos=[eos])
    assert one[0].stop == "eos", "an end at the last token of the budget is an end"


def test_stop_tokens_and_the_budget() -> None:
    net = tiny()
    free = greedy_by_kind("llama")[1]
    at = free.index(free[5])
    (found,) = run(net, [request(PROMPTS[1], temperature=0.0, stop_tokens=(free[5],))])
    assert found[0].token_ids == free[: at + 1] and found[0].stop == "stop"
    (short,) = run(net, [request(PROMPTS[1], temperature=0.0, max_tokens=3)])
    assert short[0].token_ids == free[:3] and short[0].stop == "length"


def test_the_stop_test_sees_the_newest_token() -> None:
    net = tiny()
    seen: list[list[int]] = []

    def after_four(row: Row) -> bool:
        seen.append(list(row.token_ids))
        return len(row.token_ids) == 4

    (found,) = batch.run(net, [request(PROMPTS[1], temperature=0.0)], frozenset(), after_four, 8)
    assert found[0].stop == "stop" and len(found[0].token_ids) == 4
    assert [len(s) for s in seen] == [1, 2, 3, 4]


# what the sampler says of its tokens is what the learner computes (mistakes 5 and 12)


@pytest.mark.parametrize(("kind", "heat"), [("llama", 1.0), ("llama", 0.7), ("window", 0.7), ("gemma", 1.0)])
def test_sampled_logprobs_are_the_learner_s(kind: str, heat: float) -> None:
    net = tiny(kind)
    requests = [request(p, n=4, seed=i, temperature=heat) for i, p in enumerate(PROMPTS)]
    found = run(net, requests, eos=[2], max_rows=6)
    traces = [group(p, [r.token_ids for r in rows_]) for p, rows_ in zip(PROMPTS, found, strict=True)]
    for trace, rows_ in zip(traces, found, strict=True):
        for step, row in zip(trace.steps[1:], rows_, strict=True):
            step.logprobs = np.asarray(row.logprobs, np.float32)
            step.advantages = np.ones(len(row.token_ids), np.float32)
    learner = Learner(net, GRPO(kl=NO_KL), temperature=heat)
    packed = pack.pack(pack.plan(traces, GRPO().weigh, False), torch.device("cpu"))
    with torch.no_grad():
        learned = learner.read(net, packed)
    assert float((learned - packed.sampled_N).abs().max()) < 1e-5
    learner.temperature = 1.4  # the mistake: another temperature in the learner
    with torch.no_grad():
        assert float((learner.read(net, packed) - packed.sampled_N).abs().max()) > 0.1

    w = {n: p.detach() for n, p in weights64(net).items()}
    row = found[1][0]
    exact = plain_logprobs(net, w, [*PROMPTS[1], *row.token_ids], len(row.token_ids), heat)
    assert np.allclose(row.logprobs, exact, atol=1e-5)


def test_greedy_says_the_model_s_own_probability() -> None:
    net = tiny()
    (found,) = run(net, [request(PROMPTS[1], temperature=0.0)])
    w = {n: p.detach() for n, p in weights64(net).items()}
    exact = plain_logprobs(net, w, [*PROMPTS[1], *found[0].token_ids], 12)
    assert np.allclose(found[0].logprobs, exact, atol=1e-5)


def test_damaged_weights_are_named() -> None:
    net = tiny()
    with torch.no_grad():
        net.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        run(net, [request(p) for p in PROMPTS])


def test_new_weights_are_used_at_once() -> None:
    """Nothing of the old weights is cached between two runs."""
    net = tiny()
    run(net, [request(PROMPTS[1], temperature=0.0)])
    with torch.no_grad():
        for p, q in zip(net.parameters(), tiny(seed=8).parameters(), strict=True):
            p.copy_(q)
    (found,) = run(net, [request(PROMPTS[1], temperature=0.0)])
    assert found[0].token_ids == plain_greedy(tiny(seed=8), PROMPTS[1], 12)
