"""Who gets how much, when a vote is over, and how scores become one: against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes import trace_group
from ponder.errors import UsageError
from ponder.reason.operators.allocate import (
    multinomial_counts,
    particle_weights,
    rebase_counts,
    split_evenly,
    systematic_counts,
    top_indices,
)
from ponder.reason.operators.uncertainty import answer_confidence, mean_logprob
from ponder.reason.operators.vote import is_vote_decided, leader_probability, weighted_answer
from ponder.types import Step, ids


def test_top_indices_and_split_evenly() -> None:
    assert top_indices([0.1, 0.9, 0.9, 0.5], 3) == [1, 2, 3], "the first of equals first"
    assert top_indices([], 2) == [] and top_indices([3.0], 5) == [0]
    assert (
        split_evenly(8, 2) == [4, 4]
        and split_evenly(4, 3) == [2, 1, 1]
        and split_evenly(1, 3) == [1, 0, 0]
        and split_evenly(5, 0) == []
    )


@pytest.mark.parametrize(
    ("scores", "width", "paper", "code"),
    [
        # exp(4.5), exp(2.5), exp(0.5) = 90.02, 12.18, 1.649; times 8 / 103.85: 6.934, 0.938, 0.127
        ([0.9, 0.5, 0.1], 8, [7, 1, 0], [7, 1, 0]),
        # exp(4), exp(4), exp(3), exp(1) = 54.60, 54.60, 20.09, 2.718; times 4 / 132.0: 1.654, 1.654, 0.609, 0.082.
        # In turn: ceil 1.654 = 2; of 2 left, 54.60 / 77.40: ceil 1.411 = 2; nothing is left
        ([0.8, 0.8, 0.6, 0.2], 4, [2, 2, 1, 0], [2, 2, 0, 0]),
        # best first, wherever it stands: 8 x 0.9933 = 7.95
        ([0.0, 1.0], 8, [0, 8], [0, 8]),
        ([0.5, 0.5, 0.5], 3, [1, 1, 1], [1, 1, 1]),
        # 4 x 1/3 = 1.33: the paper's rounding loses one, the code's ends even: 2, then ceil(2/2), then 1
        ([0.5, 0.5, 0.5], 4, [1, 1, 1], [2, 1, 1]),
        # 1 x 1/3 = 0.33 each: the paper's rounding would end the search
        ([0.5, 0.5, 0.5], 1, [1, 0, 0], [1, 0, 0]),
        ([0.5, 0.5], 3, [2, 2], [2, 1]),  # halves up
        ([0.5], 0, [0], [0]), ([], 4, [], []),
        ([-50.0, 900.0], 4, [0, 4], [0, 4]),  # nothing overflows
    ],
)  # fmt: skip
def test_rebase_allocation_equals_hand_count(
    scores: list[float], width: int, paper: list[int], code: list[int]
) -> None:
    assert rebase_counts(scores, width, 0.2, "paper") == paper
    assert rebase_counts(scores, width, 0.2, "code") == code


SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(SCORES, st.integers(1, 40), st.floats(0.05, 5))
def test_rebase_allocation_sums_to_its_width(scores: list[float], width: int, temperature: float) -> None:
    """The code's counts sum to the width and exceed no share by more than one; the paper's miss none by over a half."""
    share = [width * math.exp(s / temperature) / sum(math.exp(t / temperature) for t in scores) for s in scores]
    code, paper = (rebase_counts(scores, width, temperature, r) for r in ("code", "paper"))
    assert sum(code) == width and min(code) >= 0
    assert all(c <= math.ceil(x + 1e-6) for c, x in zip(code, share, strict=True))
    if any(x >= 0.5 for x in share):
        assert all(abs(c - x) <= 0.5 + 1e-9 for c, x in zip(paper, share, strict=True))
    else:
        assert sum(paper) == 1 and paper[scores.index(max(scores))] == 1


def test_particle_weights_equal_their_formulas() -> None:
    # 0.5 / 0.5 = 1 and 0.8 / 0.2 = 4
    assert particle_weights([0.5, 0.8], "odds").tolist() == pytest.approx([0.2, 0.8])
    assert particle_weights([0.0, math.log(3)], "softmax").tolist() == pytest.approx([0.25, 0.75])
    assert particle_weights([0.1, 0.3], "share").tolist() == pytest.approx([0.25, 0.75])
    assert particle_weights([0.0, 0.0, 0.0]).tolist() == pytest.approx([1 / 3] * 3)
    assert particle_weights([1.0, 0.0])[1] > 0
    assert particle_weights([1e4, 0.0], "softmax").tolist() == [1.0, 0.0]
    for how in ("odds", "share"):
        with pytest.raises(UsageError, match="between 0 and 1"):
            particle_weights([0.5, 1.2], how)  # type: ignore[arg-type]


@pytest.mark.parametrize("pick", [multinomial_counts, systematic_counts])
def test_resampling_is_unbiased(pick: object) -> None:
    weights = np.array([0.05, 0.6, 0.35])
    counts = np.array([pick(weights, 7, np.random.default_rng(seed)) for seed in range(1000)])  # type: ignore[operator]
    assert (counts.sum(1) == 7).all()
    # the spread of one multinomial count is below 1.3, of the mean of 1,000 below 0.042
    assert np.abs(counts.mean(0) - 7 * weights).max() < 0.2
    if pick is systematic_counts:
        assert (np.abs(counts - 7 * weights) < 1).all()


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=9), st.integers(1, 20), st.integers(0, 99))
def test_systematic_rounds_down_or_up(scores: list[float], n: int, seed: int) -> None:
    weights = particle_weights(scores, "share")
    counts = systematic_counts(weights, n, np.random.default_rng(seed))
    assert sum(counts) == n and all(abs(c - n * w) < 1 + 1e-6 for c, w in zip(counts, weights, strict=True))


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), max_size=6),
    st.integers(0, 2),
    st.lists(st.sampled_from([0.0, 0.25, 1.0, None]), min_size=6, max_size=6),
)
@example(["a", "b", "b"], 1, [1.0] * 6)  # a can tie, and was seen first
@example(["b", "a", "b"], 1, [1.0] * 6)
def test_settled_vote_cannot_change(answers: list[str | None], left: int, weights: list[float | None]) -> None:
    """Against every vote that may still come."""
    weights = weights[: len(answers)]
    now = weighted_answer(answers, weights)
    outcomes = {
        weighted_answer([*answers, *more], [*weights, *w])
        for more in itertools.product(["a", "b", "c", "new", None], repeat=left)
        for w in itertools.product([0.0, 1.0], repeat=left)
    }
    assert is_vote_decided(answers, weights, left) == (outcomes == {now})


@pytest.mark.parametrize(
    ("first", "second", "p"), [(0, 0, 0.5), (1, 0, 0.75), (3, 0, 15 / 16), (4, 0, 31 / 32), (2, 1, 11 / 16)]
)
def test_beta_rule_equals_hand_count(first: int, second: int, p: float) -> None:
    """P(p > 1/2) under Beta(1, 1) is 1/2, under Beta(2, 1) the integral of 2p from 1/2 to 1, and so on."""
    assert leader_probability(first, second) == pytest.approx(p)
    from scipy.special import betainc

    assert leader_probability(first, second) == pytest.approx(1 - betainc(first + 1, second + 1, 0.5))


def test_confidence_equals_its_formula() -> None:
    trace = trace_group([1], [[2, 3], [4]])
    a, b = trace.steps[1], trace.steps[2]
    a.logprobs, b.logprobs = np.log(np.array([0.5, 0.125], np.float32)), np.array([np.nan], np.float32)
    assert mean_logprob(trace, 1) == pytest.approx(math.log(0.25)) and answer_confidence(trace, 1) == pytest.approx(
        0.25
    )
    assert mean_logprob(trace, 2) is None and answer_confidence(trace, 2) is None, "a server that does not tell"
    assert answer_confidence(trace, 1, "entropy") is None, "it was not asked for"
    a.notes = {"entropy": np.array([1.0, 3.0], np.float32), "gini": np.array([0.0, 0.5], np.float32)}
    assert (
        answer_confidence(trace, 1, "entropy") == pytest.approx(math.exp(-2))
        and answer_confidence(trace, 1, "gini") == 0.75
    )
    more = trace.add(Step(1, "", ids([5]), np.log(np.array([0.25], np.float32))))
    assert mean_logprob(trace, more) == pytest.approx(math.log(0.25)), "over the whole path"
