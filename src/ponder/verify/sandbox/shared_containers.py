"""Containers that both peers have: each message lists their changes, so that both copies stay equal (peer.py).

A container keeps its number as long as both sides can reach it. When a side drops its last reference, it says so.
"""

from __future__ import annotations

import sys
from typing import Any

from ponder.verify.sandbox import crossing_types
from ponder.verify.sandbox.codec import MAX_JSON_INTEGER, NotPlainData, Tree, dumps


class SharedContainer:
    """A container that both sides have, and its members when last sent."""

    __slots__ = ("container", "last_sent")

    def __init__(self, container: Any) -> None:
        self.container = container
        self.last_sent: list[Any] | None = None  # its members


class SharedContainers:
    """The containers of both sides. A peer packs and unpacks their members."""

    def __init__(self, runs_tests: bool) -> None:
        self.runs_tests = runs_tests
        self.changed = False  # whether the other side changed a container of ours
        self.proxied: dict[int, int] = {}  # numbers of theirs, by the id of the proxy here
        self._shared: dict[int, SharedContainer] = {}
        self._shared_numbers: dict[int, int] = {}
        self._dropped: dict[int, Any] = {}  # dropped by the current message, which may still refer to them
        self._next = 0 if runs_tests else 1  # each side numbers what it shares, one evenly, one oddly

    def pack(self, value: Any, depth: int = 0) -> Tree:
        raise NotImplementedError("a peer says how values cross")

    def unpack(self, tree: Tree, depth: int = 0) -> Any:
        raise NotImplementedError("a peer says how values cross")

    def name(self, value: Any) -> Tree:
        raise NotImplementedError("a peer says how objects cross")

    def container(self, number: int) -> Any:
        """The container of this number."""
        shared = self._shared.get(number)
        return self._dropped[number] if shared is None else shared.container

    def _part(self, dropped: Tree) -> None:
        """Forget containers that the other side can no longer reach."""
        self._dropped = {}
        for number in dropped:
            shared = self._shared.pop(number, None)
            if shared is not None:
                self._shared_numbers.pop(id(shared.container), None)
                self._dropped[number] = shared.container

    def share(self, container: Any) -> int:
        number = self._shared_numbers.get(id(container))
        if number is None:
            number = self._next
            self._next += 2
            self._keep(number, container)
        return number

    def _keep(self, number: int, container: Any) -> None:
        self._shared[number] = SharedContainer(container)
        self._shared_numbers[id(container)] = number

    def _changes(self) -> list[Tree]:
        """The changed content of each shared container. Packing one may share others, which follow it."""
        changes, checked = [], 0
        while checked < len(self._shared):
            for number, shared in list(self._shared.items())[checked:]:
                checked += 1
                now = crossing_types.members(shared.container, self._kind(shared.container))
                if shared.last_sent is None or not crossing_types.same_members(shared.last_sent, now):
                    shared.last_sent = now
                    changes.append([number, *self._content(shared.container)])
        return changes

    def _content(self, container: Any) -> Tree:
        """[name of the builtin type, the object around it or None, items...]"""
        kind, around = self._kind(container), None
        if kind is not type(container):
            theirs = self.proxied.get(id(container))
            around = self.name(container) if theirs is None else ["o", theirs]
        items = [
            item if type(item) is int and -MAX_JSON_INTEGER < item < MAX_JSON_INTEGER else self.pack(item)
            for item in crossing_types.CONTAINER_TYPES[kind].items(container)
        ]
        if kind is set:
            items.sort(key=dumps)  # or the order would look like a change
        return [kind.__name__, around, *items]

    def _kind(self, container: Any) -> type[Any]:
        return (
            type(container)
            if type(container) in crossing_types.CONTAINER_TYPES
            else crossing_types.builtin_base(type(container)) or list
        )

    def _drop(self) -> list[int]:
        """Drop what only this table still references: no code here can change it any more."""
        dropped = []
        for number, shared in list(self._shared.items()):
            if sys.getrefcount(shared.container) == 2:  # the table's and the call's
                del self._shared_numbers[id(shared.container)], self._shared[number]
                shared.container = None
                dropped.append(number)
        return dropped

    def _take(self, changes: Tree) -> None:
        for number, name, around, *_ in changes:
            if number not in self._shared:
                kind = crossing_types.BY_NAME[name]
                container = crossing_types.CONTAINER_TYPES[kind].make() if around is None else self.unpack(around)
                self._keep(number, container)
        for number, name, _, *items in changes:
            shared, kind = self._shared[number], crossing_types.BY_NAME[name]
            self.changed = self.changed or (shared.last_sent is not None and number % 2 == (not self.runs_tests))
            if not isinstance(shared.container, kind):
                raise NotPlainData("a container became another")
            unpacked = [item if type(item) is int else self.unpack(item) for item in items]
            crossing_types.CONTAINER_TYPES[kind].fill(shared.container, unpacked)
            shared.last_sent = crossing_types.members(shared.container, kind)
