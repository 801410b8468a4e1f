"""The operations that one side may ask for on objects of the other (peer.py).

The tests may ask a program for anything. A program may ask its tests for less: it calls the functions that it was
given, and uses objects by their public names and special methods. It cannot get from a function to the globals of the
tests, which hold the expected values.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ponder.verify.sandbox import crossing_types, object_trust, special_methods

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Operation, Peer

Pairs = tuple[tuple[str, Any], ...]
# Introspection functions of the standard library. They run on the side where the object is.
REMOTE_LIBRARY_FUNCTIONS = {
    "dataclasses": ("asdict", "astuple", "fields", "is_dataclass", "replace"),
    "inspect": (
        "signature", "isabstract", "iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction", "isfunction",
        "ismethod", "getdoc",
    ),
    "asyncio": ("iscoroutinefunction",),
    "typing": ("get_type_hints",),
    "copy": ("copy", "deepcopy"),
}  # fmt: skip


def call(peer: Peer, target: Any, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    return target(*arguments, **dict(kwargs))


def get(peer: Peer, target: Any, name: str) -> Any:
    return getattr(target, name)


def assign(peer: Peer, target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


def delete(peer: Peer, target: Any, name: str) -> None:
    delattr(target, name)


def ask_special(peer: Peer, name: str, target: Any, *arguments: Any) -> Any:
    return special_methods.ALL_METHODS[name](target, *arguments)


def unbound(peer: Peer, kind: type, name: str, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    return getattr(kind, name)(*arguments, **dict(kwargs))


def subclass(peer: Peer, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    return types.new_class(name, bases, {}, lambda space: space.update(namespace))


def library(peer: Peer, module: str, name: str, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    if name not in REMOTE_LIBRARY_FUNCTIONS.get(module, ()):
        raise AttributeError(name)
    return getattr(__import__(module), name)(*arguments, **dict(kwargs))


def step(peer: Peer, target: Any, how: str, value: Any, max_items: int) -> tuple[tuple[Any, ...], str, Any]:
    """Advance an iterator: its next items, its state, and its return value or error."""
    items: list[Any] = []
    try:
        if how == "close":
            target.close()
            return (), "done", None
        if how != "next":
            items.append(target.send(value) if how == "send" else target.throw(value))
        while len(items) < max_items:
            items.append(next(target))
    except StopIteration as end:
        return tuple(items), "done", end.value
    except Exception as error:
        return tuple(items), "raised", error
    return tuple(items), "more", None


def run_to_end(peer: Peer, awaitable: Any) -> Any:
    """Await something on this side while the other side waits. Awaits of both sides run one after the other."""
    import asyncio

    async def waiting() -> Any:
        return await awaitable

    around = asyncio._get_running_loop()
    if around is None:
        return _loop().run_until_complete(waiting())
    asyncio._set_running_loop(None)
    inner = asyncio.new_event_loop()
    try:
        return inner.run_until_complete(waiting())
    finally:
        inner.close()
        asyncio._set_running_loop(around)


_loops: list[Any] = []


def _loop() -> Any:
    if not _loops:
        import asyncio

        _loops.append(asyncio.new_event_loop())
    return _loops[0]


def next_awaited(peer: Peer, target: Any) -> Any:
    return run_to_end(peer, target.__anext__())


def use_library(peer: Peer, modules: set[str]) -> None:
    """Patch introspection functions of these modules, so that they run on the side where the object is."""
    for module in modules & REMOTE_LIBRARY_FUNCTIONS.keys():
        imported = __import__(module)
        for name in REMOTE_LIBRARY_FUNCTIONS[module]:
            setattr(imported, name, _remote_or_local(peer, module, name, getattr(imported, name)))


def _remote_or_local(peer: Peer, module: str, name: str, local_function: Callable[..., Any]) -> Callable[..., Any]:
    def function(*arguments: Any, **kwargs: Any) -> Any:
        if arguments and id(arguments[0]) in peer.proxied:
            return peer.ask("library", module, name, arguments, tuple(kwargs.items()))
        return local_function(*arguments, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


PROGRAM_OPERATIONS: dict[str, Operation] = {
    "call": call, "get": get, "set": assign, "delete": delete, "special": ask_special, "unbound": unbound,
    "subclass": subclass, "library": library, "step": step, "await": run_to_end, "anext": next_awaited,
}  # fmt: skip

# -- of the tests ------------------------------------------------------------------------------------------------------

METADATA_ATTRIBUTES = frozenset(
    {"__name__", "__qualname__", "__doc__", "__module__", "__annotations__"}
)  # as functools.wraps copies
DECIDING_METHODS = frozenset(
    {*special_methods.COMPARISON_METHODS, *special_methods.CONTAINS_METHODS, "__bool__", "__hash__", "__len__"}
)
FORMATTING_METHODS = frozenset({"format", "format_map", "vformat", "get_field", "format_field"})  # "{0.__globals__}"
OPAQUE_TYPES = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType, types.CoroutineType,
    types.AsyncGeneratorType, types.ModuleType, types.FrameType, types.CodeType, types.TracebackType, types.CellType,
    property, classmethod, staticmethod,
)  # fmt: skip
# Of `REMOTE_LIBRARY_FUNCTIONS`, those that read only the object and run no text of it.
SAFE_LIBRARY_FUNCTIONS = frozenset({"asdict", "astuple", "is_dataclass", "signature", "getdoc", "copy", "deepcopy"})


def _check_handed_out(peer: Peer, target: Any) -> None:
    """Raise unless the tests handed this object to the program. Library classes are refused: they could do anything."""
    if not peer.is_mine(target) or (isinstance(target, type) and crossing_types.standard_name(target) is not None):
        raise PermissionError("a program uses what its tests hand to it, and nothing else of theirs")


def _readable(target: Any, name: str) -> bool:
    if type(name) is not str or name in FORMATTING_METHODS:
        return False
    if name in METADATA_ATTRIBUTES:
        return not isinstance(target, types.ModuleType)
    if isinstance(target, OPAQUE_TYPES):
        return False
    if not name.startswith("__"):
        return True
    if isinstance(target, type):
        return name in special_methods.ALL_METHODS or name in ("__init__", "__call__")
    return name == "__dict__" and type(target).__module__ == "tests"


def guarded_call(peer: Peer, target: Any, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    _check_handed_out(peer, target)
    return call(peer, target, arguments, kwargs)


def guarded_get(peer: Peer, target: Any, name: str) -> Any:
    _check_handed_out(peer, target)
    if not _readable(target, name):
        raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")
    value = getattr(target, name)
    return dict(value) if name == "__annotations__" else value


def guarded_assign(peer: Peer, target: Any, name: str, value: Any) -> None:
    _check_assignment(peer, target, name)
    setattr(target, name, value)


def guarded_delete(peer: Peer, target: Any, name: str) -> None:
    _check_assignment(peer, target, name)
    delattr(target, name)


def _check_assignment(peer: Peer, target: Any, name: str) -> None:
    _check_handed_out(peer, target)
    public = _readable(target, name) and name not in (*DECIDING_METHODS, *METADATA_ATTRIBUTES, "__dict__")
    function = isinstance(target, types.FunctionType) and type(name) is str and not name.startswith("_")
    if not (public or function) or type(target).__module__ == "unittest.case":
        object_trust.raise_undecided(f"the program sets {name!r} on an object of the tests")


def guarded_special(peer: Peer, name: str, target: Any, *arguments: Any) -> Any:
    _check_handed_out(peer, target)
    return ask_special(peer, name, target, *arguments)


def guarded_unbound(peer: Peer, kind: Any, name: str, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    _check_handed_out(peer, kind)
    if not isinstance(kind, type) or not _readable(kind, name):
        raise AttributeError(name)
    return unbound(peer, kind, name, arguments, kwargs)


def guarded_subclass(peer: Peer, *_: Any) -> None:
    object_trust.raise_undecided("the program derives a class from one of the tests")


def guarded_library(peer: Peer, module: str, name: str, arguments: tuple[Any, ...], kwargs: Pairs) -> Any:
    if not arguments or kwargs or not (name in SAFE_LIBRARY_FUNCTIONS or name.startswith("is")):
        raise PermissionError(name)
    _check_handed_out(peer, arguments[0])
    return library(peer, module, name, arguments[:1], ())


def guarded_step(peer: Peer, target: Any, how: str, value: Any, max_items: int) -> tuple[tuple[Any, ...], str, Any]:
    _check_handed_out(peer, target)
    return step(peer, target, how, value, max_items)


def guarded_await(peer: Peer, awaitable: Any) -> Any:
    _check_handed_out(peer, awaitable)
    return run_to_end(peer, awaitable)


def guarded_next(peer: Peer, target: Any) -> Any:
    _check_handed_out(peer, target)
    return next_awaited(peer, target)


TESTS_OPERATIONS: dict[str, Operation] = {
    "call": guarded_call, "get": guarded_get, "set": guarded_assign, "delete": guarded_delete,
    "special": guarded_special, "unbound": guarded_unbound, "subclass": guarded_subclass, "library": guarded_library,
    "step": guarded_step, "await": guarded_await, "anext": guarded_next,
}  # fmt: skip
