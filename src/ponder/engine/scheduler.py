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

from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator, Slots
from ponder.engine.request import ReadRequest, SequenceState
from ponder.types import Ids

_GROWTH_MARGIN_TOKENS = 16  # tokens that each continuation can grow before newly admitted work may push another out
_MAX_PREFILLS_IN_A_ROW = 4  # passes that fill before those who decode have a turn of their own

WorkItem = SequenceState | ReadRequest
ChooseSequences = Callable[
    [Sequence[SequenceState]], tuple[Sequence[SequenceState], int]
]  # of those who decode, who has a turn, of how many passes


@dataclass(slots=True)
class PrefillChunk:
    """Tokens `start` to `stop` of a run, to be computed; `reading` wants their hidden states."""

    node: RadixNode
    start: int
    stop: int
    read_request: ReadRequest | None = None

    @property
    def tokens(self) -> Ids:
        return self.node.tokens[self.start : self.stop]

    @property
    def slots(self) -> Slots:
        return self.node.slots[self.start : self.stop]

    @property
    def visible_slots(self) -> Slots:
        """Of all tokens up to the last of these."""
        return np.concatenate([*(n.slots for n in self.node.path()[:-1]), self.node.slots[: self.stop]])

    @property
    def position(self) -> int:
        """Of the first of these tokens."""
        return self.node.end - len(self.node) + self.start


@dataclass(slots=True)
class StepPlan:
    """One pass that fills parts and decodes rows; or, without parts, several passes that decode."""

    chunks: list[PrefillChunk]
    seqs: list[SequenceState]
    steps: int = 1  # for which the rows have slots


