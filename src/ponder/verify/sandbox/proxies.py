"""Proxies for objects that live on the other side (peer.py).

A remote class has a class here, with the same special methods and no others, so that `isinstance`, `except` and `iter`
behave as they do there. An object of a class that derives from `int`, `tuple`, `list` and similar types holds that
value here, and compares by it. Generators and coroutines become generators and coroutines.

`object_trust.py` decides which questions of the tests an object of the program may answer.
"""

from __future__ import annotations

import collections.abc
import contextlib
import types
from typing import TYPE_CHECKING, Any

from ponder.verify.sandbox import crossing_types, object_trust, remote_generators, special_methods
from ponder.verify.sandbox.codec import NotPlainData, Tree

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Peer

# The kind of a proxy: object, error, generator, coroutine, asynchronous generator.
PROXY_KINDS = ("h", "x", "G", "W", "A")
LOCAL_ATTRIBUTES = frozenset({"__traceback__", "__context__", "__cause__", "__suppress_context__", "args", "__notes__"})

_peer: Peer  # a process has one


def set_peer(peer: Peer) -> None:
    global _peer
    _peer = peer


def is_proxy(value: Any) -> bool:
    return id(value) in _peer.proxied


class RemoteType(type):
    """The metaclass of proxy classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """A class statement here that derives from a remote class: the class is created on the other side."""
        cell = namespace.pop("__classcell__", None)
        remote_class = _peer.ask("subclass", name, bases, dict(namespace))
        if cell is not None:
            cell.cell_contents = remote_class
        return remote_class

    def __init__(cls, *_: Any, **__: Any) -> None:
        pass

    def __call__(cls, *arguments: Any, **kwargs: Any) -> Any:
        instance = _peer.ask("call", cls, arguments, tuple(kwargs.items()))
        if not _peer.runs_tests:
            return instance
        object_trust.classes_named_by_tests.add(cls)
        if id(instance) not in _peer.proxied:
            object_trust.raise_undecided(f"the program's class {cls.__name__!r} gave plain data in place of an object")
        return instance

    def __getattr__(cls, name: str) -> Any:
        value = _peer.ask("get", cls, name)
        if cls in object_trust.classes_named_by_tests and isinstance(value, RemoteType):
            object_trust.classes_named_by_tests.add(value)
        return value

    def __setattr__(cls, name: str, value: Any) -> None:
        _peer.ask("set", cls, name, value)

    def __delattr__(cls, name: str) -> None:
        _peer.ask("delete", cls, name)


class Remote:
    """What all proxies share."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return _peer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in LOCAL_ATTRIBUTES and isinstance(self, BaseException):
            object.__setattr__(self, name, value)
        else:
            _peer.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        _peer.ask("delete", self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        object_trust.raise_undecided(f"an object of class {type(self).__name__!r} cannot be pickled across the wall")


def _method(name: str) -> Any:
    def method(self: Any, *arguments: Any) -> Any:
        return object_trust.call_special_method(_peer, name, self, arguments)

    method.__name__ = method.__qualname__ = name
    return method


async def _next(self: Any) -> Any:
    return _peer.ask("anext", self)


_METHODS = {**{name: _method(name) for name in special_methods.ALL_METHODS}, "__anext__": _next}


class RemoteObject(Remote):
    """An object with no builtin value inside."""

    __slots__ = ()
    locals().update(
        {name: _METHODS[name] for name in (*special_methods.METHODS_OF_EVERY_OBJECT, "__copy__", "__deepcopy__")}
    )


def _call(self: Any, *arguments: Any, **kwargs: Any) -> Any:
    return _peer.ask("call", self, arguments, tuple(kwargs.items()))


class BoundRemoteMethod:
    """A method of a remote object. Calling it takes one request; fetching it first would take two."""

    __slots__ = ("_kind", "_name", "_owner")

    def __init__(self, kind: int, name: str, instance: Any) -> None:
        self._kind, self._name, self._owner = kind, name, instance

    def __call__(self, *arguments: Any, **kwargs: Any) -> Any:
        with_self = (self._owner, *arguments)
        return _peer.ask("unbound", class_of(_peer, self._kind), self._name, with_self, tuple(kwargs.items()))

    def fetch(self) -> Any:
        return _peer.ask("get", self._owner, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fetch(), name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundRemoteMethod) and (self._owner, self._name) == (other._owner, other._name)

    def __hash__(self) -> int:
        return hash((id(self._owner), self._name))


class _Function:
    """The descriptor of a remote class's function: for an object, for `super()` or for the class itself."""

    def __init__(self, kind: int, name: str) -> None:
        self._kind, self._name = kind, name

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        if instance is None:
            return _peer.ask("get", class_of(_peer, self._kind), self._name)
        return BoundRemoteMethod(self._kind, self._name, instance)


class _Attribute:
    """The descriptor of any other attribute of a remote class. It hides attributes of the bases with the same name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return _peer.ask("get", kind if instance is None else instance, self._name)


# -- classes -----------------------------------------------------------------------------------------------------------


def describe(peer: Peer, kind: type) -> Tree:
    """[name, text, bases, type of the value inside, special methods, functions, other attributes, the library's
    classes that it derives from, special methods of its metaclass, how it hashes]"""
    base = crossing_types.builtin_base(kind)
    plain_base = base or next(
        (b for b in kind.__mro__ if issubclass(b, BaseException) and b.__module__ == "builtins"), object
    )
    doc = kind.__dict__.get("__doc__")
    functions, attributes = list[str](), list[str]()
    for name, value in list(vars(kind).items()):
        if type(name) is str and name not in special_methods.ALL_METHODS:
            (functions if isinstance(value, types.FunctionType) else attributes).append(name)
    library_names = [
        list(name_here) for b in kind.__mro__[:-1] if (name_here := crossing_types.standard_name(b)) is not None
    ]
    meta = special_methods.own(type(kind), type) if type(kind).__module__ not in ("builtins", "abc") else []
    hashing = special_methods.defined(kind, "__hash__")
    return [
        str(kind.__name__), doc[:2000] if type(doc) is str else None, [peer.base(b) for b in kind.__bases__],
        base and base.__name__, special_methods.own(kind, plain_base), functions, attributes, library_names, meta,
        None if hashing is None else hashing is not special_methods.defined(plain_base, "__hash__"),
    ]  # fmt: skip


def class_of(peer: Peer, number: int) -> Any:
    """The proxy class of the remote class with this number."""
    if number in peer.remote_proxies:
        return peer.remote_proxies[number]
    name, doc, bases, base, methods, functions, attributes, library_names, meta, hashing = peer.descriptions[number]
    library = []
    for module, qualified in library_names:
        with contextlib.suppress(KeyError, AttributeError):
            library_class = crossing_types.from_library(module, qualified)
            if isinstance(library_class, type):
                library.append(library_class)
    derived = _bases(peer, bases, base)
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__doc__": doc,
        "__module__": "solution" if peer.runs_tests else "tests",
    }
    namespace.update({n: _Function(number, n) for n in functions if n == "__init__" or not n.startswith("__")})
    namespace.update({n: _Attribute(n) for n in attributes if not n.startswith("__")})
    namespace.update({n: _METHODS[n] for n in methods if n in _METHODS})
    if "__call__" in methods:
        namespace["__call__"] = _call
    if not hashing and "__hash__" in namespace:
        del namespace["__hash__"]
    if hashing is None:
        namespace["__hash__"] = None
    elif "__eq__" in namespace and "__hash__" not in namespace:
        namespace["__hash__"] = _METHODS["__hash__"]
    if library and library[0].__name__ == name and base is None:  # an object of a library's class
        namespace["__class__"] = property(lambda self: library[0])
        namespace["__doc__"] = property(lambda self: _peer.ask("get", self, "__doc__"))
    maker: Any = RemoteType
    if meta:
        maker = type.__new__(type, "RemoteType", (RemoteType,), {n: _METHODS[n] for n in meta if n in _METHODS})
    try:
        proxy_class = type.__new__(maker, str(name), derived, namespace)
    except TypeError:  # these bases cannot be combined here
        proxy_class = type.__new__(maker, str(name), (RemoteObject,), namespace)
    peer.remote_proxies[number], peer.proxied[id(proxy_class)] = proxy_class, number
    object_trust.register_library_bases(proxy_class, tuple(library))
    return proxy_class


def _bases(peer: Peer, bases: Tree, base: str | None) -> tuple[type, ...]:
    """The bases of a proxy class: proxies of its bases, builtin errors, and the builtin type of its value."""
    local_bases: list[type] = []
    for tree in bases:
        if tree[0] == "K":
            local_bases.append(class_of(peer, tree[1]))
            continue
        with contextlib.suppress(KeyError, AttributeError):
            kind = crossing_types.from_library(tree[1], tree[2])
            if kind in crossing_types.BUILTIN_BASES or (
                crossing_types.is_plain_class(kind) and issubclass(kind, BaseException)
            ):
                local_bases.append(kind)
    inner: type | None = next((kind for kind in crossing_types.BUILTIN_BASES if kind.__name__ == base), None)
    if inner is not None and not any(issubclass(kind, inner) for kind in local_bases):
        local_bases.append(inner)
    if not any(issubclass(kind, Remote) for kind in local_bases):
        has_builtin_value = base is not None or any(issubclass(kind, BaseException) for kind in local_bases)
        local_bases.insert(0, Remote if has_builtin_value else RemoteObject)
    return tuple(dict.fromkeys(local_bases))


# -- objects -----------------------------------------------------------------------------------------------------------


def proxy_kind(value: Any) -> str:
    if isinstance(value, BaseException):
        return "x"
    kind = type(value)
    if kind.__module__ in ("builtins", "itertools", "_asyncio", "asyncio.futures", "asyncio.tasks", "_io"):
        if isinstance(value, collections.abc.Awaitable):
            return "W"
        if isinstance(value, collections.abc.AsyncGenerator):
            return "A"
        if isinstance(value, collections.abc.Iterator) and kind.__module__ != "_io":
            return "G"
    return "h"


def make_proxy(peer: Peer, how: str, number: int, kind: int, *rest: Tree) -> Any:
    """The proxy of the remote object with this number."""
    if number in peer.remote_proxies:
        return peer.remote_proxies[number]
    if how == "h" or how == "x":
        proxy = _instance(peer, class_of(peer, kind), *rest)
    else:
        proxy = {
            "G": remote_generators.remote_generator,
            "W": remote_generators.remote_coroutine,
            "A": remote_generators.remote_async_generator,
        }[how](peer, number)
    peer.remote_proxies[number], peer.proxied[id(proxy)] = proxy, number
    return proxy


def _instance(peer: Peer, kind: Any, *rest: Tree) -> Any:
    base = crossing_types.builtin_base(kind)
    if issubclass(kind, BaseException):
        proxy = kind.__new__(kind)
        proxy.args = peer.unpack(rest[0])
        cause = peer.unpack(rest[1])
        proxy.__cause__ = cause if isinstance(cause, BaseException) else None
        return proxy
    if base is None or base in crossing_types.CONTAINER_TYPES:
        return crossing_types.make(base or object, kind)
    value = peer.unpack(rest[0])
    if type(value) is not base:
        raise NotPlainData("an object with another value inside than its class has")
    return crossing_types.make(base, kind, value)
