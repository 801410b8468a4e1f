"""The radix tree against a plain dictionary of prefixes, over random schedules; no slot is lost or held twice."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.engine import radix_tree
from ponder.engine.radix_tree import OutOfSlots, RadixNode, RadixTree, SlotAllocator, Slots
from ponder.types import ids


def assert_consistent(tree: RadixTree, apart: int = 0) -> None:
    """Every slot is free or in exactly one node; `apart` are held outside the tree."""
    nodes = list(tree.nodes())
    held = [s for n in nodes for s in n.slots.tolist()]
    memory = tree.memory
    stacked = memory.free_count - (memory.size - memory._unused)
    free = [*memory._free_stack[:stacked].tolist(), *range(memory._unused, memory.size)]
    assert len(set(held + free)) == len(held) + len(free) == tree.memory.size - apart
    assert tree.evictable == sum(len(n) for n in nodes if not n.ref_count)
    for n in nodes:
        assert len(n) == len(n.slots) > 0 and n.parent is not None and n.end == n.parent.end + len(n)
        assert n.parent.children[int(n.tokens[0])] is n
        assert n.ref_count >= sum(c.ref_count > 0 for c in n.children.values())


def path_tokens(node: RadixNode) -> list[int]:
    return [t for n in node.path() for t in n.tokens.tolist()]


def put(tree: RadixTree, tokens: list[int]) -> RadixNode:
    """As the scheduler does: match, then add what is new, and hold all of it."""
    node = tree.hold(tree.match_prefix(ids(tokens)))
    if node.end < len(tokens):
        fresh = ids(tokens[node.end :])
        if not tree.evict(len(fresh)):
            tree.release(node)
            raise OutOfSlots
        child = tree.add(node, fresh, tree.memory.allocate(len(fresh)), 0)
        tree.hold(child)
        tree.release(node)
        node = child
    return node


def test_match_prefix_ends_where_tokens_differ() -> None:
    tree = RadixTree(SlotAllocator(50))
    whole = put(tree, [1, 2, 3, 4, 5])
    slots = whole.slots.tolist()
    fork = tree.match_prefix(ids([1, 2, 3, 9]))
    assert path_tokens(fork) == [1, 2, 3] and fork.slots.tolist() == slots[:3]
    assert path_tokens(whole) == [1, 2, 3, 4, 5] and whole.slots.tolist() == slots[3:] and whole.parent is fork
    assert tree.match_prefix(ids([7])).end == 0 and tree.match_prefix(ids([1, 2, 3, 4, 5, 6])) is whole
    assert tree.match_prefix(ids([1, 2, 3]), "other adapter").end == 0
    assert_consistent(tree)


def test_split_keeps_computed_count() -> None:
    for filled in range(6):
        tree = RadixTree(SlotAllocator(9))
        lower = put(tree, [1, 2, 3, 4, 5])
        lower.computed = filled
        upper = tree.match_prefix(ids([1, 2, 3, 8]))
        assert (upper.computed, lower.computed) == (min(filled, 3), max(0, filled - 3))


def test_least_recently_used_leaf_is_evicted_first() -> None:
    tree = RadixTree(SlotAllocator(12))
    for tokens in ([1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]):
        tree.release(put(tree, tokens))
    tree.release(put(tree, [1, 1, 1, 1]))  # used again
    tree.release(put(tree, [4, 4]))
    assert tree.match_prefix(ids([2, 2])).end == 0 and tree.match_prefix(ids([1, 1, 1, 1])).end == 4
    tree.release(put(tree, [5, 5, 5, 5]))
    assert tree.match_prefix(ids([3, 3])).end == 0 and tree.match_prefix(ids([1, 1, 1, 1])).end == 4
    assert_consistent(tree)


def test_held_nodes_are_never_evicted() -> None:
    tree = RadixTree(SlotAllocator(10))
    held = put(tree, [1, 2, 3, 4, 5, 6])
    tree.release(put(tree, [1, 2, 9, 9]))
    before = {tuple(path_tokens(n)) for n in tree.nodes()}
    with pytest.raises(OutOfSlots):
        put(tree, [8] * 5)
    assert {tuple(path_tokens(n)) for n in tree.nodes()} == before
    tree.release(put(tree, [8] * 4))
    assert tree.match_prefix(ids([1, 2, 3, 4, 5, 6])) is held
    assert_consistent(tree)


def test_computed_run_is_stored_once() -> None:
    tree = RadixTree(SlotAllocator(30))
    root = tree.match_prefix(ids([0]))
    for tokens in ([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 7], [1, 2]):
        tree.insert_computed(root, ids(tokens), tree.memory.allocate(len(tokens)))
        assert_consistent(tree)
    assert sum(map(len, tree.nodes())) == 5, "1 2, 3 4 and 7"
    waiting = put(tree, [9, 9, 9])
    tree.insert_computed(root, ids([9, 9, 9, 6]), tree.memory.allocate(4))
    assert waiting.computed == 3, "what another computed first need not be computed again"
    assert_consistent(tree)


def test_new_weights_empty_the_tree_and_keep_held_nodes() -> None:
    tree = RadixTree(SlotAllocator(20))
    held = put(tree, [1, 2, 3])
    below = put(tree, [1, 2, 3, 4])
    tree.release(put(tree, [1, 2, 8, 8]))
    slots = held.slots.tolist()
    fresh = tree.replace_with_empty()
    assert fresh.match_prefix(ids([1, 2, 3])).end == 0 and fresh.memory.free_count == 16
    tree.release(below)
    assert fresh.memory.free_count == 17 and held.slots.tolist() == slots
    tree.release(held)
    assert fresh.memory.free_count == 20
    assert_consistent(fresh)
    assert fresh.replace_with_empty().memory.allocate(20).tolist() == list(range(20)), "side by side again"


@given(st.integers(0, 2**32), st.integers(8, 60), st.integers(2, 3))
def test_random_schedules_against_a_set_of_prefixes(seed: int, size: int, letters: int) -> None:
    """A naive cache knows every prefix ever put and not evicted: the tree must find the same, and never a wrong one."""
    draw = random.Random(seed)
    content: dict[int, tuple[int, ...]] = {}  # what each slot was taken for: the whole prefix up to its token

    class Noting(SlotAllocator):
        def allocate(self, number: int) -> Slots:
            for slot in (taken := super().allocate(number)).tolist():
                content.pop(slot, None)
            return taken

    tree = RadixTree(Noting(size))
    held: list[RadixNode] = []
    dead: list[tuple[RadixTree, RadixNode]] = []
    for _ in range(60):
        action = draw.random()
        if action < 0.5:
            tokens = [draw.randrange(letters) for _ in range(draw.randint(1, 12))]
            try:
                node = put(tree, tokens)
            except OutOfSlots:
                continue
            slots = [s for n in node.path() for s in n.slots.tolist()]
            for i, slot in enumerate(slots):
                assert content.setdefault(slot, tuple(tokens[: i + 1])) == tuple(tokens[: i + 1])
            held.append(node)
        elif action < 0.9 and held:
            node = held.pop(draw.randrange(len(held)))
            tree.release(node)
        elif action < 0.93:
            dead += [(tree, n) for n in held]
            tree, held = tree.replace_with_empty(), []
        elif dead:
            old, node = dead.pop(draw.randrange(len(dead)))
            old.release(node)
        apart = {s for _, n in dead for m in n.path() for s in m.slots.tolist()}
        assert_consistent(tree, len(apart))
        known = {tuple(path_tokens(n)[:k]) for n in tree.nodes() for k in range(1, n.end + 1)}
        probe = [draw.randrange(letters) for _ in range(8)]
        longest = max((k for k in range(9) if tuple(probe[:k]) in known), default=0)
        assert tree.match_prefix(ids(probe)).end == longest
    for node in held:
        tree.release(node)
    for old, node in dead:
        old.release(node)
    assert tree.replace_with_empty().memory.free_count == size


def test_eviction_heap_stays_small() -> None:
    tree = RadixTree(SlotAllocator(64))
    for i in range(500):
        tree.release(put(tree, [1, 2, 3, i % 3]))
    assert len(tree._eviction_heap) <= len(list(tree.nodes())) + 1


def test_slots_are_freed_in_any_order() -> None:
    memory = SlotAllocator(100)
    taken = [memory.allocate(7) for _ in range(14)]
    assert len(np.unique(np.concatenate(taken))) == 98
    with pytest.raises(OutOfSlots):
        memory.allocate(3)
    for slots in taken[::2] + taken[1::2]:
        memory.free_slots(slots)
    assert memory.free_count == 100 and len(set(memory.allocate(100).tolist())) == 100


def test_slots_come_back_last_in_first_out() -> None:
    """As from a stack that holds all slots at first, the lowest on top."""
    draw, memory, stack = random.Random(0), SlotAllocator(50), list(range(49, -1, -1))
    held: list[list[int]] = []
    for _ in range(500):
        if held and draw.random() < 0.5:
            slots = held.pop(draw.randrange(len(held)))
            memory.free_slots(np.asarray(slots, np.int32))
            stack += slots[::-1]
            if len(stack) == 50 and draw.random() < 0.5:
                memory.sort_if_unused()
                stack.sort(reverse=True)
        elif number := draw.randint(0, len(stack)):
            held.append(memory.allocate(number).tolist())
            assert held[-1] == [stack.pop() for _ in range(number)]
        assert memory.free_count == len(stack)


def test_recent_ends_and_paths_are_those_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random paths are added, found, split and evicted; what is remembered agrees with a walk through the tree, and is
    bounded."""
    monkeypatch.setattr(radix_tree, "_MAX_RECENT_TOKENS", 300)
    draw = np.random.default_rng(0)
    tree = RadixTree(SlotAllocator(400))
    remembered: list[np.ndarray] = []
    for _ in range(400):
        tokens = ids(draw.integers(0, 3, draw.integers(1, 12)))
        if remembered and draw.random() < 0.6:  # continue a path, as a search does
            tokens = np.concatenate([remembered[-int(draw.integers(1, 1 + min(9, len(remembered))))], tokens])[-40:]
        held = tree.hold(tree.match_prefix(tokens))
        rest = tokens[held.end :]
        if not tree.evict(len(rest)):
            tree.release(held)
            continue
        end = tree.insert_computed(held, rest, tree.memory.allocate(len(rest)))
        tree.remember_end(end, tokens.tobytes())
        tree.release(held)
        remembered.append(tokens)
        for known in (tokens, remembered[int(draw.integers(len(remembered)))]):
            node = tree.match_prefix(known)
            assert path_tokens(node) == known[: node.end].tolist()
            slots = tree.path_slots(node).tolist()
            assert slots == [s for n in node.path() for s in n.slots.tolist()] and len(slots) == node.end
        assert tree._recent_end_tokens == sum(len(key) // 4 for _, key in tree._recent_ends) <= 300
        assert tree._recent_path_slots == sum(n.end for n in tree._recent_paths) <= 300
