"""Which keys each decoding row reads, and which of them several rows share (cascade attention). Integers only.

A run of the tree below which two or more rows are is a shared segment: its keys are read once for all its rows. What a
row reads alone, the end of its path and its own slots, is its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ponder.engine.radix_tree import RadixNode, Slots
from ponder.engine.request import SequenceState


@dataclass(slots=True, eq=False)
class KVSegment:
    """Slots in the order of their tokens; the first token is at `position`."""

    rows: list[int]
    position: int
    slot_runs: list[Slots] = field(default_factory=list)

    @property
    def slots(self) -> Slots:
        return np.concatenate(self.slot_runs)


@dataclass(slots=True)
class AttentionPlan:
    shared: list[KVSegment]
    tails: list[Slots]  # of each row
    tail_starts: list[int]  # position of each tail's first token


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
    runs = sorted(readers, key=lambda n: n.end)  # parents first: no run is empty
    for node in reversed(runs):
        if node.parent in readers:
            readers[node.parent] += readers[node]
    segments: dict[RadixNode, KVSegment] = {}  # by each of their runs
    alone: dict[int, list[Slots]] = {}
    for node in runs:
        readers_here = readers[node]
        if len(readers_here) == 1:
            alone.setdefault(readers_here[0], []).append(node.slots)
            continue
        above = segments.get(node.parent) if node.parent is not None else None
        if above is None or len(above.rows) != len(readers_here):
            above = KVSegment(sorted(readers_here), node.end - len(node))
        above.slot_runs.append(node.slots)
        segments[node] = above
    tails, starts = [], []
    for r, row in enumerate(rows):
        assert row.node is not None
        own = np.asarray(row.slots, np.int32)
        tails.append(np.concatenate([*alone[r], own]) if r in alone else own)
        starts.append(row.node.end + len(own) - len(tails[-1]))
    return AttentionPlan(list(dict.fromkeys(segments.values())), tails, starts)
