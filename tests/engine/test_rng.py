"""A row's numbers: those of the published generator, the same in any order, and even."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ponder.engine import rng


def test_the_stream_is_splitmix64() -> None:
    """The numbers that the generator's authors and its many ports give for the seed 1234567."""
    published = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    result = rng.uniforms(np.asarray([1234567], np.uint64), np.arange(5))
    assert result.tolist() == [(x >> 11) * 2.0**-53 for x in published]


def test_number_depends_only_on_key_and_place() -> None:
    keys = np.asarray(rng.stream_keys(5, 7), np.uint64)
    table = rng.uniforms(keys[:, None], np.arange(100))
    assert np.array_equal(rng.uniforms(keys[3:4], np.arange(40, 60)), table[3, 40:60])
    assert np.array_equal(rng.uniforms(keys, np.full(7, 9)), table[:, 9])
    assert rng.stream_keys(5, 3) == rng.stream_keys(5, 7)[:3], "more continuations leave the first as they were"


def test_stream_keys_differ() -> None:
    seeds = [0, 1, 2, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**100]
    assert len({key for seed in seeds for key in rng.stream_keys(seed, 50)}) == 50 * len(seeds)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    keys = np.asarray([key for seed in range(40) for key in rng.stream_keys(seed, 10)], np.uint64)
    table = rng.uniforms(keys[:, None], np.arange(500))
    assert ((table >= 0) & (table < 1)).all()
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(table[:, 0], "uniform").pvalue > 1e-3, "also the first ones of all rows"
    for a, b in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):  # the next place, the next row
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)


@pytest.mark.parametrize("seed", [0, 1, 5, 2**64 - 1, 2**64, 2**128 - 1, 0x9E3779B97F4A7C15 << 40])
def test_stream_keys_of_few_sequences_are_those_of_many(seed: int) -> None:
    """Few are computed in Python's integers, many in arrays."""
    assert rng.stream_keys(seed, 8) == rng.stream_keys(seed, 9)[:8]
    several = [seed, 7, seed + 1], [3, 1, 6]
    assert rng.stream_keys_of_all(*several) == [
        key for s, n in zip(*several, strict=True) for key in rng.stream_keys(s, n)
    ]
