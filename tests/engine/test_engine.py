"""The engine against a plain loop: the whole sequence again for every token, in float64."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fakes import CONFIGS, run_async, tiny_decoder, trace_group
from ponder.engine import engine, kv_cache, torch_attention
from ponder.engine.cpu_merged_layers import MergedLayersRunner
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError
from ponder.nets.decoder import Decoder
from ponder.train import pack
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO
from ponder.train.readouts import LogprobReadout
from ponder.types import Sampling, ids
from reference_decoder import plain_hidden, plain_logits, plain_logprobs, weights64
from sizes import NIGHTLY

PROMPTS = [[5], [9, 3, 22, 40, 17], [33] * 11, [8, 60, 7], [12, 12, 50, 9, 30, 4, 61, 22]]


def request(prompt: Sequence[int], n: int = 1, seed: int = 0, **sampling: Any) -> Request:
    return Request(ids(prompt), Sampling(**{"max_tokens": 12, **sampling}), n, seed)


def generate_together(machine: Engine, requests: Sequence[Request]) -> list[list[SequenceState]]:
    async def all_of_them() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*(machine.generate(r) for r in requests)))

    return run_async(all_of_them())


def run(
    net: Decoder,
    requests: Sequence[Request],
    eos: Sequence[int] = (),
    max_rows: int = 64,
    slots: int = 4000,
    **more: Any,
) -> list[list[SequenceState]]:
    room = slots * kv_cache.bytes_per_token(net.config, net.dtype)
    machine = Engine(net, frozenset(eos), max_num_seqs=max_rows, cache_bytes=room, **more)
    result = generate_together(machine, requests)
    machine.close()
    return result


def token_lists(groups: list[list[SequenceState]]) -> list[list[list[int]]]:
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
    return [plain_greedy(tiny_decoder(kind), p, 12) for p in PROMPTS]


@pytest.fixture(params=["together", "products", "apart"])
def attention_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What rows share is read with what they read alone, in one call or in two products; or apart from it."""
    monkeypatch.setattr(torch_attention, "_MKL_BATCHED_MATMUL", request.param == "products")
    if request.param == "apart":
        monkeypatch.setattr(torch_attention, "_MAX_INLINE_BYTES", -1)
    return str(request.param)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_greedy_equals_plain_loop(kind: str, attention_path: str) -> None:
    net = tiny_decoder(kind)
    expected = greedy_by_kind(kind)
    for max_rows in (64, 3, 1) if attention_path == "together" else (64, 3):  # of one row nothing is shared
        result = run(net, [request(p, temperature=0.0) for p in PROMPTS], max_rows=max_rows)
        assert token_lists(result) == [[e] for e in expected]
    assert len({tuple(e) for e in expected}) == len(PROMPTS) and max(len(set(e)) for e in expected) > 3


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_greedy_equals_plain_loop_when_memory_is_short(kind: str, attention_path: str) -> None:
    """Chunks of two tokens, and room for little more than the longest alone: rows step back and come again."""
    net = tiny_decoder(kind)
    requests = [request(p, n=2, temperature=0.0) for p in PROMPTS]
    for slots, chunk in ((24, 2), (60, 7)) if NIGHTLY or attention_path == "together" else ((60, 7),):
        result = run(net, requests, slots=slots, prefill_chunk_tokens=chunk)
        assert token_lists(result) == [[e, e] for e in greedy_by_kind(kind)]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_segments_are_padded_only_within_groups(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long prompt, many short ones and groups with a common beginning: read piece by piece, to the same result."""
    monkeypatch.setattr(torch_attention, "_MAX_PADDED_SCORES", 0)
    monkeypatch.setattr(torch_attention, "_MAX_INLINE_BYTES", -1)
    made: list[torch_attention.DecodeAttention] = []
    real = torch_attention.DecodeAttention.__init__

    def spy(self: torch_attention.DecodeAttention, *given: Any) -> None:
        real(self, *given)
        made.append(self)

    monkeypatch.setattr(torch_attention.DecodeAttention, "__init__", spy)
    net = tiny_decoder(kind)
    prompts = [[33] * 40, *([8, 60, 7 + i] for i in range(4)), [8, 60, *range(3, 20)]]
    result = run(net, [request(p, n=1 if i < 5 else 6, temperature=0.0) for i, p in enumerate(prompts)])
    assert [g[0].token_ids for g in result] == [plain_greedy(net, p, 12) for p in prompts]
    most = max(made, key=lambda d: len(d.lengths))
    assert len(most.lengths) == 11 and len(most.shared) >= 2
    assert most.lengths.max() < 30, "the long prompt is no tail"
    for runs in most.shared:
        real_scores = int((runs.is_key_NP.sum(1) * torch.bincount(runs.entries // runs.rows_NR.shape[1])).sum())
        assert runs.rows_NR.numel() * runs.slots_NP.shape[1] <= 2 * real_scores


@pytest.mark.usefixtures("attention_path")
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_mixed_batches_prefill_and_decode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pass: each who comes finds others writing, and each text is what it is alone."""
    net, sizes = tiny_decoder(kind), list[tuple[int, int]]()
    real = torch_attention.MixedAttention.__init__

    def spy(
        self: torch_attention.MixedAttention,
        decoding: torch_attention.DecodeAttention,
        filling: torch_attention.PrefillAttention,
    ) -> None:
        real(self, decoding, filling)
        sizes.append((len(decoding.lengths), len(filling.tokens)))

    monkeypatch.setattr(torch_attention.MixedAttention, "__init__", spy)
    machine = Engine(
        net, max_num_seqs=64, cache_bytes=4000 * kv_cache.bytes_per_token(net.config, net.dtype), prefill_chunk_tokens=3
    )

    begun = [asyncio.Event() for _ in range(len(PROMPTS) + 1)]
    begun[0].set()

    async def one(i: int, prompt: list[int]) -> list[SequenceState]:
        await begun[i].wait()  # the one before has written something
        async for word in machine.stream(request(prompt, n=2, temperature=0.0)):
            begun[i + 1].set()
            if isinstance(word, list):
                return word
        raise AssertionError("no rows came")

    async def all_of_them() -> list[list[SequenceState]]:
        texts = [one(i, p) for i, p in enumerate(PROMPTS)]
        reading = machine.read_hidden_states(ids(PROMPTS[-1]))
        *rows, hidden = await asyncio.gather(*texts, reading)
        text = plain_hidden(weights64(net), net.config, PROMPTS[-1])
        assert torch.allclose(hidden.double(), text, atol=1e-4)
        return rows

    assert token_lists(run_async(all_of_them())) == [[e, e] for e in greedy_by_kind(kind)]
    machine.close()
    assert len(sizes) > 3 and max(rows for rows, _ in sizes) > 1 and max(tokens for _, tokens in sizes) == 3


def test_tail_copies_are_bounded_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    net, sizes = tiny_decoder(), list[int]()
    expected = plain_greedy(net, PROMPTS[1], 90)
    monkeypatch.setattr(torch_attention, "_MAX_TAIL_COPY_BYTES", 40_000)
    real = torch_attention.DecodeAttention.__call__

    def spy(self: torch_attention.DecodeAttention, *given: Any, **named: Any) -> Any:
        out = real(self, *given, **named)
        sizes.append(sum(x.nbytes for kept in self._tail_copies.values() for x in kept))
        return out

    monkeypatch.setattr(torch_attention.DecodeAttention, "__call__", spy)
    machine = Engine(net, cache_bytes=4000 * kv_cache.bytes_per_token(net.config, net.dtype))
    (rows,) = generate_together(machine, [request(PROMPTS[1], n=3, temperature=0.0, max_tokens=90)])
    assert [row.token_ids for row in rows] == [expected] * 3
    assert 0 < max(sizes) <= 40_000 and sizes[-1] == 0, "kept while it is little"
    assert machine._runner is not None and machine._runner._attention is None, "and not for rows that have ended"
    machine.close()


@pytest.mark.parametrize("mistake", ["window", "position", "shared", "merge", "kept"])
def test_broken_attention_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake in ("shared", "merge"):
        monkeypatch.setattr(torch_attention, "_MAX_INLINE_BYTES", -1)
    call, tensors = torch_attention.DecodeAttention.__call__, torch_attention.DecodeAttention._update_tensors
    if mistake == "window":
        monkeypatch.setattr(
            torch_attention.DecodeAttention, "__call__", lambda *a, scale, window: call(*a, scale=scale, window=None)
        )
    elif mistake == "position":

        def late(self: torch_attention.DecodeAttention) -> None:
            tensors(self)
            self.positions_T = self.positions_T + 1

        monkeypatch.setattr(torch_attention.DecodeAttention, "_update_tensors", late)
    elif mistake == "shared":  # a group's prompt is not read at all
        monkeypatch.setattr(
            torch_attention.DecodeAttention, "_add_shared_segments", lambda self, kv, q, window, *own: own
        )
    elif mistake == "kept":  # the newest token is put beside the one before it

        def early(self: torch_attention.DecodeAttention) -> None:
            tensors(self)
            self.last_N = self.last_N - 1

        monkeypatch.setattr(torch_attention.DecodeAttention, "_update_tensors", early)
    else:  # each piece counts the same, whatever its scores
        for name in ("_partial_attention", "_partial_from_lse"):
            real = getattr(torch_attention, name)

            def flat(*given: Any, real: Any = real, **more: Any) -> Any:
                top, total, mixed = real(*given, **more)
                return torch.zeros_like(top), total, mixed

            monkeypatch.setattr(torch_attention, name, flat)
    with pytest.raises(AssertionError):
        test_samples_do_not_depend_on_other_sequences("window")
        test_greedy_equals_plain_loop("window", "together")


def test_finished_sequence_does_not_affect_others() -> None:
    net = tiny_decoder()
    wanted = [3, 12, 1, 9, 5]
    result = run(net, [request(p, temperature=0.0, max_tokens=n) for p, n in zip(PROMPTS, wanted, strict=True)])
    assert token_lists(result) == [[plain_greedy(net, p, n)] for p, n in zip(PROMPTS, wanted, strict=True)]
    assert [r.stop for g in result for r in g] == ["length"] * 5


def test_long_tails_outgrow_their_table() -> None:
    net = tiny_decoder("window")
    for length in (1, 15, 16, 17):
        prompt = np.random.default_rng(length).integers(3, 64, length).tolist()
        (result,) = run(net, [request(prompt, temperature=0.0, max_tokens=40)])
        assert result[0].token_ids == plain_greedy(net, prompt, 40)


@pytest.mark.parametrize("kind", ["llama", "window", "gemma"])
def test_samples_do_not_depend_on_other_sequences(kind: str) -> None:
    net = tiny_decoder(kind)
    requests = [request(p, n=3, seed=i, temperature=1.2) for i, p in enumerate(PROMPTS)]
    at_once = run(net, requests)
    assert len({tuple(t) for g in token_lists(at_once) for t in g}) == 15, "the n of a group differ"
    alone = [run(net, [r])[0] for r in requests]
    backwards = run(net, requests[::-1])[::-1]
    crowded = run(net, requests, max_rows=4)
    pushed = run(net, requests, slots=50, prefill_chunk_tokens=3)
    for other in (alone, backwards, crowded, pushed):
        assert token_lists(other) == token_lists(at_once)
        for a, b in zip(at_once, other, strict=True):
            for x, y in zip(a, b, strict=True):
                assert np.allclose(x.logprobs, y.logprobs, atol=1e-5)
    other_seed = run(net, [request(PROMPTS[0], n=3, seed=99, temperature=1.2)])
    assert token_lists(other_seed)[0] != token_lists(at_once)[0]


def test_larger_group_starts_with_the_smaller() -> None:
    net = tiny_decoder()
    few, many = (run(net, [request([7, 8], n=n, seed=4)])[0] for n in (2, 6))
    assert [r.token_ids for r in many[:2]] == [r.token_ids for r in few]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7])
