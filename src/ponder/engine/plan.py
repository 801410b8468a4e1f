"""Which keys each decoding row reads, and which of them many rows read alike. Integers only.

A run of the tree that two or more rows stand under is a shared segment: its keys are read once, for all its rows.
What a row reads alone, the end of its path and its own slots, is its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ponder.engine.request import Row
from ponder.engine.tree import Slots


@dataclass(slots=True)
class Segment:
    """Slots in the order of their tokens, the first of which stands at `position`."""

    rows: list[int]
    position: int
    parts: list[Slots] = field(default_factory=list)

    @property
    def slots(self) -> Slots:
        return np.concatenate(self.parts)


@dataclass(slots=True)
class Plan:
    shared: list[Segment]
    tails: list[Slots]  # of each row
    starts: list[int]  # position of each tail's first token


def plan(rows: Sequence[Row]) -> Plan:
    """Runs of one path that the same rows read are one segment."""
    readers: dict[int, list[int]] = {}
    for r, row in enumerate(rows):
        assert row.node is not None
        for node in row.node.path():
            readers.setdefault(id(node), []).append(r)
    segments: dict[tuple[int, ...], Segment] = {}
    tails, starts = [], []
    for r, row in enumerate(rows):
        assert row.node is not None
        alone: list[Slots] = []
        for node in row.node.path():
            who = readers[id(node)]
            if len(who) == 1:
                alone.append(node.slots)
            elif who[0] == r:
                key = tuple(who)
                segment = segments.setdefault(key, Segment(who, node.end - len(node)))
                segment.parts.append(node.slots)
        own = np.asarray(row.own, np.int32)
        tails.append(np.concatenate([*alone, own]))
        starts.append(row.node.end + len(own) - len(tails[-1]))
    return Plan(list(segments.values()), tails, starts)
