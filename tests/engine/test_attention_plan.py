"""Changes of an attention plan: every row still reads the same keys, in order, at the same positions."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
import pytest

from ponder.engine.attention_plan import AttentionPlan, KVSegment, inline_segments, plan_attention, split_tail
from ponder.engine.radix_tree import RadixTree, SlotAllocator
from ponder.engine.request import Request, SequenceState
from ponder.types import Sampling, ids


def three_rows() -> AttentionPlan:
    """Slots 0-9 for all three rows, 10-12 for rows 0 and 1, then a tail each."""
    segments = [KVSegment([0, 1], 10, [slots(10, 13)]), KVSegment([0, 1, 2], 0, [slots(0, 4), slots(4, 10)])]
    return AttentionPlan(segments, [slots(20, 22), slots(30, 31), slots(40, 45)], [13, 13, 10])


def slots(start: int, end: int) -> np.ndarray:
    return np.arange(start, end, dtype=np.int32)


def keys_by_row(plan: AttentionPlan) -> list[dict[int, int]]:
    """The slot at each position that a row reads; no position is read twice."""
    out: list[dict[int, int]] = []
    for row, (tail, start) in enumerate(zip(plan.tails, plan.tail_starts, strict=True)):
        pieces = [(s.position, s.slots) for s in plan.shared if row in s.rows] + [(start, tail)]
        pairs = [(position + i, int(slot)) for position, piece in pieces for i, slot in enumerate(piece)]
        assert len(dict(pairs)) == len(pairs)
        out.append(dict(pairs))
    return out


@pytest.mark.parametrize(("min_keys", "shared"), [(0, [10, 3]), (5, [10]), (11, [])])
def test_inline_segments_keeps_each_rows_keys(min_keys: int, shared: list[int]) -> None:
    plan = three_rows()
    inline_segments(plan, lambda segment: len(segment) >= min_keys)
    assert keys_by_row(plan) == keys_by_row(three_rows())
    assert [len(segment) for segment in plan.shared] == shared


def test_inline_segments_inlines_everything_after_an_inlined_segment() -> None:
    plan = three_rows()
    inline_segments(plan, lambda segment: len(segment) < 5)  # the first segment goes, so the second must go too
    assert plan.shared == [] and plan.tail_starts == [0, 0, 0] and keys_by_row(plan) == keys_by_row(three_rows())


def test_split_tail_makes_a_segment_of_the_rows_own() -> None:
    plan = three_rows()
    split_tail(plan, 2, 4)
    assert plan.shared[-1].rows == [2] and len(plan.shared[-1]) == 4 and plan.tails[2].tolist() == [44]
    assert keys_by_row(plan) == keys_by_row(three_rows())


def test_repeated_reads_counts_the_keys_that_sharing_saves() -> None:
    assert three_rows().repeated_reads() == 2 * 10 + 1 * 3


@pytest.mark.parametrize("seed", range(8))
def test_plan_attention_shares_each_slot_that_two_rows_read_once(seed: int) -> None:
    """Against the paths themselves, for random trees, rows in any order, and rows that end inside others' paths."""
    draw = np.random.default_rng(seed)
    tree = RadixTree(SlotAllocator(4000))
    nodes = [tree.match_prefix(ids([]))]
    for _ in range(40):
        parent = nodes[draw.integers(len(nodes))]
        tokens = ids(draw.integers(0, 1000, draw.integers(1, 6)))
        if int(tokens[0]) not in parent.children:
            nodes.append(tree.add(parent, tokens, tree.memory.allocate(len(tokens)), len(tokens)))
    rows = []
    for _ in range(24):
        [row] = SequenceState.from_request(Request(ids([1]), Sampling(), 1, 0))
        row.node = nodes[draw.integers(len(nodes))]
        row.slots = array("i", tree.memory.allocate(3).tolist())
        rows.append(row)
    plan = plan_attention(rows)
    paths = [[slot for n in row.node.path() for slot in n.slots.tolist()] for row in rows if row.node is not None]
    for read, path, row in zip(keys_by_row(plan), paths, rows, strict=True):
        assert [read[i] for i in range(len(read))] == path + row.slots.tolist()
    readers = Counter(slot for path in paths for slot in path)
    in_segments = Counter(slot for segment in plan.shared for slot in segment.slots.tolist())
    assert in_segments == {slot: 1 for slot, count in readers.items() if count > 1}
    assert len({tuple(segment.rows) for segment in plan.shared}) == len(plan.shared), "one segment for one set of rows"
    for segment in plan.shared:
        assert segment.rows == [r for r, path in enumerate(paths) if segment.slots[0] in path]
