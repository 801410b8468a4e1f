"""Tiles of pictures in prompts: which token ids stand for a tile, and which tile an id stands for.

A tile's places in a prompt have ids that are no tokens: negative numbers drawn from the hash of its pixels. So prompts
with different pictures have different tokens (no cache or random stream can take one for another), the same picture has
the same ids in every process, and no such id can be sampled or be the target of training. Vectors are put at the places
of these ids, never where a vocabulary's image token happens to be.

31 bits are too few to tell all places apart, the run of a tile's ids is not. Networks therefore take local ids, which
count the places of all tiles that this process has encoded: `local_ids` translates a whole prompt.

A tile that is in use stays in memory, however many there are. It is in use while one of the arrays lives that `add`,
`keep` or `local_ids` returned: the prompt of a trace, or of a request in the engine. A copy of an array keeps nothing.
Tiles that no array uses stay up to a limit; those used longest ago are dropped first.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.types import Ids

Integers = NDArray[np.int64]
MAX_UNUSED_BYTES = 1 << 30  # of pixels
_HASH_MODULUS = 2**31 - 2


class PictureTable:
    """The tiles that this process has encoded. `tokens`: of each tile, for towers with tiles of one size.
    `max_unused_bytes`: of the pixels of tiles that are not in use, see above."""

    def __init__(self, tokens: int | None = None, max_unused_bytes: int = MAX_UNUSED_BYTES) -> None:
        self.tokens, self.max_unused_bytes = tokens, max_unused_bytes
        self._index: dict[bytes, int] = {}  # by the ids of a tile
        self._by_first_id: dict[int, list[int]] = {}
        self._runs: list[Ids] = []  # the ids of each tile
        self._starts: list[int] = []  # how many places the tiles before it have
        self._sides: list[tuple[int, int]] = []  # tokens down and across
        self._tiles: dict[int, Picture] = {}
        self._users: Counter[int] = Counter()  # of each tile in use: how many arrays keep it
        self._unused: dict[int, None] = {}  # the other tiles in memory, used longest ago first
        self._unused_bytes = 0
        self._released: deque[tuple[int, ...]] = deque()  # the tiles of arrays that are gone
        self._lock = threading.Lock()

    def add(self, tile: Picture, sides: tuple[int, int] | None = None) -> Ids:
        """The ids of a tile's places, which the table knows from now on. `sides`: its tokens down and across."""
        if sides is None:
            assert self.tokens is not None
            sides = (math.isqrt(self.tokens), self.tokens // math.isqrt(self.tokens))
        tokens = self.tokens or sides[0] * sides[1]
        ids = tile_ids(tile, tokens)
        with self._lock:
            index = self._index.setdefault(ids.tobytes(), len(self._index))
            if index == len(self._starts):
                self._starts.append(self._starts[-1] + len(self._runs[-1]) if self._starts else 0)
                self._runs.append(ids.copy())
                self._sides.append(sides)
                self._by_first_id.setdefault(int(ids[0]), []).append(index)
            if index not in self._tiles:
                self._tiles[index] = tile
                self._set_unused(index)
            self._keep(ids, [index])
        return ids

    def keep(self, ids: Ids) -> Ids:
        """The same array. The tiles in it are in use while it lives, or an array that is a part of it."""
        with self._lock:
            self._keep(ids, [index for index, _ in self._tiles_in(ids)])
        return ids

    def local_ids(self, ids: Ids) -> Ids:
        """The ids with -1 - (places of the tiles before + place) for the places of tiles. Half a tile is refused."""
        if not len(ids) or ids.min() >= 0:
            return ids
        out = ids.astype(np.int64)
        with self._lock:
            shown = self._tiles_in(ids)
            for index, begin in shown:
                tokens = len(self._runs[index])
                out[begin : begin + tokens] = -1 - (self._starts[index] + np.arange(tokens))
            if out.min() < -(2**31) + 1:
                raise UsageError("this process has read too many pictures; start a new one")
            # A view: parts of it are parts of what is below, so the engine's cache may keep them without the tiles.
            local = out.astype(ids.dtype).view()
            self._keep(local, [index for index, _ in shown])
        return local

    def _tiles_in(self, ids: Ids) -> list[tuple[int, int]]:
        """The tiles that stand in ids, each with the place where it begins. Half a tile is refused."""
        out: list[tuple[int, int]] = []
        negative, at = np.flatnonzero(ids < 0), 0
        while at < len(negative):
            begin = int(negative[at])
            index = self._find_run(ids, begin)
            if index is None or index not in self._tiles:
                raise UsageError(
                    "the prompt shows a picture, or a part of one, that this process has not read: encode its messages"
                    " again, and cut no prompt inside a picture"
                )
            out.append((index, begin))
            at += len(self._runs[index])
        return out

    def _keep(self, array: Ids, indexes: Iterable[int]) -> None:
        """Use these tiles while the array lives."""
        used = tuple(set(indexes))
        for index in used:
            self._users[index] += 1
            if index in self._unused:
                del self._unused[index]
                self._unused_bytes -= len(self._tiles[index].rgb)
        if used:
            weakref.finalize(array, self._release, used).atexit = False
        self._drop_unused()

    def _release(self, indexes: tuple[int, ...]) -> None:
        """An array is gone. That may be in the middle of what this thread does with the table."""
        self._released.append(indexes)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_unused()
            finally:
                self._lock.release()

    def _drop_unused(self) -> None:
        while self._released:
            for index in self._released.popleft():
                self._users[index] -= 1
                if not self._users[index]:
                    del self._users[index]
                    self._set_unused(index)
        while self._unused_bytes > self.max_unused_bytes:
            index = next(iter(self._unused))
            del self._unused[index]
            self._unused_bytes -= len(self._tiles.pop(index).rgb)

    def _set_unused(self, index: int) -> None:
        self._unused[index] = None
        self._unused_bytes += len(self._tiles[index].rgb)

    def _find_run(self, ids: Ids, begin: int) -> int | None:
        """The tile whose ids stand here."""
        for index in self._by_first_id.get(int(ids[begin]), ()):
            if np.array_equal(ids[begin : begin + len(self._runs[index])], self._runs[index]):
                return index
        return None

    def locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        """The tile's index, and the place in it, of numbers -1 - (local id)."""
        unique, inverse = np.unique(numbers, return_inverse=True)
        index = np.array([bisect_right(self._starts, int(number)) - 1 for number in unique], np.int64)
        place = unique - np.array([self._starts[i] for i in index], np.int64)
        return index[inverse], place[inverse]

    def sides(self, index: Integers) -> tuple[Integers, Integers]:
        """The tokens down and across of tiles."""
        both = np.array([self._sides[i] for i in index.tolist()], np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

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
def table_for(tokens: int | None) -> PictureTable:
    """The process's table for tiles of so many tokens (None: of any number): networks of one shape share it."""
    return PictureTable(tokens)
