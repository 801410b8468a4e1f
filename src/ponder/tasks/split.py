"""Assign problems to training or test by a stable hash of their key."""

from __future__ import annotations

import hashlib


def stable_hash(key: str) -> int:
    """The same integer for the same text in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def hashes_to_test(key: str, tenths: int) -> bool:
    """True for about this many keys in ten. Problems with the same key fall into the same split."""
    return stable_hash(key) % 10 < tenths