def test_more_requests_than_max_num_seqs(max_rows: int) -> None:
    """Every continuation comes back, in its place, and no more rows than allowed are in flight."""
    net = tiny_decoder()
    requests = [request(PROMPTS[i % 5], n=1 + i % 4, seed=i, max_tokens=1 + i % 6) for i in range(9)]
    most: list[int] = []
    real = engine.sample_and_append

    def counting(logits: torch.Tensor, *rest: Any) -> Any:
        most.append(len(logits))
        return real(logits, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "sample_and_append", counting)
        result = run(net, requests, max_rows=max_rows)
    assert max(most) <= max_rows
    assert token_lists(result) == token_lists(run(net, requests, max_rows=1000))
    for asked, rows in zip(requests, result, strict=True):
        assert [(r.request, r.index) for r in rows] == [(asked, j) for j in range(asked.n)]


def test_progress_counts_every_token_once() -> None:
    message: list[int] = []
    requests = [request(PROMPTS[i % 5], n=2, seed=i, max_tokens=2 + 3 * (i % 3)) for i in range(8)]
    machine = Engine(tiny_decoder(), max_num_seqs=5)
    machine.on_tokens = message.append
    result = generate_together(machine, requests)
    assert sum(message) == sum(len(r.token_ids) for g in result for r in g)


