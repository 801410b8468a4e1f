"""Two interpreters that share no memory, with objects of each that the other can use.

One holds a program, the other its tests; each has a `Peer`. They take turns: while a request is pending, the side that
received it may send requests back (a program calls a function that its tests passed in). A message is
[kind, body, changes, dropped, classes, printed], where `kind` is "?" for a request, "=" for a value, "!" for an error.

How a value crosses:

- plain data and some types of the standard library, by value (crossing_types.py)
- lists, dicts, sets and similar containers, by value and number. Both sides keep the number as long as they keep the
  object, and every message lists the changes, so both sides see one list and not two (shared_containers.py)
- any other object, by number alone: the other side has a proxy for it (proxies.py). Its class crosses too

Everything here may come from a hostile program. `operations.py` says what a peer may ask for.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from ponder.verify.sandbox import crossing_types, proxies
from ponder.verify.sandbox.codec import MAX_CODEC_DEPTH, NotPlainData, Tree, decode, encode
from ponder.verify.sandbox.remote_errors import pack_error, pack_library_error, rebuild_error, unpack_error
from ponder.verify.sandbox.shared_containers import SharedContainers

Operation = Callable[..., Any]


class MalformedMessage(RuntimeError):
    """The other side sent a message that no peer sends."""


class Peer(SharedContainers):
    """One side. `operations`: what the other side may ask for, by name. `runs_tests`: this is the side of the tests."""

    def __init__(
        self,
        send: Callable[[Tree], None],
        receive: Callable[[], Tree],
        operations: dict[str, Operation],
        runs_tests: bool = False,
    ) -> None:
        super().__init__(runs_tests)
        self._send, self._receive, self._operations = send, receive, operations
        self.own_objects: list[Any] = []  # objects of ours that the other side may name, by number
        self._numbers: dict[int, int] = {}
        self.remote_proxies: dict[int, Any] = {}  # proxies of theirs, by number, which keeps them alive for `proxied`
        self._described: set[int] = set()
        self._to_describe: list[int] = []
        self.descriptions: dict[int, Tree] = {}
        self.asked = False
        self.stdout = sys.stdout
        self._lock = threading.RLock()
        self._turn = threading.Condition(self._lock)
        self._serving = runs_tests  # whether it is our turn to send
        proxies.set_peer(self)

    # -- messages ------------------------------------------------------------------------------------------------------

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Request an operation of the other side: returns its result or raises its error."""
        with self._turn:
            while not self._serving:  # a thread that calls back after the call it belongs to was answered
                self._turn.wait()
            self.asked = True
            body = [operation, sys.stdout is not self.stdout, *[self.pack(argument) for argument in arguments]]
            self._send_message("?", body)
            while True:
                message = self._receive()
                try:
                    kind, body = self._receive_message(message)
                    if kind == "=":
                        return self.unpack(body)
                    error = unpack_error(self, body, operation, arguments) if kind == "!" else None
                except Exception as crooked:
                    raise MalformedMessage(f"a malformed answer: {type(crooked).__name__}") from None
                if error is not None:
                    raise error
                self._answer(body)

    def serve(self, message: Tree) -> None:
        """Handle a request of the other side."""
        kind, body = self._receive_message(message)
        if kind == "?":
            with self._turn:
                self._serving = True
                self._turn.notify_all()
            self._answer(body, last=True)

    def _answer(self, body: Tree, last: bool = False) -> None:
        printed: io.StringIO | None = None
        try:
            operation, printing, *rest = body
            arguments = [self.unpack(tree) for tree in rest]
            if printing:
                printed = io.StringIO()
            with contextlib.redirect_stdout(printed) if printed else contextlib.nullcontext():
                value = self._operations[operation](self, *arguments)
            del arguments
            kind, answer = "=", self.pack(value)
            del value
        except BaseException as error:
            kind, answer = "!", pack_error(self, error)
            del error
        with self._turn:
            self._serving = not last
            self._send_message(kind, answer, printed.getvalue() if printed else "")

    def _send_message(self, kind: str, body: Tree, printed: str = "") -> None:
        changes = self._changes()
        dropped = self._drop()
        self._send([kind, body, changes, dropped, self._descriptions(), printed])

    def _receive_message(self, message: Tree) -> tuple[str, Tree]:
        kind, body, changes, dropped, classes, printed = message
        for number, description in classes:
            self.descriptions.setdefault(number, description)
        self._take(changes)
        self._part(dropped)
        if printed and self.runs_tests:
            sys.stdout.write(str(printed))
        return kind, body

    # -- values --------------------------------------------------------------------------------------------------------

    def pack(self, value: Any, depth: int = 0) -> Tree:
        """A value as a tree that the other side can unpack."""
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind in crossing_types.SCALAR_TYPES:
            return encode(value)
        if depth > MAX_CODEC_DEPTH:
            raise NotPlainData(f"more than {MAX_CODEC_DEPTH} containers within containers")
        if id(value) in self.proxied:
            return ["o", self.proxied[id(value)]]
        if kind is tuple or kind is frozenset:
            items = [self.pack(item, depth + 1) for item in value]
            return ["t" if kind is tuple else "z", *items]
        if kind in crossing_types.CONTAINER_TYPES:
            return ["@", self.share(value)]
        if kind in crossing_types.IMMUTABLE_TYPES:
            return [
                "V",
                kind.__name__,
                *[self.pack(part, depth + 1) for part in crossing_types.IMMUTABLE_TYPES[kind](value)],
            ]
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            return self.pack(value.tolist(), depth + 1)
        if value is ... or value is NotImplemented:
            return ["E", "..." if value is ... else "NotImplemented"]
        if kind is proxies.BoundRemoteMethod:
            return self.pack(value.fetch(), depth + 1)
        return self._pack_object(value, kind)

    def _pack_object(self, value: Any, kind: type) -> Tree:
        name = crossing_types.standard_name(value) if self.runs_tests or crossing_types.is_plain_class(value) else None
        if name is not None:
            return ["n", *name]
        if isinstance(value, BaseException) and crossing_types.standard_name(kind) is not None:
            return pack_library_error(self, value)
        base = crossing_types.builtin_base(kind)
        if base in crossing_types.CONTAINER_TYPES:
            self.name(value)
            return ["@", self.share(value)]
        return self.name(value)

    def introduce(self, function: Any) -> None:
        """Register a function as object 0, which the other side knows without a message: see `introduced`."""
        self.number(function)
        self._described.add(self.number(type(function)))

    def introduced(self) -> Any:
        """The proxy of the function that the other side registered with `introduce`."""
        self.descriptions[1] = proxies.describe(self, types.FunctionType)
        return proxies.make_proxy(self, "h", 0, 1)

    def is_mine(self, value: Any) -> bool:
        """Whether this is an object of ours that the other side was handed."""
        return id(value) in self._numbers

    def number(self, value: Any) -> int:
        """The permanent number by which the other side refers to an object of ours."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.own_objects)
            self.own_objects.append(value)
        return number

    def name(self, value: Any) -> Tree:
        """The tree of an object that stays on this side."""
        number = self.number(value)
        if isinstance(value, type):
            self._describe_later(value)
            return ["K", number]
        kind = type(value)
        self._describe_later(kind)
        tree = [proxies.proxy_kind(value), number, self.number(kind)]
        if isinstance(value, BaseException):
            return [*tree, ["t", *[self.pack(part) for part in value.args]], self.pack(value.__cause__)]
        base = crossing_types.builtin_base(kind)
        if base is not None and base not in crossing_types.CONTAINER_TYPES:
            return [*tree, self.pack(crossing_types.builtin_value(value, base))]
        return tree

    def unpack(self, tree: Tree, depth: int = 0) -> Any:
        """The value of a tree; raises `NotPlainData`."""
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        tag, rest = tree[0], tree[1:]
        match tag:
            case "@":
                return self.container(rest[0])
            case "o":
                return self.own_objects[rest[0]]
            case "t" | "z":
                items = [self.unpack(item, depth + 1) for item in rest]
                return tuple(items) if tag == "t" else frozenset(items)
            case "V":
                return crossing_types.BY_NAME[rest[0]](*[self.unpack(part, depth + 1) for part in rest[1:]])
            case "E":
                return crossing_types.SINGLETONS[rest[0]]
            case "n":
                return self._from_library(*rest)
            case "X":
                return rebuild_error(self, tree)
            case "K":
                return proxies.class_of(self, rest[0])
        if tag in proxies.PROXY_KINDS:
            return proxies.make_proxy(self, tag, *rest)
        return decode(tree)

    def _from_library(self, module: str, name: str) -> Any:
        """A plain class of the standard library; from trusted tests also its other classes, functions and modules."""
        if not self.runs_tests:
            __import__(module)
        value = crossing_types.from_library(module, name)
        if self.runs_tests and not crossing_types.is_plain_class(value):
            raise NotPlainData("only plain classes have a name on both sides")
        return value

    # -- classes -------------------------------------------------------------------------------------------------------

    def _describe_later(self, kind: type) -> None:
        number = self.number(kind)
        if number not in self._described:
            self._described.add(number)
            self._to_describe.append(number)

    def _descriptions(self) -> list[Tree]:
        """Descriptions of classes that the other side does not know yet, with their bases."""
        descriptions = []
        while self._to_describe:
            number = self._to_describe.pop()
            descriptions.append([number, proxies.describe(self, self.own_objects[number])])
        return descriptions

    def base(self, kind: type) -> Tree:
        """The reference to a base class in the description of a class."""
        name = crossing_types.standard_name(kind)
        if name is not None:
            return ["n", *name]
        self._describe_later(kind)
        return ["K", self.number(kind)]
