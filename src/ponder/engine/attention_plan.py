"""Which keys each decoding row reads, and which of them several rows share (cascade attention). Integers only.

A run of the tree below which two or more rows are is a shared segment: its keys are read once for all its rows. What a
row reads alone, the end of its path and its own slots, is its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from ponder.engine.radix_tree import RadixNode, Slots
from ponder.engine.request import SequenceState


@dataclass(slots=True, eq=False)
class KVSegment:
    """Slots in the order of their tokens; the first token is at `position`."""

    rows: list[int]
    position: int
    slot_runs: list[Slots] = field(default_factory=list)
    _length: int = field(init=False)

    def __post_init__(self) -> None:
        self._length = sum(map(len, self.slot_runs))

    def __len__(self) -> int:
        return self._length

    def append(self, slots: Slots) -> None:
        self.slot_runs.append(slots)
        self._length += len(slots)

    def extend(self, other: KVSegment) -> None:
        self.slot_runs += other.slot_runs
        self._length += other._length

    def repeated_reads(self) -> int:
        """How many more keys are read if each row reads this segment by itself."""
        return (len(self.rows) - 1) * len(self)

    @property
    def slots(self) -> Slots:
        return np.concatenate(self.slot_runs)


@dataclass(slots=True)
class AttentionPlan:
    """Shared segments and tails. The attention that reads a plan first changes it to what is fastest on its device."""

    shared: list[KVSegment]
    tails: list[Slots]  # of each row
    tail_starts: list[int]  # position of each tail's first token

    def repeated_reads(self) -> int:
        """How many more keys are read if no segment is shared."""
        return sum(segment.repeated_reads() for segment in self.shared)


def inline_segments(plan: AttentionPlan, stays_shared: Callable[[KVSegment], bool]) -> None:
    """Move shared segments into the tails of their rows, unless they stay shared. Everything that a row reads after an
    inlined segment belongs to its tail."""
    shared: list[KVSegment] = []
    inlined: dict[int, list[Slots]] = {}  # by row
    for segment in sorted(plan.shared, key=lambda s: s.position):
        if stays_shared(segment) and inlined.keys().isdisjoint(segment.rows):
            shared.append(segment)
            continue
        for row in segment.rows:
            if row not in inlined:
                inlined[row] = []
                plan.tail_starts[row] = segment.position
            inlined[row] += segment.slot_runs
    for row, slot_runs in inlined.items():
        plan.tails[row] = np.concatenate([*slot_runs, plan.tails[row]])
    plan.shared = shared


def split_tail(plan: AttentionPlan, row: int, length: int) -> None:
    """Make the first `length` slots of a row's tail a segment that only this row reads."""
    tail, start = plan.tails[row], plan.tail_starts[row]
    plan.shared.append(KVSegment([row], start, [tail[:length]]))
    plan.tails[row], plan.tail_starts[row] = tail[length:], start + length


def plan_attention(rows: Sequence[SequenceState]) -> AttentionPlan:
    """Consecutive runs that the same rows read become one segment."""
    readers: dict[RadixNode, list[int]] = {}  # rows below each run of their paths
    for r, row in enumerate(rows):
        node = row.node
        assert node is not None
        while node.parent is not None and node not in readers:
            readers[node] = []
            node = node.parent
        if row.node in readers:
            readers[row.node].append(r)
    runs = sorted(readers, key=_end_of)  # parents first: no run is empty
    for node in reversed(runs):
        above_it = readers.get(node.parent)  # type: ignore[arg-type]  # the root, of no row, is not in there
        if above_it is not None:
            above_it += readers[node]
    segment_of: dict[RadixNode, KVSegment] = {}  # by each of their runs
    segments: list[KVSegment] = []
    alone: dict[int, list[Slots]] = {}
    for node in runs:
        readers_here = readers[node]
        if len(readers_here) == 1:
            alone.setdefault(readers_here[0], []).append(node.slots)
            continue
        above = segment_of.get(node.parent)  # type: ignore[arg-type]
        if above is None or len(above.rows) != len(readers_here):
            above = KVSegment(sorted(readers_here), node.end - len(node.tokens))
            segments.append(above)
        above.append(node.slots)
        segment_of[node] = above
    tails, starts = [], []
    for r, row in enumerate(rows):
        assert row.node is not None
        own = np.array(row.slots, np.int32)
        tail = np.concatenate([*alone[r], own]) if r in alone else own
        tails.append(tail)
        starts.append(row.node.end + len(own) - len(tail))
    return AttentionPlan(segments, tails, starts)


_end_of = attrgetter("end")
