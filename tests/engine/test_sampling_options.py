"""What each option of `Sampling` does to the distribution, against the rule written out token by token in NumPy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fakes import run_async, tiny_decoder
from ponder.engine import sampler
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.engine.sampling_step import append_sampled, sample_and_append
from ponder.errors import UnknownName, UsageError
from ponder.types import Sampling, ids
from reference_decoder import plain_logits, weights64

V = 12
LOGITS = np.array([1.2, -0.3, 2.0, 0.0, 0.9, -1.5, 2.0, 0.4, -4.0, 1.1, 0.2, -0.7])
PROMPT, WRITTEN = [3, 5, 5, 2], [7, 2, 7, 9, 7, 2]
EOS = 11

OPTIONS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "less repetition": {"repetition_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 0.8},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "both": {"presence_penalty": -0.4, "frequency_penalty": 0.9},
    "no repeat of 1": {"no_repeat_ngram_size": 1},
    "no repeat of 2": {"no_repeat_ngram_size": 2},
    "no repeat of 3": {"no_repeat_ngram_size": 3},
    "logit_bias": {"logit_bias": ((4, 2.5), (0, -3.0), (8, 1.0))},
    "allowed": {"allowed_token_ids": (1, 4, 8, 11)},
    "minimum": {"min_tokens": 7, "max_tokens": 9, "stop_token_ids": (2,)},
    "minimum reached": {"min_tokens": 6, "stop_token_ids": (2,)},
    "all": {
        "temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.3, "logit_bias": ((1, 2.0),),
        "no_repeat_ngram_size": 2, "allowed_token_ids": (0, 1, 2, 4, 6, 7, 9, 10), "top_k": 5,
        "top_p": 0.95, "min_p": 0.02,
    },
}  # fmt: skip


def exact(rule: Sampling, prompt: Sequence[int] = PROMPT, written: Sequence[int] = WRITTEN) -> np.ndarray:
    """The distribution, one token after another as the documentation orders the rules."""
    logits, seen = LOGITS.copy(), [*prompt, *written]
    for t in range(V):
        if t in seen:
            logits[t] = logits[t] / rule.repetition_penalty if logits[t] > 0 else logits[t] * rule.repetition_penalty
        if t in written:
            logits[t] -= rule.presence_penalty + rule.frequency_penalty * list(written).count(t)
        logits[t] += dict(rule.logit_bias).get(t, 0.0)
        runs = [
            tuple(seen[i : i + rule.no_repeat_ngram_size]) for i in range(len(seen) - rule.no_repeat_ngram_size + 1)
        ]
        if rule.no_repeat_ngram_size and tuple([*seen, t][-rule.no_repeat_ngram_size :]) in runs:
            logits[t] = -np.inf
        if len(written) < rule.min_tokens and t in (EOS, *rule.stop_token_ids):
            logits[t] = -np.inf
        if rule.allowed_token_ids and t not in rule.allowed_token_ids:
            logits[t] = -np.inf
    p = np.exp(logits / rule.temperature)
    p /= p.sum()
    order = sorted(range(V), key=lambda i: -p[i])
    if rule.top_k:
        p[order[rule.top_k :]] = 0
        p /= p.sum()
    if rule.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[[t for t, b in zip(order, before, strict=True) if b >= rule.top_p]] = 0
        p /= p.sum()
    p[p < rule.min_p * p.max()] = 0
    return p / p.sum()


def row(rule: Sampling, uniform: float = 0.5, written: Sequence[int] = WRITTEN) -> SequenceState:
    (made,) = SequenceState.from_request(Request(ids(PROMPT), rule, 1, 0))
    made.rng_key = key_of(uniform, len(written))
    for token in written:
        made.append(token, 0.0, 0)
    return made


def key_of(uniform: float, place: int) -> int:
    """The key that draws this number at this place: SplitMix64 backwards."""
    mask, x = 2**64 - 1, int(uniform * 2**53) << 11
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        y = x
        for _ in range(3):
            y = x ^ (y >> shift)
        x = y * pow(factor, -1, 2**64) & mask
    return x - 0x9E3779B97F4A7C15 * (place + 1) & mask


@pytest.mark.parametrize("name", OPTIONS)
def test_samples_follow_the_option(name: str) -> None:
    rule, draws = Sampling(**OPTIONS[name]), 2_000
    uniform = np.random.default_rng(3).random(draws)
    rows = [row(rule, u) for u in uniform]
    failed = sample_and_append(
        torch.tensor(LOGITS, dtype=torch.float32).expand(draws, -1), rows, frozenset({EOS}), lambda r: False
    )
    assert not failed
    p, drawn = exact(rule), [r.token_ids[-1] for r in rows]
    counts = np.bincount(drawn, minlength=V)
    assert not counts[p == 0].any(), "what is banned is never drawn"
    assert chisquare(counts[p > 0], draws * p[p > 0]).pvalue > 1e-3
    text = np.array([r.logprobs[-1] for r in rows])
    assert np.allclose(text, np.log(p[drawn]), atol=1e-5), "the log-probability is that of the rule's distribution"


def test_each_option_changes_the_distribution() -> None:
    plain = exact(Sampling())
    same = [n for n, o in OPTIONS.items() if np.allclose(exact(Sampling(**o)), plain)]
    assert same == ["minimum reached"]


def test_rows_with_options_are_independent() -> None:
    rules = [Sampling(**o) for o in OPTIONS.values()] + [Sampling()]
    logits = torch.tensor(LOGITS, dtype=torch.float32).repeat(len(rules), 1)
    before = logits.clone()
    rows = [row(rule, 0.37) for rule in rules]
    sample_and_append(logits, rows, frozenset({EOS}), lambda r: False)
    assert torch.equal(logits, before), "the model's logits stay as they are"
    for made, rule in zip(rows, rules, strict=True):
        alone = row(rule, 0.37)
        sample_and_append(before[:1], [alone], frozenset({EOS}), lambda r: False)
        assert (alone.token_ids, alone.logprobs) == (made.token_ids, made.logprobs)


@given(st.lists(st.integers(0, 3), min_size=0, max_size=14), st.integers(1, 5))
def test_no_ngram_is_repeated(tokens: list[int], size: int) -> None:
    runs = {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
    ends = {t for t in range(4) if len(tokens) >= size - 1 and tuple([*tokens, t][-size:]) in runs}
    assert sampler._tokens_completing_repeats(tokens, size) == ends


def test_forced_tokens_come_first_and_do_not_finish() -> None:
    net = tiny_decoder()
    request = Request(ids([5, 9]), Sampling(forced_token_ids=(7, 2, 7), max_tokens=6, temperature=0.0), 1, 0)
    (result,) = run_async(Engine(net, frozenset({2})).generate(request))
    assert result.token_ids[:3] == [7, 2, 7] and len(result.token_ids) > 3
    w = weights64(net)
    logits = plain_logits(w, net.config, [5, 9, *result.token_ids])[1:-1].log_softmax(-1)
    text = [float(logits[i, t].detach()) for i, t in enumerate(result.token_ids)]
    assert np.allclose(result.logprobs, text, atol=1e-5), "their log-probability is the model's"
    free = Request(ids([5, 9, 7, 2, 7]), Sampling(max_tokens=3, temperature=0.0), 1, 0)
    assert result.token_ids[3:] == run_async(Engine(net, frozenset({2})).generate(free))[0].token_ids


def test_token_stats_equal_plain_sums() -> None:
    names = ("entropy", "varentropy", "gini")
    rows = [row(Sampling(token_stats=names, logprobs=4, top_k=2)), row(Sampling(logprobs=2))]
    sample_and_append(torch.tensor(LOGITS, dtype=torch.float32).repeat(2, 1), rows, frozenset(), lambda r: False)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    entropy = -(p * np.log(p)).sum()
    wanted = [entropy, (p * (-np.log(p) - entropy) ** 2).sum(), 1 - (p**2).sum()]
    assert [rows[0].notes[n][0] for n in names] == pytest.approx(wanted, abs=1e-5), "of the model, not of the top 2"
    assert rows[1].notes == {}
    order = sorted(range(V), key=lambda i: -p[i])
    for made, k in zip(rows, (4, 2), strict=True):
        tokens, text = made.top_logprobs[0]
        assert sorted(tokens.tolist()) == sorted(order[:k]) and np.allclose(text, np.log(p[tokens]), atol=1e-5)


def test_token_stats_of_certain_token_are_finite() -> None:
    result = sampler.entropy_measures(torch.tensor([[0.0, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf]]))
    assert result["entropy"].tolist() == pytest.approx([0.0, np.log(2)])
    assert result["varentropy"].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert result["gini"].tolist() == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
        ({"presence_penalty": float("inf")}, "finite"),
        ({"logit_bias": ((3, float("-inf")),)}, "logit_bias of -1e9"),
        ({"logit_bias": ((-3, 1.0),)}, "negative"),
        ({"no_repeat_ngram_size": -1}, "0 or positive"),
        ({"logprobs": -1}, "0 or positive"),
        ({"stop": ("x" * 10_000,)}, "10000 characters"),
        ({"forced_token_ids": (1, 2, 3), "max_tokens": 2}, "3 tokens are forced"),
        ({"regex": "a+", "json_schema": "{}"}, "not several"),
        ({"regex": "a+", "allowed_token_ids": (1,)}, "leave out allowed_token_ids"),
    ],
)
def test_contradictory_options_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sampling(**given)


def test_unknown_token_stat_is_reported() -> None:
    with pytest.raises(UnknownName, match=r"entropie.*entropy"):
        Sampling(token_stats=("entropie",))


def test_options_that_leave_no_token_fail_alone() -> None:
    net = tiny_decoder()
    machine = Engine(net, frozenset({2}))
    none_left = Request(ids([5]), Sampling(allowed_token_ids=(7,), no_repeat_ngram_size=1, max_tokens=4), 1, 0)
    fine = Request(ids([5]), Sampling(max_tokens=4, seed=1), 2, 1)

    async def both() -> list[Any]:
        return await asyncio.gather(machine.generate(none_left), machine.generate(fine), return_exceptions=True)

    failed, result = run_async(both())
    assert isinstance(failed, UsageError) and "loosen the options" in str(failed)
    assert [len(r.token_ids) for r in result] == [4, 4] or all(r.stop for r in result)


def test_with_seed_is_a_copy_with_another_seed() -> None:
    sampling = Sampling(temperature=0.7, stop=("a",), logit_bias=((3, 1.0),), max_tokens=9)
    seeded = sampling.with_seed(5)
    assert seeded == Sampling(temperature=0.7, stop=("a",), logit_bias=((3, 1.0),), max_tokens=9, seed=5)
    assert sampling.seed is None
    with pytest.raises(UsageError, match="seed is -1"):
        sampling.with_seed(-1)


@pytest.mark.parametrize("bound", [-1, 0, 1, 3, 4, 5, 1 << 31, 2.0, True, "9"])
def test_with_max_tokens_is_replace(bound: Any) -> None:
    sampling = Sampling(min_tokens=3, forced_token_ids=(1, 2, 3, 4))

    def outcome(change: Any) -> Any:
        try:
            return change()
        except UsageError as error:
            return str(error)

    assert outcome(lambda: sampling.with_max_tokens(bound)) == outcome(lambda: replace(sampling, max_tokens=bound))


def test_with_ignore_eos_the_end_of_sequence_is_a_token_like_others() -> None:
    """The same tokens as from an engine that knows no end: on the host, and where a device sampled several at once."""
    net = tiny_decoder()
    ends = frozenset(range(0, net.config.vocab, 2))
    request = Request(ids([1, 2]), Sampling(max_tokens=24, ignore_eos=True), 3, 5)
    ignored, endless = (run_async(Engine(net, eos).generate(request)) for eos in (ends, frozenset[int]()))
    assert [seq.token_ids for seq in ignored] == [seq.token_ids for seq in endless]
    assert all(seq.stop == "length" and ends & {*seq.token_ids[:-1]} for seq in ignored)
    rows = [SequenceState(request, 0, 0), SequenceState(replace(request, sampling=Sampling(max_tokens=24)), 0, 0)]
    tokens = np.array([[1, 2, 3, 2], [1, 2, 3, 2]], np.int32)
    assert not append_sampled(tokens, np.zeros((2, 4), np.float32), rows, ends, lambda row: False)
    assert [(row.token_ids, row.stop) for row in rows] == [([1, 2, 3, 2], None), ([1, 2], "eos")]


@given(st.data())
def test_launches_append_what_single_tokens_do(data: st.DataObject) -> None:
    """Tokens, log-probabilities and versions of launches of random sizes, against a list of single tokens."""
    tokens = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
    sampling = Sampling(max_tokens=len(tokens))
    logprobs = (-np.arange(len(tokens)) / 7).astype(np.float32)
    seq, single = (SequenceState(Request(ids([5]), sampling, 1, 0), 0, 0) for _ in range(2))
    versions, at = list[int](), 0
    while at < len(tokens):
        version, steps = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 16))
        part = tokens[at : at + steps]
        padded = np.zeros((1, steps), np.int32), np.zeros((1, steps), np.float32)
        padded[0][0, : len(part)], padded[1][0, : len(part)] = part, logprobs[at : at + steps]
        assert not append_sampled(*padded, [seq], frozenset(), lambda row: False, version)
        for token, logprob in zip(part, logprobs[at : at + steps].tolist(), strict=True):
            single.append(token, logprob, version)
        versions += [version] * len(part)
        at += steps
    assert (seq.token_ids, seq.logprobs) == (tokens, logprobs.tolist()) == (single.token_ids, single.logprobs)
    assert seq.versions == versions == single.versions
    assert seq.stop == "length" and seq.discarded_tokens == at - len(tokens)
    assert (seq.num_tokens, seq.newest_token, seq.tokens.tolist()) == (len(tokens), tokens[-1], [5, *tokens])
    own_ids, own_logprobs = seq.arrays()
    assert own_ids.dtype == np.int32 and own_ids.tolist() == tokens and own_ids.flags.writeable
    assert own_logprobs.dtype == np.float32 and own_logprobs.tolist() == logprobs.tolist()
