"""Columns of numbers, and texts, as compact bytes. Every bit comes back: the sign of zero and the bits of a NaN too.

An int32 column is split into its low and high halves, a float32 column into its four bytes (planes): the high parts
repeat and compress well, the low bits of a log-probability do not compress at all. A plane is kept as it is where
deflate does not make it smaller, so its stored size tells which it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | memoryview

MAX_RATIO = 1040  # deflate makes 1032 bytes of one at most
_LEVEL = 6
_RAW_DEFLATE = -zlib.MAX_WBITS  # without zlib's own header and checksum: a block has a checksum
_MEMORY_LEVEL = 9
_PROBE_BYTES = 1024  # of each sample that shows whether a plane compresses
_NUM_PROBES = 4
_MIN_GAIN = 0.95  # a plane whose samples do not shrink below this share is kept as it is


def deflate(raw: bytes, strategies: Sequence[int] = (zlib.Z_DEFAULT_STRATEGY,)) -> bytes:
    """The shortest of `raw` itself and its compressed forms."""
    best = raw
    for strategy in strategies:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE, _MEMORY_LEVEL, strategy)
        packed = packer.compress(raw) + packer.flush()
        best = min(best, packed, key=len)
    return best


def inflate(stored: Bytes, size: int) -> Bytes:
    """The `size` bytes that `deflate` stored. Never makes more than one byte more, whatever `stored` holds."""
    if len(stored) == size:
        return stored
    unpacker = zlib.decompressobj(_RAW_DEFLATE)
    try:
        raw = unpacker.decompress(stored, size + 1)
    except zlib.error as why:
        raise ValueError(f"it does not decompress: {why}") from None
    if len(raw) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError("it decompresses to another size")
    return raw


def pack_column(values: NDArray[Any]) -> list[bytes]:
    """The planes of an int32 or float32 array, lowest first."""
    if values.dtype == np.int32:
        halves = np.ascontiguousarray(values, "<i4").view("<u2").reshape(-1, 2)
        return [deflate(half.tobytes()) for half in halves.T]
    planes = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4).T
    *low, high = (plane.tobytes() for plane in planes)
    both = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)  # signs and exponents repeat, or are only unevenly frequent
    return [*(deflate(plane) if _compresses(plane) else plane for plane in low), deflate(high, both)]


def _compresses(plane: bytes) -> bool:
    """Whether samples of a plane shrink: to deflate random bits in vain takes most of the time of a column."""
    if len(plane) <= _NUM_PROBES * _PROBE_BYTES:
        return True
    spacing = (len(plane) - _PROBE_BYTES) // (_NUM_PROBES - 1)
    sample = b"".join(plane[i * spacing : i * spacing + _PROBE_BYTES] for i in range(_NUM_PROBES))
    return len(zlib.compress(sample, 1)) < _MIN_GAIN * len(sample)


def num_planes(dtype: type[np.int32 | np.float32]) -> int:
    return 2 if dtype is np.int32 else 4


def unpack_column(planes: Sequence[Bytes], count: int, dtype: type[np.int32 | np.float32]) -> NDArray[Any]:
    """The array of `count` values that `pack_column` took apart. The caller has checked that `count` is sensible."""
    width = 4 // num_planes(dtype)
    out = np.empty((count, num_planes(dtype)), f"<u{width}")
    for i, stored in enumerate(planes):
        out[:, i] = np.frombuffer(inflate(stored, count * width), out.dtype)
    return out.view("<i4" if dtype is np.int32 else "<f4").reshape(count).astype(dtype, copy=False)
