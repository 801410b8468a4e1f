"""A radix tree of token prefixes: which token of which prefix is in which slot of the key-value cache. Integers only.

A slot holds the keys and values of one token in every layer. Slots are allocated one by one, so a path can fork at any
token without a copy. A node is a run of tokens with their slots; its children are different continuations. A sequence
holds a reference to the last node of its path. Nodes without references stay cached until their slots are needed; the
least recently used leaf is evicted first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ponder.types import Ids

Slots = NDArray[np.int32]
_NONE = np.empty(0, np.int32)
_TOKEN_BYTES = _NONE.itemsize
_MAX_RECENT_TOKENS = 1 << 22  # of all recent paths together, of each token and slot four bytes


class OutOfSlots(Exception):
    """Fewer slots are free than requested."""


class RadixNode:
    """A run of tokens. The first `computed` of them have keys and values; if any, then all tokens before the run too.
    `ref_count` counts the holders of this node and its children that have references."""

    __slots__ = (
        "children", "computed", "end", "in_eviction_heap", "key", "last_used", "parent", "path_slots", "ref_count",
        "slots", "tokens", "tree",
    )  # fmt: skip

    def __init__(self, tree: RadixTree, parent: RadixNode | None, tokens: Ids, slots: Slots, filled: int) -> None:
        self.tree = tree
        self.parent, self.slots, self.computed = parent, slots, filled
        self.tokens, self.key = tokens, tokens.tobytes()
        self.children: dict[int, RadixNode] = {}
        self.ref_count, self.last_used, self.in_eviction_heap = 0, 0, False
        self.path_slots: Slots | None = None  # see RadixTree.path_slots
        self.end: int = len(tokens) + (parent.end if parent else 0)  # tokens from the root to the end of this run

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_computed(self) -> bool:
        """Whether all tokens up to the end of this run have keys and values."""
        return self.computed == len(self.tokens)

    def path(self) -> list[RadixNode]:
        """Nodes from the first run of the prefix to this one."""
        nodes: list[RadixNode] = []
        node: RadixNode | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class SlotAllocator:
    """Hands out free slots."""

    def __init__(self, size: int) -> None:
        self.size = self.free_count = size
        self._unused = 0  # this slot and those after it were never handed out, or not since all were free
        self._free_stack = np.empty(size, np.int32)  # of those before; pages that are not written take no memory

    def sort_if_unused(self) -> None:
        """Hand out slots in their order again, if all are free: a sequence's slots then lie side by side in memory."""
        if self.free_count == self.size:
            self._unused = 0

    def allocate(self, number: int) -> Slots:
        """The slots that became free last; when there are none left, those that were not handed out."""
        if number > self.free_count:
            raise OutOfSlots
        stacked = self.free_count - (self.size - self._unused)
        taken = min(number, stacked)
        self.free_count -= number
        again = self._free_stack[stacked - taken : stacked][::-1]
        if taken == number:
            return again.copy()
        first, self._unused = self._unused, self._unused + number - taken
        return np.concatenate([again, np.arange(first, self._unused, dtype=np.int32)])

    def free_slots(self, slots: Slots) -> None:
        stacked = self.free_count - (self.size - self._unused)
        self._free_stack[stacked : stacked + len(slots)] = slots[::-1]
        self.free_count += len(slots)


