"""Sizes rounded up to powers of two, so that there are few different ones to compile kernels for."""

from __future__ import annotations


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
