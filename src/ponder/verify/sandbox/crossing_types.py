"""The types that cross between a program and its tests by value: plain data and some standard library types.

Only these exact types; a class that derives from one crosses as an object with that value inside (proxies.py). A value
is rebuilt by a constructor from the tables here, never by one that the other side names, so this is no pickle.
"""

from __future__ import annotations

import builtins
import datetime
import operator
import pathlib
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

SCALAR_TYPES = (int, float, str, bytes, complex, range, Decimal, Fraction)  # as codec.encode writes them


class Container(NamedTuple):
    """A mutable type: how to make an empty one, list its items, and fill it with items."""

    make: Callable[[], Any]
    items: Callable[[Any], list[Any]]
    fill: Callable[[Any, list[Any]], None]


def _filling(kind: Any, add: str) -> Callable[[Any, list[Any]], None]:
    def fill(container: Any, items: list[Any]) -> None:
        kind.clear(container)  # the builtin's own method: a derived class may override it
        getattr(kind, add)(container, items)

    return fill


def _defaults(container: Any, items: list[Any]) -> None:
    container.default_factory = items[0]
    dict.clear(container)
    dict.update(container, items[1:])


CONTAINER_TYPES: dict[type[Any], Container] = {
    list: Container(list, lambda v: list(list.__iter__(v)), lambda v, items: list.__setitem__(v, slice(None), items)),
    dict: Container(dict, lambda v: list(dict.items(v)), _filling(dict, "update")),
    set: Container(set, lambda v: list(set.__iter__(v)), _filling(set, "update")),
    bytearray: Container(
        bytearray, lambda v: [bytes(v)], lambda v, items: bytearray.__setitem__(v, slice(None), items[0])
    ),
    deque: Container(deque, lambda v: list(deque.__iter__(v)), _filling(deque, "extend")),
    Counter: Container(Counter, lambda v: list(dict.items(v)), _filling(dict, "update")),
    OrderedDict: Container(OrderedDict, lambda v: list(OrderedDict.items(v)), _filling(OrderedDict, "update")),
    defaultdict: Container(defaultdict, lambda v: [v.default_factory, *dict.items(v)], _defaults),
}  # fmt: skip

# Immutable types other than tuple and frozenset, with the arguments that rebuild a value.
IMMUTABLE_TYPES: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    datetime.datetime: lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    datetime.date: lambda v: (v.year, v.month, v.day),
    datetime.time: lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    datetime.timedelta: lambda v: (v.days, v.seconds, v.microseconds),
    datetime.timezone: lambda v: (v.utcoffset(None), v.tzname(None)),
    uuid.UUID: lambda v: (str(v),),
    slice: lambda v: (v.start, v.stop, v.step),
    **{
        kind: lambda v: (str(v),)
        for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.PurePath)
    },
}
# Classes that a program may name to its tests. Others could do for it what it may not: operator.attrgetter.
PLAIN_TYPES = frozenset({*CONTAINER_TYPES, *IMMUTABLE_TYPES, *SCALAR_TYPES, bool, tuple, frozenset, object, type(None)})
SINGLETONS = {"...": ..., "NotImplemented": NotImplemented}
BY_NAME: dict[str, type[Any]] = {kind.__name__: kind for kind in (*CONTAINER_TYPES, *IMMUTABLE_TYPES)}
# Builtin types that a class of the program may derive from. Immutable ones are constructed with their value.
BUILTIN_BASES: tuple[type[Any], ...] = (*CONTAINER_TYPES, tuple, frozenset, int, float, str, bytes)


def builtin_base(kind: type) -> type[Any] | None:
    """The first of `BUILTIN_BASES` that a class derives from; None where there is none."""
    return next((base for base in kind.__mro__[1:] if base in BUILTIN_BASES), None)


def members(container: Any, kind: type[Any]) -> list[Any]:
    """A snapshot of a container's members, to detect changes later."""
    if kind is bytearray:
        return [bytes(container)]
    if issubclass(kind, dict):
        factory = container.default_factory if kind is defaultdict else None
        return [factory, *dict.keys(container), *dict.values(container)]
    return list(kind.__iter__(container))


def same_members(before: list[Any], now: list[Any]) -> bool:
    """Whether both are the same objects in the same order."""
    if len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or (type(now[0]) is bytes and before == now)


def builtin_value(value: Any, base: Any) -> Any:
    """The builtin value inside an object of a derived class, without calling the class's own methods."""
    return base(base.__iter__(value)) if base in (tuple, frozenset) else base.__getnewargs__(value)[0]


# Types that call themselves builtin and that only this module has a name for: functions, generators...
_NAMED_IN_TYPES = {
    kind: ("types", name)
    for name, kind in vars(types).items()
    if isinstance(kind, type) and kind.__module__ == "builtins" and not hasattr(builtins, kind.__name__)
}


def make(base: Any, kind: type, *value: Any) -> Any:
    """Construct an object of class `kind`, which derives from `base`, with the constructor of `base`."""
    return base.__new__(kind, *value)


def standard_name(value: Any) -> tuple[str, str] | None:
    """The module and qualified name of a class, function or module of the standard library; None for others."""
    if isinstance(value, type) and value in _NAMED_IN_TYPES:
        return _NAMED_IN_TYPES[value]
    if type(value) is type(sys):
        importable = sys.modules.get(value.__name__) is value and _in_library(value.__name__)
        return (value.__name__, "") if importable else None
    module: Any = getattr(value, "__module__", None)
    name: Any = getattr(value, "__qualname__", None)
    if module is None and isinstance(getattr(value, "__objclass__", None), type):  # str.upper
        module = value.__objclass__.__module__
    if type(module) is not str or type(name) is not str or not _in_library(module):
        return None
    try:
        return (module, name) if from_library(module, name) is value else None
    except (AttributeError, KeyError):
        return None


def is_plain_class(kind: Any) -> bool:
    """Whether a program may name this class to its tests. An error of unittest could have a test skipped."""
    if not isinstance(kind, type):
        return False
    return kind in PLAIN_TYPES or (issubclass(kind, BaseException) and not kind.__module__.startswith("unittest"))


def _in_library(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def from_library(module: str, name: str) -> Any:
    """Resolve a name of the standard library. The module must be imported already: no message can load one."""
    if not _in_library(module):
        raise KeyError(module)
    value: Any = sys.modules[module]
    for part in name.split(".") if name else ():
        value = getattr(value, part)
    return value
