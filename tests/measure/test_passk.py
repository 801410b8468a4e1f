"""pass@k against enumeration, exact fractions and its defining property."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from ponder.errors import UsageError
from ponder.measure import mean_pass_at_k, pass_at_k

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@pytest.mark.parametrize("n", range(1, 9))
def test_equals_enumeration_of_all_subsets(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        right = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(COUNTS)
def test_equals_exact_fractions(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    assert float(pass_at_k(n, c, k)) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), abs=1e-13)


def test_one_sample_is_the_share_itself() -> None:
    assert pass_at_k([4, 3, 10], [1, 1, 7], 1).tolist() == [1 / 4, 1 / 3, 7 / 10]
    assert pass_at_k(7, 1, [1, 2, 3, 7]).tolist() == [1 / 7, 2 / 7, 3 / 7, 1.0]


def test_does_not_overflow() -> None:
    n, c, k = 10_000, 3, 5_000
    assert float(pass_at_k(n, c, k)) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), abs=1e-12)


@given(st.just(0.0) | st.floats(1e-100, 1), st.integers(1, 30))  # scipy's pmf overflows near the smallest floats
def test_is_unbiased(p: float, k: int) -> None:
    """Averaged over what 40 samples may bring, it is the chance that one of k succeeds."""
    c = np.arange(41)
    assert float(binom.pmf(c, 40, p) @ pass_at_k(40, c, k)) == pytest.approx(1 - (1 - p) ** k, abs=1e-9)


def test_published_number() -> None:
    """A one-in-five guesser with 16 samples: pass@16 is .972."""
    c = np.arange(65)
    assert float(binom.pmf(c, 64, 0.2) @ pass_at_k(64, c, 16)) == pytest.approx(0.972, abs=5e-4)


def test_problems_with_unequal_samples_count_once_each() -> None:
    each = pass_at_k([4, 100], [4, 0], 2)
    assert each.tolist() == [1.0, 0.0]
    assert mean_pass_at_k([4, 100], [4, 0], 2) == 0.5


def test_refuses_what_it_cannot_estimate() -> None:
    with pytest.raises(UsageError, match="1 of 2 have fewer"):
        mean_pass_at_k([8, 3], [1, 1], 4)
    with pytest.raises(UsageError, match="k >= 1"):
        pass_at_k(4, 1, 0)
    with pytest.raises(UsageError, match="0 <= c <= n"):
        pass_at_k(4, 5, 1)
    with pytest.raises(UsageError, match="no problems"):
        mean_pass_at_k([], [], 1)
