"""Who is computed next. Integers only: no tensors, no model.

Work waits in the order in which it came. It is admitted while memory lasts; then the tokens before its last one are
filled in, chunk by chunk, each run of the tree once for all who share it; then it decodes, one token a pass, beside
all others and beside what is filled in. Where memory runs out, cached runs that nobody reads go first; after them the
youngest work steps back: it keeps its text, and is admitted again, in its old order, with whatever of it is still in
the cache. The oldest work is never made to step back, so everyone comes to an end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ponder.engine.request import Reading, Row
from ponder.engine.tree import Memory, Node, Slots, Tree
from ponder.types import Ids

_MARGIN = 16  # tokens that each continuation can grow before newly admitted work may push another out
_PATIENCE = 4  # passes that fill before those who decode have a turn of their own

Work = Row | Reading
Choice = Callable[[Sequence[Row]], tuple[Sequence[Row], int]]  # of those who decode, who has a turn, of how many passes


@dataclass(slots=True)
class Part:
    """Tokens `start` to `stop` of a run, to be computed; `reading` wants their hidden states."""

    node: Node
    start: int
    stop: int
    reading: Reading | None = None

    @property
    def tokens(self) -> Ids:
        return self.node.tokens[self.start : self.stop]

    @property
    def slots(self) -> Slots:
        return self.node.slots[self.start : self.stop]

    @property
    def seen(self) -> Slots:
        """Of all tokens up to the last of these."""
        return np.concatenate([*(n.slots for n in self.node.path()[:-1]), self.node.slots[: self.stop]])

    @property
    def position(self) -> int:
        """Of the first of these tokens."""
        return self.node.end - len(self.node) + self.start


@dataclass(slots=True)
class Turn:
    """One pass that fills parts and decodes rows; or, without parts, several passes that decode."""

    parts: list[Part]
    rows: list[Row]
    steps: int = 1  # for which the rows have slots


class Schedule:
    def __init__(self, size: int, most_rows: int, chunk: int) -> None:
        self.memory = Memory(size)
        self.tree = Tree(self.memory)
        self.most_rows, self.chunk = most_rows, chunk
        self.waiting: list[tuple[tuple[int, int], Work]] = []  # a heap, by order
        self.filling: list[Work] = []
        self.decoding: list[Row] = []
        self.stepped_back = 0  # how often work had to
        self._arrivals = count()
        self._fills = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.filling or self.decoding)

    def fits(self, tokens: int) -> bool:
        return tokens <= self.memory.size

    def add(self, works: Sequence[Work]) -> None:
        """What came together keeps together."""
        arrival = next(self._arrivals)
        for i, work in enumerate(works):
            assert self.fits(work.length)
            work.order = (arrival, i)
            heapq.heappush(self.waiting, (work.order, work))

    def next(
        self, choose: Choice = lambda rows: (rows, 1), beside: Callable[[Sequence[Part]], bool] = lambda parts: True
    ) -> Turn | None:
        """None: nothing can be done now. `beside`: shall who decodes have a token of the pass that fills parts?"""
        self._admit()
        parts = self._parts()
        if self.filling and not parts:
            self.filled(())  # another who ended has computed what they waited for
        if parts and (self._fills < _PATIENCE or not self.decoding):
            self._fills += 1
            rows = list(choose(self.decoding)[0]) if self.decoding and beside(parts) else []
            return Turn(parts, rows if self.ahead(rows, 1) else [])
        self._fills = 0
        assert self.decoding or not self.waiting
        while self.decoding:  # until somebody has room, or all have stepped back
            if turn := self._grow(*choose(self.decoding)):
                return turn
        return None

    def filled(self, parts: Sequence[Part]) -> list[Reading]:
        """These parts were computed. Returns the readings that are complete with them."""
        for part in parts:
            part.node.filled = max(part.node.filled, part.stop)
        still: list[Work] = []
        read: list[Reading] = []
        for work in self.filling:
            assert work.node is not None
            if not work.node.whole:
                still.append(work)
            elif isinstance(work, Row):
                self.decoding.append(work)
            elif work.own is not None and work.own.filled < len(work.own):
                still.append(work)
            else:
                read.append(work)
        self.filling = still
        for reading in read:
            self._leave(reading)
        return read

    def end(self, *works: Work) -> None:
        """Finished or cancelled, wherever they stand. What was computed for them stays in the cache."""
        if gone := {work for work in works if work.node is None}:
            self.waiting = [entry for entry in self.waiting if entry[1] not in gone]
            heapq.heapify(self.waiting)
        here = [work for work in works if work not in gone]
        if len(here) == 1:
            self._remove(here[0])
        elif here:
            leaving = set(here)
            self.decoding = [row for row in self.decoding if row not in leaving]
            self.filling = [work for work in self.filling if work not in leaving]
        for work in here:
            self._leave(work)

    def renew(self) -> None:
        """The weights have changed: nothing computed with the old ones is found any more. Who decodes goes on."""
        for work in list(self.filling):
            self._step_back(work)
        self.tree = self.tree.clear()

    def _admit(self) -> None:
        rows = len(self.decoding) + sum(isinstance(w, Row) for w in self.filling)
        last: Work | None = None  # who was placed before
        ready = False  # all that he needs is computed
        while self.waiting:
            work = self.waiting[0][1]
            if isinstance(work, Row) and rows >= self.most_rows:
                return
            if isinstance(work, Row) and isinstance(last, Row) and _alike(work, last):
                if self.memory.free + self.tree.idle < _MARGIN * (rows + 1):
                    return
                assert last.node is not None
                work.node = self.tree.hold(last.node)
            elif self._place(work, rows):
                assert work.node is not None
                ready = isinstance(work, Row) and work.node.whole
            else:
                return
            heapq.heappop(self.waiting)
            rows += isinstance(work, Row)
            last = work
            if isinstance(work, Row) and ready:
                self.decoding.append(work)
            else:
                self.filling.append(work)

    def _place(self, work: Work, rows: int) -> bool:
        """Find or make room for what must be in the cache before it can go on."""
        tokens = work.tokens
        known, rest = tokens[: work.begin], 0 if isinstance(work, Row) else work.length - work.begin
        node = self.tree.hold(self.tree.match(known, work.adapter))
        needed = len(known) - node.end + rest
        alone = not self.decoding and not self.filling
        margin = 1 if alone else _MARGIN * (rows + 1)
        if self.memory.free + self.tree.idle < needed + margin * (not alone or isinstance(work, Row)):
            self.tree.release(node)
            return False
        self.tree.evict(needed)
        work.computed += needed
        if node.end < len(known):
            fresh = known[node.end :]
            child = self.tree.hold(self.tree.add(node, fresh, self.memory.take(len(fresh)), 0))
            self.tree.release(node)
            node = child
        work.node = node
        if isinstance(work, Reading):
            work.own = Node(self.tree, node, tokens[work.begin :], self.memory.take(rest), 0)
        return True

    def _parts(self) -> list[Part]:
        """The next runs to compute, in the order of those who wait for them, parents before children."""
        left, met = self.chunk, set[int]()
        parts: list[Part] = []
        for work in self.filling:
            assert work.node is not None
            runs = work.node.path() + ([work.own] if isinstance(work, Reading) and work.own else [])
            for node in runs:
                if node.filled == len(node) or id(node) in met:
                    continue
                if not left:
                    return parts
                met.add(id(node))
                stop = min(len(node), node.filled + left)
                wanted = work if isinstance(work, Reading) and node is work.own else None
                parts.append(Part(node, node.filled, stop, wanted))
                left -= stop - node.filled
        return parts

    def ahead(self, rows: Sequence[Row], steps: int) -> bool:
        """Slots for so many more tokens of each, if there are some without pushing anyone out."""
        if not self.tree.evict(steps * len(rows)):
            return False
        self._hand_out(rows, steps)
        return True

    def _grow(self, rows: Sequence[Row], steps: int) -> Turn | None:
        """Slots for more tokens of each of these, for one at least; the youngest work steps back until there are
        enough. None: all of these have."""
        while steps > 1 and self.memory.free + self.tree.idle < steps * len(rows):
            steps //= 2
        while not self.tree.evict(steps * len(rows)):
            active: list[Work] = [*self.decoding, *self.filling]
            assert len(active) > 1, "work that fits the memory alone must find room there alone"
            self._step_back(max(active, key=lambda work: work.order))
            rows = [row for row in rows if row.node is not None]
        self._hand_out(rows, steps)
        return Turn([], list(rows), steps) if rows else None

    def _hand_out(self, rows: Sequence[Row], steps: int) -> None:
        slots = self.memory.take(steps * len(rows)).reshape(-1, steps)
        for row, own in zip(rows, slots.tolist(), strict=True):
            row.own += own

    def _step_back(self, work: Work) -> None:
        self.stepped_back += 1
        self._remove(work)
        self._leave(work)
        heapq.heappush(self.waiting, (work.order, work))

    def _remove(self, work: Work) -> None:
        active: list[Row] | list[Work] = self.decoding if work in self.decoding else self.filling
        active.remove(work)  # type: ignore[arg-type]

    def _leave(self, work: Work) -> None:
        """Hand what was computed to the tree, and let go."""
        assert work.node is not None
        node, tree = work.node, work.node.tree
        if isinstance(work, Row):
            kept = np.asarray(work.own, np.int32)
            filled = min(len(kept), work.length - 1 - node.end)  # the others were for tokens that never came
            tokens = work.tokens[node.end : node.end + filled]
            work.own = []
        else:
            assert work.own is not None
            tokens, kept, filled = work.own.tokens, work.own.slots, work.own.filled
            work.own = None
            if filled < len(tokens):
                work.hidden = []  # what was read so far is read again
        if tree.dead or not node.whole:
            self.memory.give(kept)
        else:
            self.memory.give(kept[filled:])
            tree.keep(node, tokens[:filled], kept[:filled])
        tree.release(node)
        work.node = None


def _alike(a: Row, b: Row) -> bool:
    """Both begin, with the same prefix."""
    return a.request is b.request and not a.token_ids and not b.token_ids
