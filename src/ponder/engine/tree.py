"""Which token of which prefix lies where in the key-value cache. Integers only: no tensors, no model.

A slot holds the keys and values of one token in every layer. Slots are handed out one by one, so a path may fork at
any token: nothing is copied then, and no slot stays half used. The tree is a radix tree over token prefixes: a node is
a run of tokens with their slots, its children go on differently. Whoever reads a path holds its last node; what nobody
holds stays until its slots are needed, and the longest unused leaf goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ponder.types import Ids

Slots = NDArray[np.int32]
_NONE = np.empty(0, np.int32)


class Full(Exception):
    """Fewer slots are left than were asked for."""


class Node:
    """A run of tokens. `filled` of them have their keys and values, if any then all before them too; `users` are those
    who hold this node, and those of its children that have users."""

    __slots__ = ("children", "end", "filled", "key", "parent", "queued", "slots", "tokens", "tree", "used", "users")

    def __init__(self, tree: Tree, parent: Node | None, tokens: Ids, slots: Slots, filled: int) -> None:
        self.tree = tree
        self.parent, self.slots, self.filled = parent, slots, filled
        self.tokens, self.key = tokens, tokens.tobytes()
        self.children: dict[int, Node] = {}
        self.users, self.used, self.queued = 0, 0, False
        self.end: int = len(tokens) + (parent.end if parent else 0)  # tokens from the root to here

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def whole(self) -> bool:
        """All tokens up to the end of this run have their keys and values."""
        return self.filled == len(self.tokens)

    def path(self) -> list[Node]:
        """From the first run of the prefix to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Memory:
    """A number of slots, and those that are free."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._stack = np.arange(size - 1, -1, -1, dtype=np.int32)

    def take(self, number: int) -> Slots:
        if number > self.free:
            raise Full
        self.free -= number
        return self._stack[self.free : self.free + number][::-1].copy()

    def give(self, slots: Slots) -> None:
        self._stack[self.free : self.free + len(slots)] = slots[::-1]
        self.free += len(slots)


class Tree:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.roots: dict[str, Node] = {}  # by adapter: other weights make other keys of the same tokens
        self.idle = 0  # slots that nobody holds: they can be had
        self.dead = False  # of older weights: nothing is added or found any more
        self._clock = count(1)
        self._leaves: list[tuple[int, int, Node]] = []  # a heap of (last use, a number, node); may be out of date
        self._number = count()

    def match(self, tokens: Ids, adapter: str = "") -> Node:
        """The node in which the longest known prefix of these tokens ends, cut there if need be."""
        if adapter not in self.roots:
            self.roots[adapter] = Node(self, None, _NONE, _NONE, 0)
        node, at, whole = self.roots[adapter], 0, tokens.tobytes()
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))) is not None:
            if whole.startswith(child.key, at * tokens.itemsize):  # nearly always: one look at the whole run
                node, same = child, len(child.tokens)
            else:
                same = _common(child.tokens, tokens[at:])
                node = self._cut(child, same)
            at += same
        return node

    def add(self, parent: Node, tokens: Ids, slots: Slots, filled: int) -> Node:
        """A new child. Its first token must be one that no other child has."""
        assert parent.tree is self and int(tokens[0]) not in parent.children and len(tokens) == len(slots)
        child = Node(self, parent, tokens, slots, filled)
        parent.children[int(tokens[0])] = child
        child.used = next(self._clock)
        self.idle += len(child)
        self._rest(child)
        return child

    def keep(self, parent: Node, tokens: Ids, slots: Slots) -> None:
        """Take over computed tokens after a node. What the tree has already is not kept twice."""
        while len(tokens):
            child = parent.children.get(int(tokens[0]))
            if child is None:
                self.add(parent, tokens, slots, len(tokens))
                return
            same = _common(child.tokens, tokens)
            if same < len(child):
                child = self._cut(child, same)
            if child.filled < same:  # it waits to be computed: here it is
                child.slots, spare = slots[:same].copy(), child.slots
                child.filled = same
                self.memory.give(spare)
            else:
                self.memory.give(slots[:same])
            parent, tokens, slots = child, tokens[same:], slots[same:]

    def hold(self, node: Node) -> Node:
        assert node.tree is self and not self.dead
        n: Node | None = node
        while n is not None and n.parent is not None:
            n.users += 1
            if n.users > 1:
                break
            self.idle -= len(n.tokens)
            n = n.parent
        return node

    def release(self, node: Node) -> None:
        assert node.tree is self
        now = next(self._clock)
        n: Node | None = node
        while n is not None and n.parent is not None:
            n.users -= 1
            if n.users:
                break
            n.used = now
            if self.dead:
                self.memory.give(n.slots)
            else:
                self.idle += len(n.tokens)
                self._rest(n)
            n = n.parent

    def evict(self, number: int) -> bool:
        """Free slots until so many are free. False if that cannot be; then nothing is lost."""
        if self.memory.free + self.idle < number:
            return False
        while self.memory.free < number:
            used, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if node.used != used:
                self._rest(node)  # used since
            elif not node.users and not node.children:
                self._drop(node)
        return True

    def clear(self) -> Tree:
        """A new, empty tree on the same memory. What is in use stays until it is released."""
        self.dead = True
        for node in self.nodes():
            if not node.users:
                self.memory.give(node.slots)
        return Tree(self.memory)

    def nodes(self) -> Iterator[Node]:
        waiting = [child for root in self.roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def _cut(self, node: Node, at: int) -> Node:
        """Cut a run in two; the node stays its lower part, so that whoever holds it still does. Returns the upper."""
        assert 0 < at < len(node) and node.parent is not None
        upper = Node(self, node.parent, node.tokens[:at], node.slots[:at], min(node.filled, at))
        upper.users, upper.used = int(node.users > 0), node.used
        node.parent.children[int(node.tokens[0])] = upper
        node.parent, node.filled = upper, max(0, node.filled - at)
        node.tokens, node.slots = node.tokens[at:], node.slots[at:]
        node.key = node.tokens.tobytes()
        upper.children[int(node.tokens[0])] = node
        return upper

    def _drop(self, leaf: Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.tokens[0])]
        self.memory.give(leaf.slots)
        self.idle -= len(leaf)
        self._rest(leaf.parent)
        leaf.parent = None

    def _rest(self, node: Node) -> None:
        """Note a node that may be evicted now."""
        if not (node.users or node.children or node.queued or node.parent is None):
            node.queued = True
            heapq.heappush(self._leaves, (node.used, next(self._number), node))


def _common(a: Ids, b: Ids) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
