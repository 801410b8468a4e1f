"""G-Pass@k, mG-Pass@k and pass^k against scipy's hypergeometric law, fractions and each other."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.measure import g_pass_at_k, mean_g_pass_at_k, pass_at_k, pass_hat_k

COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


def tail(n: int, c: int, k: int, least: int) -> Fraction:
    ways = sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(least, k + 1))
    return Fraction(ways, math.comb(n, k))


@given(COUNTS, st.integers(0, 20))
def test_equals_exact_fractions(counts: tuple[int, int, int], twentieths: int) -> None:
    n, c, k = counts
    tau = twentieths / 20
    least = max(1, math.ceil(Fraction(twentieths, 20) * k))
    assert float(g_pass_at_k(n, c, k, tau)) == pytest.approx(float(tail(n, c, k, least)), abs=1e-12)
    steady = Fraction(2, k) * sum(tail(n, c, k, i) for i in range(math.ceil(k / 2) + 1, k + 1))
    assert float(mean_g_pass_at_k(n, c, k)) == pytest.approx(float(steady), abs=1e-12)
    assert float(pass_hat_k(n, c, k)) == pytest.approx(math.comb(c, k) / math.comb(n, k), abs=1e-12)


def test_ends_are_pass_at_k_and_pass_hat_k() -> None:
    n, c = np.array([16, 16, 48, 200]), np.array([0, 16, 7, 150])
    assert g_pass_at_k(n, c, 8, 0.0) == pytest.approx(pass_at_k(n, c, 8), abs=1e-12)
    assert g_pass_at_k(n, c, 8, 1.0) == pytest.approx(pass_hat_k(n, c, 8), abs=1e-15)
    assert pass_hat_k(n, c, 8)[:2].tolist() == [0.0, 1.0]
    assert (mean_g_pass_at_k(n, c, 8) <= g_pass_at_k(n, c, 8, 0.5)).all()


def test_many_samples_are_binomial() -> None:
    from scipy.stats import binom

    assert float(g_pass_at_k(10**7, 7 * 10**6, 40, 0.6)) == pytest.approx(float(binom.sf(23, 40, 0.7)), abs=1e-5)


def test_refuses() -> None:
    with pytest.raises(UsageError, match=r"tau.*\[0, 1\]"):
        g_pass_at_k(8, 4, 4, 1.5)
    with pytest.raises(UsageError, match="needs 9 samples"):
        pass_hat_k(8, 4, 9)
