"""Decides what the next step computes. Integers only: no tensors, no model.

Items wait in the order of their arrival and are admitted while the cache has room. Prefill computes the tokens before
an item's last one, chunk by chunk; a run of the tree that several items share is computed once. After prefill a
sequence decodes, one token per step, in a batch with all others and with chunks of prefill.

When the cache is full, unused runs are evicted first. Then the scheduler preempts the youngest item: it keeps its
tokens and is admitted again later, with its old priority and with whatever of it is still cached. The oldest item is
never preempted, so every item finishes.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator, Slots
from ponder.engine.request import ReadRequest, SequenceState
from ponder.types import Ids

_GROWTH_MARGIN_TOKENS = 16  # tokens that each sequence can grow before a newly admitted one may cause a preemption
_MIN_EVICTABLE_LAUNCHES = 8  # of which one is evicted ahead of time
_MAX_PREFILLS_IN_A_ROW = 4  # prefill steps before a step that only decodes

WorkItem = SequenceState | ReadRequest
# Of the decoding sequences, those that the next steps decode, and the number of steps.
ChooseSequences = Callable[[Sequence[SequenceState]], tuple[Sequence[SequenceState], int]]


@dataclass(slots=True)
class PrefillChunk:
    """Tokens `start` to `stop` of a node, to be computed; `read_request` needs their hidden states."""

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
        """Slots of all tokens up to the last of this chunk."""
        return np.concatenate([*(n.slots for n in self.node.path()[:-1]), self.node.slots[: self.stop]])

    @property
    def position(self) -> int:
        """Position of the first token."""
        return self.node.end - len(self.node) + self.start


@dataclass(slots=True)
class StepPlan:
    """One step that prefills chunks and decodes sequences; or, without chunks, several steps that decode."""

    chunks: list[PrefillChunk]
    seqs: list[SequenceState]
    steps: int = 1  # for which the sequences have slots


class Scheduler:
    def __init__(self, size: int, max_num_seqs: int, prefill_chunk_tokens: int) -> None:
        self.allocator = SlotAllocator(size)
        self.tree = RadixTree(self.allocator)
        self.max_num_seqs, self.prefill_chunk_tokens = max_num_seqs, prefill_chunk_tokens
        self.waiting: list[tuple[tuple[int, int], WorkItem]] = []  # a heap, by priority
        self.prefilling: list[WorkItem] = []
        self.decoding: list[SequenceState] = []
        self.preemptions = 0  # so far
        self._retired: list[SequenceState] = []  # finished, with slots that are released before the next work
        self._arrivals = count()
        self._prefills_in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.prefilling or self.decoding)

    def fits(self, tokens: int) -> bool:
        return tokens <= self.allocator.size

    def add(self, items: Sequence[WorkItem]) -> None:
        """Items that arrive together have adjacent priorities."""
        self._release_retired()
        arrival = next(self._arrivals)
        for i, item in enumerate(items):
            assert self.fits(item.length)
            item.priority = (arrival, i)
            heapq.heappush(self.waiting, (item.priority, item))

    def plan_step(
        self,
        choose: ChooseSequences = lambda seqs: (seqs, 1),
        mixed_batch: Callable[[Sequence[PrefillChunk]], bool] = lambda chunks: True,
    ) -> StepPlan | None:
        """The next step; None if nothing can be done now. `mixed_batch`: shall a step with these chunks decode too?"""
        self._admit()
        chunks = self._next_chunks()
        if self.prefilling and not chunks:
            self.finish_chunks(())  # another sequence has computed what they waited for
        if chunks and (self._prefills_in_a_row < _MAX_PREFILLS_IN_A_ROW or not self.decoding):
            self._prefills_in_a_row += 1
            seqs = list(choose(self.decoding)[0]) if self.decoding and mixed_batch(chunks) else []
            return StepPlan(chunks, seqs if self.reserve_ahead(seqs, 1) else [])
        self._prefills_in_a_row = 0
        assert self.decoding or not self.waiting
        while self.decoding:  # until a sequence has slots, or all were preempted
            if plan := self._plan_decode(*choose(self.decoding)):
                return plan
        return None

    def plan_prefill(self, can_run: Callable[[Sequence[PrefillChunk]], bool]) -> list[PrefillChunk]:
        """The next chunks, if they can run now, while decoding steps are in flight."""
        self._admit()
        chunks = self._next_chunks() if self._prefills_in_a_row < _MAX_PREFILLS_IN_A_ROW else []
        if not chunks or not can_run(chunks):
            return []
        self._prefills_in_a_row += 1
        return chunks

    def finish_chunks(self, chunks: Sequence[PrefillChunk]) -> list[ReadRequest]:
        """These chunks were computed. Returns the read requests that are complete now."""
        for chunk in chunks:
            chunk.node.computed = max(chunk.node.computed, chunk.stop)
        still: list[WorkItem] = []
        read: list[ReadRequest] = []
        for item in self.prefilling:
            assert item.node is not None
            if not item.node.is_computed:
                still.append(item)
            elif isinstance(item, SequenceState):
                self.decoding.append(item)
            elif item.uncached is not None and item.uncached.computed < len(item.uncached):
                still.append(item)
            else:
                read.append(item)
        self.prefilling = still
        for reading in read:
            self._release(reading)
        return read

    def remove(self, *items: WorkItem) -> None:
        """Remove finished or cancelled items, in whatever state. What was computed for them stays in the cache."""
        if removed := {item for item in items if item.node is None}:
            self.waiting = [entry for entry in self.waiting if entry[1] not in removed]
            heapq.heapify(self.waiting)
        here = [item for item in items if item not in removed]
        if len(here) == 1:
            self._remove_active(here[0])
        elif here:
            leaving = set(here)
            self.decoding = [seq for seq in self.decoding if seq not in leaving]
            self.prefilling = [item for item in self.prefilling if item not in leaving]
        for item in here:
            self._release(item)

    def retire(self, seqs: Sequence[SequenceState]) -> None:
        """Remove finished sequences. Where no other work is left, what was computed for them goes into the cache when
        there is new work: their callers wait for this, and an engine that sleeps drops the cache."""
        if len(seqs) < len(self.decoding) or self.prefilling or self.waiting:
            self.remove(*seqs)
            return
        self.decoding, self._retired = [], [*self._retired, *seqs]

    def _release_retired(self) -> None:
        retired, self._retired = self._retired, []
        for seq in retired:
            self._release(seq)

    def reset_prefix_cache(self) -> None:
        """The weights have changed: drop all cached prefixes. Sequences with tokens continue with the keys and values
        that they have. The prompts of others are computed again: all their tokens will be of the new weights."""
        self._release_retired()
        for item in [*self.prefilling, *(seq for seq in self.decoding if not seq.num_tokens)]:
            self._preempt(item)
        self.tree = self.tree.replace_with_empty()

    def _admit(self) -> None:
        seqs = len(self.decoding) + sum(isinstance(w, SequenceState) for w in self.prefilling)
        last: WorkItem | None = None  # admitted before this one
        ready = False  # its prefix is computed
        while self.waiting:
            item = self.waiting[0][1]
            if isinstance(item, SequenceState) and seqs >= self.max_num_seqs:
                return
            if isinstance(item, SequenceState) and isinstance(last, SequenceState) and _same_prompt(item, last):
                if self.allocator.free_count + self.tree.evictable < _GROWTH_MARGIN_TOKENS * (seqs + 1):
                    return
                assert last.node is not None
                item.node = self.tree.hold(last.node)
            elif self._allocate_prefix(item, seqs):
                assert item.node is not None
                ready = isinstance(item, SequenceState) and item.node.is_computed
            else:
                return
            heapq.heappop(self.waiting)
            seqs += isinstance(item, SequenceState)
            last = item
            if isinstance(item, SequenceState) and ready:
                self.decoding.append(item)
            else:
                self.prefilling.append(item)

    def _allocate_prefix(self, item: WorkItem, seqs: int) -> bool:
        """Find or allocate slots for the tokens that must be in the cache before the item can decode."""
        tokens = item.tokens
        known, rest = tokens[: item.start], 0 if isinstance(item, SequenceState) else item.length - item.start
        node = self.tree.hold(self.tree.match_prefix(known, item.adapter))
        needed = len(known) - node.end + rest
        alone = not self.decoding and not self.prefilling
        margin = 1 if alone else _GROWTH_MARGIN_TOKENS * (seqs + 1)
        if self.allocator.free_count + self.tree.evictable < needed + margin * (
            not alone or isinstance(item, SequenceState)
        ):
            self.tree.release(node)
            return False
        self.tree.evict(needed)
        item.prefill_tokens += needed
        if node.end < len(known):
            fresh = known[node.end :]
            child = self.tree.hold(self.tree.add(node, fresh, self.allocator.allocate(len(fresh)), 0))
            self.tree.release(node)
            node = child
        item.node = node
        if isinstance(item, ReadRequest):
            item.uncached = RadixNode(self.tree, node, tokens[item.start :], self.allocator.allocate(rest), 0)
        return True

    def _next_chunks(self) -> list[PrefillChunk]:
        """The next chunks to compute, in the order of the items that wait for them, parents before children."""
        left, visited = self.prefill_chunk_tokens, set[int]()
        chunks: list[PrefillChunk] = []
        for item in self.prefilling:
            assert item.node is not None
            if id(item.node) in visited and isinstance(item, SequenceState):
                continue  # another sequence of its group waits for the same
            runs = item.node.path() + ([item.uncached] if isinstance(item, ReadRequest) and item.uncached else [])
            for node in runs:
                if node.computed == len(node) or id(node) in visited:
                    continue
                if not left:
                    return chunks
                visited.add(id(node))
                stop = min(len(node), node.computed + left)
                read_request = item if isinstance(item, ReadRequest) and node is item.uncached else None
                chunks.append(PrefillChunk(node, node.computed, stop, read_request))
                left -= stop - node.computed
        return chunks

    def reserve_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        """Allocate slots for `steps` more tokens of each sequence, if that needs no preemption."""
        if not self.tree.evict(steps * len(seqs)):
            return False
        self._assign_slots(seqs, steps)
        return True

    def evict_ahead(self, slots: int) -> None:
        """Evict what the next launch will need, where that is a small part of what may be evicted. For the time while
        the device computes."""
        if self.tree.evictable >= _MIN_EVICTABLE_LAUNCHES * slots:
            self.tree.evict(slots)

    def _plan_decode(self, seqs: Sequence[SequenceState], steps: int) -> StepPlan | None:
        """Allocate slots for up to `steps` more tokens of each sequence, at least one. Preempt the youngest item until
        there are enough. None: all of these sequences were preempted."""
        while steps > 1 and self.allocator.free_count + self.tree.evictable < steps * len(seqs):
            steps //= 2
        while not self.tree.evict(steps * len(seqs)):
            active: list[WorkItem] = [*self.decoding, *self.prefilling]
            assert len(active) > 1, "an item that fits in the cache must fit when it is alone"
            self._preempt(max(active, key=lambda item: item.priority))
            seqs = [seq for seq in seqs if seq.node is not None]
        self._assign_slots(seqs, steps)
        return StepPlan([], list(seqs), steps) if seqs else None

    def _assign_slots(self, seqs: Sequence[SequenceState], steps: int) -> None:
        slots = self.allocator.allocate(steps * len(seqs))
        whole, size = slots.tobytes(), steps * slots.itemsize
        for i, seq in enumerate(seqs):
            seq.slots.frombytes(whole[i * size : (i + 1) * size])

    def _preempt(self, item: WorkItem) -> None:
        self.preemptions += 1
        self._remove_active(item)
        self._release(item)
        heapq.heappush(self.waiting, (item.priority, item))

    def _remove_active(self, item: WorkItem) -> None:
        active: list[SequenceState] | list[WorkItem] = self.decoding if item in self.decoding else self.prefilling
        active.remove(item)  # type: ignore[arg-type]

    def _release(self, item: WorkItem) -> None:
        """Give what was computed to the tree, and release the node."""
        assert item.node is not None
        node, tree = item.node, item.node.tree
        if isinstance(item, SequenceState):
            whole = item.request.prefix.astype(np.int32, copy=False).tobytes() + item.sampled_ids.tobytes()
            slots: Slots = np.frombuffer(item.slots.tobytes(), np.int32)
            filled = min(len(slots), len(whole) // slots.itemsize - 1 - node.end)  # others: for tokens never sampled
            start, stop = node.end * slots.itemsize, (node.end + filled) * slots.itemsize
            tokens: Ids = np.frombuffer(whole[start:stop], np.int32)
            item.slots = array("i")
        else:
            assert item.uncached is not None
            tokens, slots, filled = item.uncached.tokens, item.uncached.slots, item.uncached.computed
            item.uncached = None
            if filled < len(tokens):
                item.hidden = []  # they are computed again
        if tree.is_stale or not node.is_computed:
            self.allocator.free_slots(slots)
        else:
            if filled < len(slots):
                self.allocator.free_slots(slots[filled:])
            end = tree.insert_computed(node, tokens[:filled], slots[:filled])
            if isinstance(item, SequenceState):
                tree.remember_end(end, whole[:stop], item.adapter)
        tree.release(node)
        item.node = None


def _same_prompt(a: SequenceState, b: SequenceState) -> bool:
    """Neither has tokens yet, and both belong to the same request."""
    return a.request is b.request and not a.num_tokens and not b.num_tokens