# when a row ends


def test_end_of_sequence_is_kept_and_ends() -> None:
    net = tiny_decoder()
    free = greedy_by_kind("llama")[1]
    eos = free[4]
    (result,) = run(net, [request(PROMPTS[1], temperature=0.0)], eos=[eos])
    first = free.index(eos)
    assert result[0].token_ids == free[: first + 1] and result[0].stop == "eos"
    assert len(result[0].logprobs) == first + 1, "EOS has its log-probability too"
    (one,) = run(net, [request(PROMPTS[1], temperature=0.0, max_tokens=first + 1)], eos=[eos])
    assert one[0].stop == "eos", "an end at the last token of the budget is an end"


def test_generation_ends_at_stop_tokens_and_max_tokens() -> None:
    net = tiny_decoder()
    free = greedy_by_kind("llama")[1]
    at = free.index(free[5])
    (result,) = run(net, [request(PROMPTS[1], temperature=0.0, stop_token_ids=(free[5],))])
    assert result[0].token_ids == free[: at + 1] and result[0].stop == "stop"
    (short,) = run(net, [request(PROMPTS[1], temperature=0.0, max_tokens=3)])
    assert short[0].token_ids == free[:3] and short[0].stop == "length"


def test_stop_check_sees_the_newest_token() -> None:
    net = tiny_decoder()
    seen: list[list[int]] = []

    def after_four(row: SequenceState) -> bool:
        seen.append(list(row.token_ids))
        return len(row.token_ids) == 4

    (result,) = generate_together(Engine(net, stop_check=after_four), [request(PROMPTS[1], temperature=0.0)])
    assert result[0].stop == "stop" and len(result[0].token_ids) == 4
    assert [len(s) for s in seen] == [1, 2, 3, 4]