class RadixTree:
    def __init__(self, memory: SlotAllocator) -> None:
        self.memory = memory
        self.roots: dict[str, RadixNode] = {}  # by adapter: keys depend on the weights
        self.evictable = 0  # slots of nodes without references
        self.is_stale = False  # of older weights: no prefix is added or matched any more
        self._clock = count(1)
        self._eviction_heap: list[tuple[int, int, RadixNode]] = []  # (last use, tie breaker, node); may be out of date
        self._tie_breaker = count()
        self._recent_ends: OrderedDict[tuple[str, bytes], RadixNode] = OrderedDict()  # oldest first
        self._recent_paths: deque[RadixNode] = deque()  # nodes that know the slots of their paths, oldest first
        self._recent_end_tokens = self._recent_path_slots = 0

    def match_prefix(self, tokens: Ids, adapter: str = "") -> RadixNode:
        """The node at which the longest cached prefix of these tokens ends. A node is split there if necessary."""
        if adapter not in self.roots:
            self.roots[adapter] = RadixNode(self, None, _NONE, _NONE, 0)
        tokens = np.ascontiguousarray(tokens, np.int32)
        node, at, number, whole = self.roots[adapter], 0, len(tokens), tokens.tobytes()
        recent = self._recent_ends.get((adapter, whole))
        if recent is not None and recent.parent is not None:  # still in the tree
            return recent
        values = memoryview(whole).cast("i")  # its items are plain integers
        while at < number and (child := node.children.get(values[at])) is not None:
            if whole.startswith(child.key, at * _TOKEN_BYTES):  # the usual case: compare the whole run at once
                node = child
            else:
                node = self._split(child, common_prefix_length(child.tokens, tokens[at:]))
            at = node.end
        return node

    def add(self, parent: RadixNode, tokens: Ids, slots: Slots, filled: int) -> RadixNode:
        """Add a child. No other child may have its first token."""
        first = int(tokens[0])
        assert parent.tree is self and first not in parent.children and len(tokens) == len(slots)
        child = parent.children[first] = RadixNode(self, parent, tokens, slots, filled)
        child.last_used = next(self._clock)
        self.evictable += len(tokens)
        self._queue_for_eviction(child)
        return child

    def remember_end(self, node: RadixNode, tokens: bytes, adapter: str = "") -> None:
        """A path of these tokens, as int32, ends at this node. It is found at once where a request continues it: a step
        of a search asks for the paths of the step before, which fork many times on the way."""
        key = (adapter, tokens)
        if key not in self._recent_ends:
            self._recent_end_tokens += len(tokens) // _TOKEN_BYTES
        self._recent_ends[key] = node
        while self._recent_end_tokens > _MAX_RECENT_TOKENS:
            (_, oldest), _ = self._recent_ends.popitem(last=False)
            self._recent_end_tokens -= len(oldest) // _TOKEN_BYTES

    def path_slots(self, node: RadixNode) -> Slots:
        """Slots of all tokens up to the end of a node. Recent nodes whose tokens are computed, which then keep their
        slots, remember them: the paths of the next step of a search begin with those of this one."""
        if node.path_slots is not None:
            return node.path_slots
        runs: list[Slots] = []
        above: RadixNode | None = node
        while above is not None and above.path_slots is None:
            runs.append(above.slots)
            above = above.parent
        if above is not None and above.path_slots is not None:
            runs.append(above.path_slots)
        path = np.concatenate(runs[::-1])
        if node.is_computed and node.parent is not None:
            node.path_slots = path
            self._recent_paths.append(node)
            self._recent_path_slots += len(path)
            while self._recent_path_slots > _MAX_RECENT_TOKENS:
                oldest = self._recent_paths.popleft()
                self._recent_path_slots -= oldest.end
                oldest.path_slots = None
        return path

    def insert_computed(self, parent: RadixNode, tokens: Ids, slots: Slots) -> RadixNode:
        """Take over slots of computed tokens after a node; returns where they end. Slots of tokens that the tree
        already has are freed."""
        while len(tokens):
            child = parent.children.get(int(tokens[0]))
            if child is None:
                return self.add(parent, tokens, slots, len(tokens))
            same = common_prefix_length(child.tokens, tokens)
            if same < len(child):
                child = self._split(child, same)
            if child.computed < same:  # it was waiting to be computed
                child.slots, spare = slots[:same].copy(), child.slots
                child.computed = same
                self.memory.free_slots(spare)
            else:
                self.memory.free_slots(slots[:same])
            parent, tokens, slots = child, tokens[same:], slots[same:]
        return parent

    def hold(self, node: RadixNode) -> RadixNode:
        assert node.tree is self and not self.is_stale
        n: RadixNode | None = node
        while n is not None and n.parent is not None:
            n.ref_count += 1
            if n.ref_count > 1:
                break
            self.evictable -= len(n.tokens)
            n = n.parent
        return node

    def release(self, node: RadixNode) -> None:
        assert node.tree is self
        now = next(self._clock)
        n: RadixNode | None = node
        while n is not None and n.parent is not None:
            n.ref_count -= 1
            if n.ref_count:
                break
            n.last_used = now
            if self.is_stale:
                self.memory.free_slots(n.slots)
            else:
                self.evictable += len(n.tokens)
                self._queue_for_eviction(n)
            n = n.parent

    def evict(self, number: int) -> bool:
        """Evict nodes until `number` slots are free. False if that is impossible; then nothing is evicted."""
        if self.memory.free_count + self.evictable < number:
            return False
        while self.memory.free_count < number:
            used, _, node = heapq.heappop(self._eviction_heap)
            node.in_eviction_heap = False
            if node.last_used != used:
                self._queue_for_eviction(node)  # used since
            elif not node.ref_count and not node.children:
                self._delete_leaf(node)
        return True

    def replace_with_empty(self) -> RadixTree:
        """A new, empty tree with the same slots. Nodes in use stay until they are released."""
        self.is_stale = True
        for node in self.nodes():
            if not node.ref_count:
                self.memory.free_slots(node.slots)
        self.memory.sort_if_unused()
        return RadixTree(self.memory)

    def nodes(self) -> Iterator[RadixNode]:
        waiting = [child for root in self.roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Split a run in two. The node becomes the lower part, so its holders still hold it. Returns the upper part."""
        assert 0 < at < len(node) and node.parent is not None
        upper = RadixNode(self, node.parent, node.tokens[:at], node.slots[:at], min(node.computed, at))
        upper.ref_count, upper.last_used = int(node.ref_count > 0), node.last_used
        node.parent.children[int(node.tokens[0])] = upper
        node.parent, node.computed = upper, max(0, node.computed - at)
        node.tokens, node.slots = node.tokens[at:], node.slots[at:]
        node.key = node.tokens.tobytes()
        upper.children[int(node.tokens[0])] = node
        return upper

    def _delete_leaf(self, leaf: RadixNode) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.tokens[0])]
        self.memory.free_slots(leaf.slots)
        self.evictable -= len(leaf)
        self._queue_for_eviction(leaf.parent)
        leaf.parent = None

    def _queue_for_eviction(self, node: RadixNode) -> None:
        """Queue a node if it may be evicted now."""
        if not (node.ref_count or node.children or node.in_eviction_heap or node.parent is None):
            node.in_eviction_heap = True
            heapq.heappush(self._eviction_heap, (node.last_used, next(self._tie_breaker), node))


def common_prefix_length(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Number of tokens, or slots, that both begin with."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    if n == 1 or a[1] != b[1]:  # often: continuations of one token
        return 1
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
