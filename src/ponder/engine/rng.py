"""Counter-based random numbers: the i-th number of a sequence is a function of its key and i.

So there is no state, and the order of calls does not matter. Each sequence has its own SplitMix64 stream (Steele, Lea
and Flood 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

StreamKeys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _DROPPED_BITS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN_INT, _MULTIPLIER_1_INT, _MULTIPLIER_2_INT = int(_GOLDEN), int(_MULTIPLIER_1), int(_MULTIPLIER_2)
_FEW = 8  # sequences


def stream_keys(seed: int, n: int) -> list[int]:
    """Stream keys of the n sequences of one request."""
    return stream_keys_of_all([seed], [n])


def stream_keys_of_all(seeds: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Stream keys of the sequences of several requests, one request after the other."""
    if sum(counts) <= _FEW:  # arrays would take longer
        keys: list[int] = []
        for seed, n in zip(seeds, counts, strict=True):
            whole = _splitmix_int(_splitmix_int((seed & _MASK) + _GOLDEN_INT) + (seed >> 64 & _MASK))
            keys += [_splitmix_int(whole + _GOLDEN_INT * i) for i in range(1, n + 1)]
        return keys
    low, high = (np.asarray([seed >> bits & _MASK for seed in seeds], np.uint64) for bits in (0, 64))
    numbers: StreamKeys = np.concatenate([np.arange(1, n + 1, dtype=np.uint64) for n in counts])
    wholes = _splitmix(_splitmix(low + _GOLDEN) + high)
    return _splitmix(np.repeat(wholes, counts) + _GOLDEN * numbers).tolist()


def uniforms(keys: StreamKeys, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2^-53; `keys` and `places` are broadcast."""
    bits = _splitmix(keys + _GOLDEN * (places + 1).astype(np.uint64))
    return (bits >> _DROPPED_BITS).astype(np.float64) * 2.0**-53


def _splitmix(x: StreamKeys) -> StreamKeys:
    x = (x ^ (x >> _SHIFT_1)) * _MULTIPLIER_1
    x = (x ^ (x >> _SHIFT_2)) * _MULTIPLIER_2
    return x ^ (x >> _SHIFT_3)


def _splitmix_int(x: int) -> int:
    """The same of one number, modulo 2^64."""
    x &= _MASK
    x = (x ^ (x >> 30)) * _MULTIPLIER_1_INT & _MASK
    x = (x ^ (x >> 27)) * _MULTIPLIER_2_INT & _MASK
    return x ^ (x >> 31)
