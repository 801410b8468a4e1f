"""Votes against counting by hand, and symmetry."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.measure import majority_accuracy
from ponder.reason.operators.vote import best_answer, majority_answer, weighted_answer

ANSWERS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30)


def test_first_seen_wins_ties() -> None:
    assert majority_answer(["b", "a", "a", "b"]) == "b"
    assert weighted_answer(["b", "a", "b"], [0.25, 0.75, 0.5]) == "b"
    assert best_answer(["b", "a"], [0.5, 0.5]) == "b"


def test_what_has_no_answer_or_score_does_not_vote() -> None:
    assert majority_answer([None, None, "a"]) == "a"
    assert majority_answer([None]) is None
    assert weighted_answer(["a", "b", "b"], [0.5, None, math.nan]) == "a"
    assert best_answer([None, "a", "b"], [9.0, -3.0, None]) == "a"
    assert best_answer([], []) is None
    with pytest.raises(UsageError, match="one score"):
        weighted_answer(["a"], [])


def test_negative_scores_are_scores() -> None:
    assert weighted_answer(["a", "b"], [-2.0, -1.0]) == "b"
    assert best_answer(["a", "b"], [-2.0, -1.0]) == "b"


@given(ANSWERS)
def test_majority_is_most_common(answers: list[str | None]) -> None:
    counted = Counter(a for a in answers if a is not None).most_common(1)  # keeps first-seen order among equals
    assert majority_answer(answers) == (counted[0][0] if counted else None)


def test_plurality_of_equal_guesses_gains_nothing() -> None:
    """Five equally likely answers: by symmetry the vote is right one time in five, however many samples."""
    votes = [majority_answer(drawn) for drawn in itertools.product("abcde", repeat=6)]
    assert votes.count("a") * 5 == len(votes)
    drawn = np.random.default_rng(0).integers(5, size=(20_000, 16)).tolist()
    assert np.mean([majority_answer(row) == 0 for row in drawn]) == pytest.approx(0.20, abs=0.01)


def test_majority_of_two_answers_is_a_binomial_sum() -> None:
    for p, n in itertools.product((0.0, 0.3, 0.5, 0.8, 1.0), range(1, 9)):
        chance = sum(
            math.prod(p if right else 1 - p for right in drawn) * ((sum(drawn) > n / 2) + 0.5 * (sum(drawn) == n / 2))
            for drawn in itertools.product((True, False), repeat=n)
        )
        assert majority_accuracy(p, n) == pytest.approx(chance)
    assert majority_accuracy(0.6, 100_001) == pytest.approx(1.0)
    with pytest.raises(UsageError):
        majority_accuracy(1.2, 3)
