"""Which replica has most of a prompt in its cache: remembers the prefixes that each was asked, by hash."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from ponder.types import Ids

BLOCK_TOKENS = 16
MAX_BLOCKS = 1 << 16  # remembered for each replica; the least recently used are forgotten


class PrefixRouter:
    def __init__(self, replicas: int) -> None:
        self._blocks: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(replicas)]

    def shared_tokens(self, replica: int, prefix: Ids) -> int:
        """How many leading tokens of a prefix the replica was asked before, in whole blocks."""
        known = self._blocks[replica]
        count = 0
        for key in block_keys(prefix):
            if key not in known:
                break
            count += 1
        return count * BLOCK_TOKENS

    def add(self, replica: int, prefix: Ids) -> None:
        """The replica has read, or written, these tokens."""
        known = self._blocks[replica]
        for key in block_keys(prefix):
            known[key] = None
            known.move_to_end(key)
        while len(known) > MAX_BLOCKS:
            known.popitem(last=False)

    def forget(self, replica: int | None = None) -> None:
        """The cache is empty: of one replica that was restarted, or of all, whose weights are new."""
        for i, known in enumerate(self._blocks):
            if replica is None or i == replica:
                known.clear()

    def choose(self, prefix: Ids, sequences: int, load: Sequence[int | None], capacity: int) -> int | None:
        """The replica with the longest shared prefix that has room; where that is equal, or none has room, the one with
        the fewest sequences. `load`: sequences in flight, None for a replica that is not ready."""
        ready = [i for i, count in enumerate(load) if count is not None]
        with_room = [i for i in ready if (load[i] or 0) + sequences <= capacity]
        if not with_room:
            return min(ready, key=lambda i: (load[i], i), default=None)
        if len(with_room) == 1:
            return with_room[0]
        return min(with_room, key=lambda i: (-self.shared_tokens(i, prefix), load[i], i))


def block_keys(prefix: Ids) -> list[bytes]:
    """A hash of each whole block of tokens, with all before it."""
    keys: list[bytes] = []
    key = b""
    for end in range(BLOCK_TOKENS, len(prefix) + 1, BLOCK_TOKENS):
        key = hashlib.blake2b(key + prefix[end - BLOCK_TOKENS : end].tobytes(), digest_size=16).digest()
        keys.append(key)
    return keys
