"""Which keys each decoding row reads, and which of them several rows share (cascade attention). Integers only.

A run of the tree below which two or more rows are is a shared segment: its keys are read once for all its rows. What a
row reads alone, the end of its path and its own slots, is its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from ponder.engine.radix_tree import RadixNode, Slots, common_prefix_length
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
    """Slots that several rows read become segments, those of one set of rows one segment.

    Rows are sorted by the slots of their paths, so that rows that share some are neighbours. What a row shares with
    any other it shares with a neighbour; the slots that a neighbour does not share are its tail."""
    readers: dict[RadixNode, list[int]] = {}  # rows at the end of each path
    for r, row in enumerate(rows):
        assert row.node is not None
        readers.setdefault(row.node, []).append(r)
    paths = {node: node.tree.path_slots(node) for node in readers}
    nodes = list(readers)
    if len(nodes) > 1:
        nodes = [node for _, node in sorted(zip([paths[n].tobytes() for n in nodes], nodes, strict=True), key=_first)]
    order: list[int] = []  # rows, sorted
    path_of: list[Slots] = []
    common: list[int] = []  # slots that each row shares with the one before it
    for node in nodes:
        here, path = readers[node], paths[node]
        common.append(common_prefix_length(path_of[-1], path) if path_of else 0)
        common += [len(path)] * (len(here) - 1)
        order += here
        path_of += [path] * len(here)
    segments = [
        KVSegment(sorted(order[first:last]), start, [path_of[first][start:stop]])
        for start, stop, first, last in sorted(_shared_intervals(common[1:]))
    ]
    tails: list[Slots] = [_NONE] * len(rows)
    starts = [0] * len(rows)
    for r, path, before, after in zip(order, path_of, common, [*common[1:], 0], strict=True):
        starts[r] = start = max(before, after)
        own = np.frombuffer(rows[r].slots.tobytes(), np.int32)
        tails[r] = np.concatenate([path[start:], own]) if start < len(path) else own
    return AttentionPlan(segments, tails, starts)


def _shared_intervals(common: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Segments of sorted rows of which `common[i]` says how many slots rows i and i + 1 share: the first slot, the end,
    and the first row that reads them and the one after the last. These are the intervals of longest common prefixes of
    a suffix array (Abouelhoda, Kurtz and Ohlebusch 2004)."""
    open_segments: list[tuple[int, int]] = []  # end and first row, each inside the one before
    for i, shared in enumerate([*common, 0]):
        first = i
        while open_segments and open_segments[-1][0] > shared:
            stop, first = open_segments.pop()
            yield max(shared, open_segments[-1][0] if open_segments else 0), stop, first, i + 1
        if shared and (not open_segments or open_segments[-1][0] < shared):
            open_segments.append((shared, first))


_first = itemgetter(0)
_NONE = np.empty(0, np.int32)
