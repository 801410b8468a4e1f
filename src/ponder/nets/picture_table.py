"""Tiles of pictures in prompts: which token ids stand for a tile, and which tile an id stands for.

A tile's places in a prompt have ids that are no tokens: negative numbers drawn from the hash of its pixels. So prompts
with different pictures have different tokens (no cache or random stream can take one for another), the same picture has
the same ids in every process, and no such id can be sampled or be the target of training. Vectors are put at the places
of these ids, never where a vocabulary's image token happens to be.

31 bits are too few to tell all places apart, the run of a tile's ids is not. Networks therefore take local ids, which
count the places of all tiles that this process has encoded: `local_ids` translates a whole prompt.
"""

from __future__ import annotations

import hashlib
import threading
from functools import cache

import numpy as np

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.types import Ids

MAX_TABLE_BYTES = 1 << 30  # of pixels; the pictures encoded first are dropped first
_HASH_MODULUS = 2**31 - 2


class PictureTable:
    """The tiles that this process has encoded, for towers that make `tokens` tokens of a tile."""

    def __init__(self, tokens: int, max_bytes: int = MAX_TABLE_BYTES) -> None:
        self.tokens, self.max_bytes = tokens, max_bytes
        self._index: dict[bytes, int] = {}  # by the ids of a tile
        self._tiles: dict[int, Picture] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, tile: Picture) -> Ids:
        """The ids of a tile's places, which the table knows from now on."""
        ids = tile_ids(tile, self.tokens)
        with self._lock:
            index = self._index.setdefault(ids.tobytes(), len(self._index))
            if index not in self._tiles:
                self._tiles[index] = tile
                self._bytes += len(tile.rgb)
            while self._bytes > self.max_bytes and len(self._tiles) > 1:
                self._bytes -= len(self._tiles.pop(next(iter(self._tiles))).rgb)
        return ids

    def local_ids(self, ids: Ids) -> Ids:
        """The ids with -1 - (tile's index * tokens + place) for the places of tiles. Half a tile is refused."""
        if not len(ids) or ids.min() >= 0:
            return ids
        out, at = ids.astype(np.int64), 0
        negative = np.flatnonzero(ids < 0)
        while at < len(negative):
            start = int(negative[at])
            index = self._index.get(ids[start : start + self.tokens].astype(np.int32).tobytes())
            if index is None or index not in self._tiles:
                raise UsageError(
                    "the prompt shows a picture, or a part of one, that this process has not read: encode its messages"
                    " again, and cut no prompt inside a picture"
                )
            out[start : start + self.tokens] = -1 - (index * self.tokens + np.arange(self.tokens))
            at += self.tokens
        if out.min() < -(2**31) + 1:
            raise UsageError("this process has read too many pictures; start a new one")
        return out.astype(ids.dtype)

    def tile(self, index: int) -> Picture:
        picture = self._tiles.get(index)
        if picture is None:
            raise UsageError("a picture of the prompt is no longer in memory: encode its messages again")
        return picture


def tile_ids(tile: Picture, tokens: int) -> Ids:
    """Ids below 0, a function of the tile's size and pixels."""
    stream = hashlib.shake_128(f"{tokens} {tile.sha256}".encode()).digest(8 * tokens)
    return (-1 - (np.frombuffer(stream, np.uint64) % _HASH_MODULUS).astype(np.int64)).astype(np.int32)


@cache
def table_for(tokens: int) -> PictureTable:
    """The process's table for tiles of so many tokens: networks of one shape share it."""
    return PictureTable(tokens)
