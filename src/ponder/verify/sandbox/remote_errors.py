"""Errors across the wall: their class, arguments, attributes and cause."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ponder.verify.sandbox import crossing_types
from ponder.verify.sandbox.codec import NotPlainData, Tree

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Peer

MAX_ERROR_CHARS = 300


def pack_error(peer: Peer, error: BaseException) -> Tree:
    """An error as a tree. The other side rebuilds errors of the standard library, and has proxies for others."""
    if isinstance(error, NotPlainData):
        return ["X", [["builtins", "TypeError"]], ["t", str(error)[:MAX_ERROR_CHARS]], None, ["t"]]
    try:
        return peer.pack(error)
    except Exception:  # its arguments do not cross, or its class says odd things
        return ["X", [["builtins", "RuntimeError"]], ["t", f"{type(error).__name__}"[:MAX_ERROR_CHARS]], None, ["t"]]


def pack_library_error(peer: Peer, error: BaseException) -> Tree:
    """An error of the standard library as a tree."""
    class_names = [
        list(class_name)
        for kind in type(error).__mro__
        if (class_name := crossing_types.standard_name(kind)) is not None
    ]
    cause = None if error.__cause__ is None else pack_error(peer, error.__cause__)
    attributes = [peer.pack(item) for item in vars(error).items()]
    return ["X", class_names, ["t", *[peer.pack(part) for part in error.args]], cause, ["t", *attributes]]


def unpack_error(peer: Peer, tree: Tree, operation: str, arguments: tuple[Any, ...]) -> Exception | SystemExit:
    """The error to raise here. An unrequested StopIteration becomes a RuntimeError, or it could end a loop here.

    For example, all(map(f, xs)) would be true where f raises StopIteration.
    """
    error = peer.unpack(tree)
    if isinstance(error, StopIteration) and not (operation == "special" and arguments[0] == "__next__"):
        return RuntimeError(f"StopIteration: {error}")
    if isinstance(error, StopAsyncIteration) and operation != "anext":
        return RuntimeError(f"StopAsyncIteration: {error}")
    if isinstance(error, Exception | SystemExit):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])


def rebuild_error(peer: Peer, tree: Tree) -> BaseException:
    _, class_names, arguments, cause, attributes = tree
    kind: type[BaseException] = RuntimeError
    for module, name in class_names:
        with contextlib.suppress(KeyError, AttributeError):
            candidate = crossing_types.from_library(module, name)
            if crossing_types.is_plain_class(candidate) and issubclass(candidate, BaseException):
                kind = candidate
                break
    args = peer.unpack(arguments)
    error = kind.__new__(kind, *args)
    with contextlib.suppress(Exception):  # a message alone is too little for UnicodeDecodeError
        kind.__init__(error, *args)
    with contextlib.suppress(Exception):
        vars(error).update(peer.unpack(attributes))
    if cause is not None:
        found_cause = peer.unpack(cause)
        error.__cause__ = found_cause if isinstance(found_cause, BaseException) else None
    return error