class Scheduler:
    def __init__(self, size: int, max_num_seqs: int, chunk: int) -> None:
        self.allocator = SlotAllocator(size)
        self.tree = RadixTree(self.allocator)
        self.max_num_seqs, self.prefill_chunk_tokens = max_num_seqs, chunk
        self.waiting: list[tuple[tuple[int, int], WorkItem]] = []  # a heap, by order
        self.prefilling: list[WorkItem] = []
        self.decoding: list[SequenceState] = []
        self.preemptions = 0  # how often work had to
        self._arrivals = count()
        self._prefills_in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.prefilling or self.decoding)

    def fits(self, tokens: int) -> bool:
        return tokens <= self.allocator.size

    def add(self, works: Sequence[WorkItem]) -> None:
        """What came together keeps together."""
        arrival = next(self._arrivals)
        for i, work in enumerate(works):
            assert self.fits(work.length)
            work.priority = (arrival, i)
            heapq.heappush(self.waiting, (work.priority, work))

    def plan_step(
        self,
        choose: ChooseSequences = lambda seqs: (seqs, 1),
        mixed_batch: Callable[[Sequence[PrefillChunk]], bool] = lambda parts: True,
    ) -> StepPlan | None:
        """None: nothing can be done now. `beside`: shall who decodes have a token of the pass that fills parts?"""
        self._admit()
        parts = self._next_chunks()
        if self.prefilling and not parts:
            self.finish_chunks(())  # another who ended has computed what they waited for
        if parts and (self._prefills_in_a_row < _MAX_PREFILLS_IN_A_ROW or not self.decoding):
            self._prefills_in_a_row += 1
            seqs = list(choose(self.decoding)[0]) if self.decoding and mixed_batch(parts) else []
            return StepPlan(parts, seqs if self.reserve_ahead(seqs, 1) else [])
        self._prefills_in_a_row = 0
        assert self.decoding or not self.waiting
        while self.decoding:  # until somebody has room, or all have stepped back
            if turn := self._plan_decode(*choose(self.decoding)):
                return turn
        return None

    def finish_chunks(self, parts: Sequence[PrefillChunk]) -> list[ReadRequest]:
        """These parts were computed. Returns the readings that are complete with them."""
        for part in parts:
            part.node.computed = max(part.node.computed, part.stop)
        still: list[WorkItem] = []
        read: list[ReadRequest] = []
        for work in self.prefilling:
            assert work.node is not None
            if not work.node.is_computed:
                still.append(work)
            elif isinstance(work, SequenceState):
                self.decoding.append(work)
            elif work.uncached is not None and work.uncached.computed < len(work.uncached):
                still.append(work)
            else:
                read.append(work)
        self.prefilling = still
        for reading in read:
            self._release(reading)
        return read

    def remove(self, *works: WorkItem) -> None:
        """Finished or cancelled, wherever they stand. What was computed for them stays in the cache."""
        if gone := {work for work in works if work.node is None}:
            self.waiting = [entry for entry in self.waiting if entry[1] not in gone]
            heapq.heapify(self.waiting)
        here = [work for work in works if work not in gone]
        if len(here) == 1:
            self._remove_active(here[0])
        elif here:
            leaving = set(here)
            self.decoding = [seq for seq in self.decoding if seq not in leaving]
            self.prefilling = [work for work in self.prefilling if work not in leaving]
        for work in here:
            self._release(work)

    def reset_prefix_cache(self) -> None:
        """The weights have changed: nothing computed with the old ones is found any more. Who decodes goes on."""
        for work in list(self.prefilling):
            self._preempt(work)
        self.tree = self.tree.replace_with_empty()

    def _admit(self) -> None:
        seqs = len(self.decoding) + sum(isinstance(w, SequenceState) for w in self.prefilling)
        last: WorkItem | None = None  # who was placed before
        ready = False  # all that he needs is computed
        while self.waiting:
            work = self.waiting[0][1]
            if isinstance(work, SequenceState) and seqs >= self.max_num_seqs:
                return
            if isinstance(work, SequenceState) and isinstance(last, SequenceState) and _same_prompt(work, last):
                if self.allocator.free_count + self.tree.evictable < _GROWTH_MARGIN_TOKENS * (seqs + 1):
                    return
                assert last.node is not None
                work.node = self.tree.hold(last.node)
            elif self._allocate_prefix(work, seqs):
                assert work.node is not None
                ready = isinstance(work, SequenceState) and work.node.is_computed
            else:
                return
            heapq.heappop(self.waiting)
            seqs += isinstance(work, SequenceState)
            last = work
            if isinstance(work, SequenceState) and ready:
                self.decoding.append(work)
            else:
                self.prefilling.append(work)

    def _allocate_prefix(self, work: WorkItem, seqs: int) -> bool:
        """Find or make room for what must be in the cache before it can go on."""
        tokens = work.tokens
        known, rest = tokens[: work.start], 0 if isinstance(work, SequenceState) else work.length - work.start
        node = self.tree.hold(self.tree.match_prefix(known, work.adapter))
        needed = len(known) - node.end + rest
        alone = not self.decoding and not self.prefilling
        margin = 1 if alone else _GROWTH_MARGIN_TOKENS * (seqs + 1)
        if self.allocator.free_count + self.tree.evictable < needed + margin * (
            not alone or isinstance(work, SequenceState)
        ):
            self.tree.release(node)
            return False
        self.tree.evict(needed)
        work.prefill_tokens += needed
        if node.end < len(known):
            fresh = known[node.end :]
            child = self.tree.hold(self.tree.add(node, fresh, self.allocator.allocate(len(fresh)), 0))
            self.tree.release(node)
            node = child
        work.node = node
        if isinstance(work, ReadRequest):
            work.uncached = RadixNode(self.tree, node, tokens[work.start :], self.allocator.allocate(rest), 0)
        return True

    def _next_chunks(self) -> list[PrefillChunk]:
        """The next runs to compute, in the order of those who wait for them, parents before children."""
        left, met = self.prefill_chunk_tokens, set[int]()
        parts: list[PrefillChunk] = []
        for work in self.prefilling:
            assert work.node is not None
            runs = work.node.path() + ([work.uncached] if isinstance(work, ReadRequest) and work.uncached else [])
            for node in runs:
                if node.computed == len(node) or id(node) in met:
                    continue
                if not left:
                    return parts
                met.add(id(node))
                stop = min(len(node), node.computed + left)
                wanted = work if isinstance(work, ReadRequest) and node is work.uncached else None
                parts.append(PrefillChunk(node, node.computed, stop, wanted))
                left -= stop - node.computed
        return parts

    def reserve_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        """Slots for so many more tokens of each, if there are some without pushing anyone out."""
        if not self.tree.evict(steps * len(seqs)):
            return False
        self._assign_slots(seqs, steps)
        return True

    def _plan_decode(self, seqs: Sequence[SequenceState], steps: int) -> StepPlan | None:
        """Slots for more tokens of each of these, for one at least; the youngest work steps back until there are
        enough. None: all of these have."""
        while steps > 1 and self.allocator.free_count + self.tree.evictable < steps * len(seqs):
            steps //= 2
        while not self.tree.evict(steps * len(seqs)):
            active: list[WorkItem] = [*self.decoding, *self.prefilling]
            assert len(active) > 1, "work that fits the memory alone must find room there alone"
            self._preempt(max(active, key=lambda work: work.priority))
            seqs = [seq for seq in seqs if seq.node is not None]
        self._assign_slots(seqs, steps)
        return StepPlan([], list(seqs), steps) if seqs else None

    def _assign_slots(self, seqs: Sequence[SequenceState], steps: int) -> None:
        slots = self.allocator.allocate(steps * len(seqs)).reshape(-1, steps)
        for seq, own in zip(seqs, slots.tolist(), strict=True):
            seq.slots += own

    def _preempt(self, work: WorkItem) -> None:
        self.preemptions += 1
        self._remove_active(work)
        self._release(work)
        heapq.heappush(self.waiting, (work.priority, work))

    def _remove_active(self, work: WorkItem) -> None:
        active: list[SequenceState] | list[WorkItem] = self.decoding if work in self.decoding else self.prefilling
        active.remove(work)  # type: ignore[arg-type]

    def _release(self, work: WorkItem) -> None:
        """Hand what was computed to the tree, and let go."""
        assert work.node is not None
        node, tree = work.node, work.node.tree
        if isinstance(work, SequenceState):
            kept = np.asarray(work.slots, np.int32)
            filled = min(len(kept), work.length - 1 - node.end)  # the others were for tokens that never came
            tokens = work.tokens[node.end : node.end + filled]
            work.slots = []
        else:
            assert work.uncached is not None
            tokens, kept, filled = work.uncached.tokens, work.uncached.slots, work.uncached.computed
            work.uncached = None
            if filled < len(tokens):
                work.hidden = []  # what was read so far is read again
        if tree.is_stale or not node.is_computed:
            self.allocator.free_slots(kept)
        else:
            self.allocator.free_slots(kept[filled:])
            tree.insert_computed(node, tokens[:filled], kept[:filled])
        tree.release(node)
        work.node = None


def _same_prompt(a: SequenceState, b: SequenceState) -> bool:
    """Both begin, with the same prefix."""
    return a.request is b.request and not a.token_ids and not b.token_ids
