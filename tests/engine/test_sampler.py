"""What is drawn, and the log-probability said of it, against exact distributions in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ponder.engine import sampler
from ponder.engine.request import Request, SequenceState
from ponder.engine.sampling_step import append_sampled
from ponder.types import Sampling, ids

LOGITS = np.array([1.2, -0.3, 2.0, 0.0, 0.9, -1.5, 2.0, 0.4, -4.0, 1.1, 0.2, -0.7])  # two of them tie at the top

RULES = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.5),
    "hot": Sampling(temperature=3.0),
    "top-k": Sampling(top_k=4),
    "top-k of one": Sampling(top_k=1),
    "top-k past the end": Sampling(top_k=99),
    "top-p": Sampling(top_p=0.7),
    "top-p of one token": Sampling(top_p=1e-6),
    "min-p": Sampling(min_p=0.3),
    "cold top-p": Sampling(temperature=0.6, top_p=0.8),
    "top-k, then top-p": Sampling(top_k=5, top_p=0.6),
    "all": Sampling(temperature=1.4, top_k=8, top_p=0.9, min_p=0.25),
}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def exact(logits: np.ndarray, rule: Sampling) -> np.ndarray:
    """Filter by filter, token by token; each filter sees what the one before left, renormalised."""
    p = softmax(logits / rule.temperature)
    order = sorted(range(len(p)), key=lambda i: -p[i])  # stable: the lower id first
    if rule.top_k:
        for i in order[rule.top_k :]:
            p[i] = 0
        p /= p.sum()
    if rule.top_p < 1:
        mass = 0.0
        for i in order:
            if mass >= rule.top_p:
                p[i] = 0
            mass += p[i]
        p /= p.sum()
    if rule.min_p:
        p[p < rule.min_p * p.max()] = 0
        p /= p.sum()
    return p


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_warp_gives_the_distribution(rule: Sampling) -> None:
    result = sampler.exact_log_softmax(sampler.warp(torch.tensor(LOGITS, dtype=torch.float32)[None], [rule]))[0]
    with np.errstate(divide="ignore"):
        expected = np.log(exact(LOGITS, rule))
    assert np.array_equal(np.isinf(result.numpy()), np.isinf(expected)), "the same tokens stay"
    kept = np.isfinite(expected)
    assert np.allclose(result.numpy()[kept], expected[kept], atol=1e-5)
    assert result.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_samples_follow_the_distribution(rule: Sampling) -> None:
    from scipy.stats import chisquare

    draws = 20_000
    logprobs = sampler.warp(torch.tensor(LOGITS, dtype=torch.float32)[None], [rule]).expand(draws, -1)
    uniform = torch.from_numpy(np.random.default_rng(5).random(draws))
    tokens, text = sampler.sample_tokens(logprobs, uniform, torch.zeros(draws, dtype=torch.bool))
    p = exact(LOGITS, rule)
    counts = np.bincount(tokens.numpy(), minlength=len(p))
    assert not counts[p == 0].any()
    if (p > 0).sum() > 1:
        assert chisquare(counts[p > 0], draws * p[p > 0]).pvalue > 1e-3
    assert np.allclose(text, np.log(p[tokens.numpy()]), atol=1e-5), "the log-probability is the sampler's own"


def test_wrong_distribution_is_detected() -> None:
    from scipy.stats import chisquare

    draws = 20_000
    logprobs = sampler.warp(torch.tensor(LOGITS, dtype=torch.float32)[None], [RULES["cold"]]).expand(draws, -1)
    uniform = torch.from_numpy(np.random.default_rng(5).random(draws))
    tokens, _ = sampler.sample_tokens(logprobs, uniform, torch.zeros(draws, dtype=torch.bool))
    p = exact(LOGITS, Sampling(temperature=0.55))
    assert chisquare(np.bincount(tokens.numpy(), minlength=len(p)), draws * p).pvalue < 1e-6


def test_log_probabilities_of_a_large_vocabulary_are_exact() -> None:
    logits = torch.randn(8, 49152, generator=torch.Generator().manual_seed(0)) * 3
    exactly = torch.log_softmax(logits.double(), dim=-1)
    assert (sampler.exact_log_softmax(logits) - exactly).abs().max() < 3e-6
    tokens, text = sampler.sample_tokens(logits, torch.rand(8, dtype=torch.float64), torch.zeros(8, dtype=torch.bool))
    assert (text - exactly.gather(-1, tokens[:, None])[:, 0]).abs().max() < 3e-6


def test_rows_are_independent() -> None:
    logits = torch.tensor(np.stack([LOGITS * (1 + i / 10) for i in range(len(RULES))]), dtype=torch.float32)
    rules = list(RULES.values())
    together = sampler.warp(logits, rules)
    for i, rule in enumerate(rules):
        assert torch.equal(together[i], sampler.warp(logits[i : i + 1], [rule])[0])


def test_greedy_takes_argmax_with_its_logprob() -> None:
    rule = Sampling(temperature=0.0, top_k=3)
    logprobs = sampler.warp(torch.tensor(LOGITS, dtype=torch.float32)[None], [rule])
    token, text = sampler.sample_tokens(logprobs, torch.tensor([0.99], dtype=torch.float64), torch.tensor([True]))
    assert int(token) == 2, "the first of two equals"
    assert float(text) == pytest.approx(np.log(softmax(LOGITS)[2]), abs=1e-6)


# inversion over large vocabularies, where float32 sums lose small tokens


def inverted(probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    reached = np.cumsum(probs.astype(np.float64))
    return np.searchsorted(reached, uniform * reached[-1], side="right")


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 50_000])
def test_inversion_equals_a_float64_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    probs = softmax(rng.normal(size=size) * 4).astype(np.float32)
    uniform = np.concatenate([rng.random(200), [0.0, 1 - 2**-53]])
    result = sampler._invert_cdf(torch.from_numpy(probs).expand(len(uniform), -1), torch.from_numpy(uniform))[0].numpy()
    expected = np.minimum(inverted(probs, uniform), size - 1)
    assert np.array_equal(result, expected)


def test_inversion_at_exact_borders() -> None:
    """A number that equals a sum belongs to the next token that has any probability."""
    probs = torch.tensor([0.0, 0.25, 0.0, 0.25, 0.5, 0.0])
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)
    assert sampler._invert_cdf(probs.expand(4, -1), uniform)[0].tolist() == [1, 3, 4, 4]


@pytest.mark.parametrize("place", ["the same block", "another block"])
def test_tokens_below_float32_resolution_can_be_sampled(place: str) -> None:
    """1 + 1e-9 = 1 in float32: the tail would never be reached, however many draws."""
    size, tail = 600, 7 if place == "the same block" else 580
    probs = np.zeros(size, np.float32)
    probs[3], probs[tail] = 1.0, 1e-9
    uniform = np.array([0.5, 1 - 1e-6, 1 - 5e-10, 1 - 2**-53])
    result = sampler._invert_cdf(torch.from_numpy(probs).expand(len(uniform), -1), torch.from_numpy(uniform))[0].numpy()
    assert result.tolist() == [3, 3, tail, tail]


def test_tail_is_sampled_at_its_frequency() -> None:
    """40,000 tokens of 2e-8 after one that has the rest: together 0.08 % of all draws."""
    probs = torch.full((1, 40_001), 2e-8)
    probs[0, 0] = 1 - 40_000 * 2e-8
    uniform = torch.from_numpy((np.arange(5000) + 0.5) / 5000)
    tokens = torch.cat([sampler._invert_cdf(probs.expand(500, -1), u)[0] for u in uniform.split(500)])
    assert int((tokens > 0).sum()) == 4
    assert len(set(tokens[tokens > 0].tolist())) == 4


def test_zero_probability_token_is_never_sampled() -> None:
    rng = np.random.default_rng(0)
    probs = rng.random((64, 700)).astype(np.float32) * (rng.random((64, 700)) < 0.02)
    probs[:, 5] = 1e-3
    ends = np.where(np.arange(64) % 2, 0.0, 1 - 2**-53)
    result = sampler._invert_cdf(torch.from_numpy(probs), torch.from_numpy(ends))[0].numpy()
    assert (probs[np.arange(64), result] > 0).all()


def test_one_filter_drops_nothing_else() -> None:
    """top_p = 1 keeps everything, tokens after a sum that float32 rounds to 1 included."""
    result = sampler.exact_log_softmax(sampler.warp(torch.tensor([[20.0, 0.0, -1.0]]), [Sampling(top_k=2)]))[0]
    assert result.tolist() == pytest.approx([0.0, -20.0, -np.inf], abs=1e-5)


def test_nonfinite_logits_give_nonfinite_logprobs() -> None:
    for bad in (np.nan, np.inf):
        logprobs = sampler.warp(torch.tensor([[0.0, bad, 1.0]]), [Sampling()])
        _, text = sampler.sample_tokens(logprobs, torch.tensor([0.5], dtype=torch.float64), torch.tensor([False]))
        assert not torch.isfinite(text).any()


def test_tokens_after_stop_count_as_discarded() -> None:
    (row,) = SequenceState.from_request(Request(ids([5]), Sampling(max_tokens=20, stop=("x",)), 1, 0))
    tokens = np.asarray([[4, 7, 8, 9, 6, 3]], np.int32)
    assert not append_sampled(
        tokens, np.zeros((1, 6), np.float32), [row], frozenset({9}), lambda r: r.token_ids[-1] == 7
    )
    assert (row.token_ids, row.stop, row.discarded_tokens) == ([4, 7], "stop", 4)
    (row,) = SequenceState.from_request(Request(ids([5]), Sampling(max_tokens=20), 1, 0))
    append_sampled(tokens, np.zeros((1, 6), np.float32), [row], frozenset({9}), lambda r: False)
    assert (row.token_ids, row.stop, row.discarded_tokens) == ([4, 7, 8, 9], "eos", 2)
