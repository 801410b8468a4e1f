"""A pass of the network over a part of the work, in plain torch: any device, any type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.adapters import Adapters, adapter_of
from ponder.engine.cache import Beside, Cache, Decoding, Filling
from ponder.engine.plan import plan
from ponder.engine.request import Row
from ponder.engine.schedule import Part
from ponder.nets.decoder import Decoder

# Tokens and their log-probabilities [B, steps]; waits for them.
Results = Callable[[], tuple[NDArray[np.int32], NDArray[np.float32]]]


class Runner:
    def __init__(self, net: Decoder, slots: int) -> None:
        self.net = net
        self.cache = self._memory(slots)
        self.adapters: Adapters | None = None  # of the engine
        self._rows: list[Row] = []  # of the last decoding pass
        self._decoding: Decoding | None = None

    def fill(self, parts: Sequence[Part]) -> None:
        """Compute keys and values of these tokens; readings get the hidden states of theirs."""
        self._read(parts, self._filled(parts))

    def _filled(self, parts: Sequence[Part]) -> Tensor:
        attend = Filling(self.cache, parts)
        with self._adapted([adapter_of(part.node) for part in parts], attend.sizes):
            hidden_TE: Tensor = self.net(self.cache.put(attend.tokens), attend.positions_T, attend)
        return hidden_TE

    def _read(self, parts: Sequence[Part], hidden_TE: Tensor) -> None:
        for part, hidden in zip(parts, hidden_TE.split([part.stop - part.start for part in parts]), strict=True):
            if part.reading is not None:
                part.reading.hidden.append(hidden.clone())

    def _memory(self, slots: int) -> Cache:
        return Cache(self.net.config, slots, self.net.device, self.net.dtype)

    def renew(self) -> None:
        """The weights have changed."""

    def sleep(self) -> bool:
        """Give the cache's memory back until `wake`. False: that takes a new runner."""
        return False

    def wake(self) -> None:
        pass

    def close(self) -> None:
        """Wait for what still goes on."""

    def beside(self, parts: Sequence[Part]) -> bool:
        """Shall those who decode have a token of the pass that fills these parts? Else they wait for its end."""
        return True

    # runs of passes that draw where they compute, if this runner has such

    def choose(self, rows: Sequence[Row]) -> tuple[Sequence[Row], int]:
        """Who of these is computed next, and how many passes may follow each other before the text is looked at."""
        return rows, 1

    def steps(self, rows: Sequence[Row], ahead: int = 0) -> int:
        """That many passes for rows that `launch` draws for, after the tokens that are `ahead`."""
        return 1

    def draws(self, rows: Sequence[Row], parts: Sequence[Part] = ()) -> bool:
        """Can `launch` draw for these rows, beside these parts?"""
        return False

    def follows(self, rows: Sequence[Row], steps: int) -> bool:
        """Can these rows be launched again before what they wrote was looked at?"""
        return False

    def launch(self, rows: Sequence[Row], steps: int, ahead: int = 0, parts: Sequence[Part] = ()) -> Results:
        """The next tokens [B, steps] of each row and their log-probabilities: begun now, and there when they are
        called for. `ahead`: tokens of these rows that were launched before, and not called for yet. Parts are filled
        in the same pass, of which there is then one."""
        raise NotImplementedError

    def decode(self, rows: Sequence[Row], parts: Sequence[Part] = ()) -> Tensor:
        """Logits [B, V] after the newest token of each row; parts are filled in the same pass. What a group feeds first
        is alike, and is fed once."""
        places: dict[tuple[int, int] | int, int] = {}  # where each is computed
        place = [places.setdefault(_fed(row), len(places)) for row in rows]
        if len(places) == len(rows):
            return self._logits(rows, parts)
        firsts = [place.index(i) for i in range(len(places))]
        logits_BV = self._logits([rows[i] for i in firsts], parts)[place]
        others = sorted(set(range(len(rows))) - set(firsts))
        self.cache.copy([rows[firsts[place[i]]].own[-1] for i in others], [rows[i].own[-1] for i in others])
        self.forget()
        return logits_BV

    def _logits(self, rows: Sequence[Row], parts: Sequence[Part]) -> Tensor:
        for row in rows:
            row.computed += len(row.own) == 1
        if self._decoding is not None and self._rows == rows:
            self._decoding.grow(np.asarray([row.own[-1] for row in rows]))
        else:
            self._decoding, self._rows = Decoding(self.cache, plan(rows)), list(rows)
        tokens = np.asarray([row.token_ids[-1] if row.token_ids else row.request.prefix[-1] for row in rows], np.int64)
        attend: Decoding | Beside = self._decoding
        names, sizes = [row.adapter for row in rows], [1] * len(rows)
        if parts:
            attend = Beside(self._decoding, filling := Filling(self.cache, parts))
            tokens = np.concatenate([tokens, filling.tokens])
            names, sizes = names + [adapter_of(part.node) for part in parts], sizes + filling.sizes
        with self._adapted(names, sizes):
            hidden_TE = self.net(self.cache.put(tokens), attend.positions_T, attend)
        self._read(parts, hidden_TE[len(rows) :])
        return self._project(hidden_TE[: len(rows)])

    def _project(self, hidden_BE: Tensor) -> Tensor:
        return self.net.logits(hidden_BE)

    def _adapted(self, names: Sequence[str], sizes: Sequence[int]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.applied(names, sizes)

    def serves(self, net: Decoder) -> bool:
        """Is the network where it was, and of the same type?"""
        have = self.cache.kv[0]
        return (have.device, have.dtype) == (net.device, net.dtype)

    def forget(self) -> None:
        """The rows of the last pass have gone or moved."""
        self._rows, self._decoding = [], None


def _fed(row: Row) -> tuple[int, int] | int:
    """The same for rows whose next pass computes the same: one token after one path of the tree."""
    newest = row.token_ids[-1] if row.token_ids else int(row.request.prefix[-1])
    return (id(row.node), newest) if len(row.own) == 1 else id(row)