# what the sampler says of its tokens is what the learner computes (mistakes 5 and 12)


@pytest.mark.parametrize(("kind", "heat"), [("llama", 1.0), ("llama", 0.7), ("window", 0.7), ("gemma", 1.0)])
def test_sampled_logprobs_equal_the_learner_s(kind: str, heat: float) -> None:
    net = tiny_decoder(kind)
    requests = [request(p, n=4, seed=i, temperature=heat) for i, p in enumerate(PROMPTS)]
    result = run(net, requests, eos=[2], max_rows=6)
    traces = [trace_group(p, [r.token_ids for r in rows_]) for p, rows_ in zip(PROMPTS, result, strict=True)]
    for trace, rows_ in zip(traces, result, strict=True):
        for step, row in zip(trace.steps[1:], rows_, strict=True):
            step.logprobs = np.asarray(row.logprobs, np.float32)
            step.advantages = np.ones(len(row.token_ids), np.float32)
    learner = Learner(net, GRPO(kl=None), temperature=heat)
    packed = pack.pack(pack.plan(traces, GRPO().weigh, False), torch.device("cpu"))
    with torch.no_grad():
        learned = learner.read(net, packed)
    assert float((learned - packed.sampled_N).abs().max()) < 1e-5
    learner.readout = LogprobReadout(1.4)  # the mistake: another temperature in the learner
    with torch.no_grad():
        assert float((learner.read(net, packed) - packed.sampled_N).abs().max()) > 0.1

    w = {n: p.detach() for n, p in weights64(net).items()}
    row = result[1][0]
    exact = plain_logprobs(net, w, [*PROMPTS[1], *row.token_ids], len(row.token_ids), heat)
    assert np.allclose(row.logprobs, exact, atol=1e-5)


def test_greedy_logprobs_are_the_model_s() -> None:
    net = tiny_decoder()
    (result,) = run(net, [request(PROMPTS[1], temperature=0.0)])
    w = {n: p.detach() for n, p in weights64(net).items()}
    exact = plain_logprobs(net, w, [*PROMPTS[1], *result[0].token_ids], 12)
    assert np.allclose(result[0].logprobs, exact, atol=1e-5)


def test_damaged_weights_raise_model_error() -> None:
    net = tiny_decoder()
    with torch.no_grad():
        net.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        run(net, [request(p) for p in PROMPTS])


def test_new_weights_are_used_at_once() -> None:
    """Nothing of the old weights is read after `renew`."""
    net = tiny_decoder()
    machine = Engine(net)
    generate_together(machine, [request(PROMPTS[1], temperature=0.0)])
    with torch.no_grad():
        for p, q in zip(net.parameters(), tiny_decoder(seed=8).parameters(), strict=True):
            p.copy_(q)
    machine.refresh_weights()
    (result,) = generate_together(machine, [request(PROMPTS[1], temperature=0.0)])
    assert result[0].token_ids == plain_greedy(tiny_decoder(seed=8), PROMPTS[1], 12)


def test_first_input_of_a_group_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    real = MergedLayersRunner._hidden_states
    monkeypatch.setattr(
        MergedLayersRunner,
        "_hidden_states",
        lambda self, tokens, *rest: (fed.append(len(tokens)), real(self, tokens, *rest))[1],
    )
    (result,) = run(tiny_decoder(), [request(PROMPTS[1], n=5, max_tokens=3)])
    assert fed == [4, 1, 5, 5] and [r.prefill_tokens for r in result] == [5, 0, 0, 0, 0]
    alone = [run(tiny_decoder(), [request(PROMPTS[1], n=n, max_tokens=3)])[0][-1].token_ids for n in (1, 3, 5)]
    assert alone == [result[i].token_ids for i in (0, 2, 4)]
