"""Columns as bytes: exact for every bit pattern, small where numbers repeat, bounded whatever is stored."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from ponder.runs.trace_columns import deflate, inflate, num_planes, pack_column, unpack_column

RANDOM = np.random.default_rng(0)
COUNT = 20_000  # more than is compressed without a look at samples


@pytest.mark.parametrize(
    "column",
    [
        RANDOM.integers(-(2**31), 2**31, COUNT).astype(np.int32),
        RANDOM.integers(0, 49152, COUNT).astype(np.int32),
        RANDOM.integers(0, 2**32, COUNT).astype(np.uint32).view(np.float32),  # NaNs of every kind
        -RANDOM.exponential(size=COUNT).astype(np.float32),
        np.repeat(np.asarray([0.5, -0.0, np.nan, np.inf], np.float32), COUNT // 4),
        np.concatenate([np.zeros(COUNT // 2), RANDOM.normal(size=COUNT // 2)]).astype(np.float32),
        np.asarray([], np.int32),
        np.asarray([1.5], np.float32),
        np.arange(10, dtype=np.int32)[::2],
    ],
    ids=str,
)
def test_every_bit_of_a_column_comes_back(column: Any) -> None:
    planes = pack_column(column)
    dtype = column.dtype.type
    assert len(planes) == num_planes(dtype) and sum(map(len, planes)) <= column.nbytes
    again = unpack_column([memoryview(plane) for plane in planes], len(column), dtype)
    assert again.dtype == column.dtype and again.tobytes() == column.tobytes()


def test_repeated_numbers_take_next_to_nothing() -> None:
    advantages = np.repeat(RANDOM.normal(size=8), 256).astype(np.float32)
    assert sum(map(len, pack_column(advantages))) < 0.1 * len(advantages)
    ids = RANDOM.integers(0, 49152, COUNT).astype(np.int32)
    assert sum(map(len, pack_column(ids))) < 2.1 * COUNT


def test_inflate_makes_no_more_than_it_is_told() -> None:
    bomb = deflate(bytes(200_000_000))
    tracemalloc.start()
    with pytest.raises(ValueError, match="another size"):
        inflate(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(bomb) < 250_000 and peak < 1_000_000


@pytest.mark.parametrize("stored", [b"", b"\xff" * 9, deflate(bytes(99)) + b"x", deflate(bytes(99))[:-1]])
def test_inflate_refuses_what_deflate_did_not_make(stored: bytes) -> None:
    with pytest.raises(ValueError, match="decompress"):
        inflate(stored, 99)


def test_deflate_never_grows() -> None:
    noise = RANDOM.bytes(5000)
    assert deflate(noise) == noise and inflate(noise, 5000) == noise
    assert len(deflate(b"a" * 5000, (zlib.Z_HUFFMAN_ONLY,))) < 1000
