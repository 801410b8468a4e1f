"""The trust rule: which questions of the tests an object of the program may answer. Runs in the jail of the tests.

For an object of the program and a value of the tests:

1. Plain data crosses by value and is compared here. No method of the program is called. An object of a class that
   derives from a builtin type compares with plain data by the builtin value inside it.
2. Two objects of the program are compared by the program: its `__eq__` and its order are under test.
3. An object and plain data are never compared by the object. It equals no plain data. But where its class has an
   `__eq__` of its own and the tests name that class, they may mean it, so the test is undecided. The same holds for its
   order.
4. Arithmetic and `in` with plain data are answered by the object where the tests name its class: they put its methods
   under test. If arithmetic then gives plain data, the object may have made it from what the tests expect, so the test
   is undecided, as it is for objects of other classes. For those, `in` searches the items for the value.

`classes_named_by_tests` holds the classes that the tests name. A method that the program was never seen to answer with
"no" is reported as weak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ponder.verify.sandbox import crossing_types
from ponder.verify.sandbox import special_methods as methods

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Peer


class TestUndecided(TypeError):
    """The tests do something that does not cross the wall; they cannot say whether the program is right."""


reasons: list[str] = []  # why the test that runs now is undecided
classes_named_by_tests: set[type] = set()
_library: dict[type, tuple[type, ...]] = {}  # classes of the standard library that a proxy's class derives from
_answers_by_method: dict[str, set[bool]] = {}  # answers of the program's objects about others, by method


def raise_undecided(reason: str) -> NoReturn:
    reasons.append(reason)
    raise TestUndecided(reason)


def register_library_bases(kind: type, library: tuple[type, ...]) -> None:
    _library[kind] = library


def derives(kind: type, other: type) -> bool:
    """Whether the remote class behind a proxy class derives from a class of the standard library."""
    return any(issubclass(library_class, other) for base in kind.__mro__ for library_class in _library.get(base, ()))


def call_special_method(peer: Peer, name: str, proxy: Any, arguments: tuple[Any, ...]) -> Any:
    """Call a special method of a proxy, under the trust rule."""
    if name in ("__exit__", "__aexit__"):
        arguments = (*arguments[:2], None)  # tracebacks do not cross
    if name == "__deepcopy__":
        arguments = ()
    if peer.runs_tests and arguments:
        all_proxies = all(id(argument) in peer.proxied for argument in arguments)
        if name in methods.COMPARISON_METHODS:
            return _compare(peer, name, proxy, arguments[0], all_proxies)
        if not all_proxies and name in methods.CONTAINS_METHODS:
            return _contains(peer, proxy, arguments[0])
        if not all_proxies and name in methods.ARITHMETIC_METHODS:
            return _arithmetic(peer, name, proxy, arguments)
    return peer.ask("special", name, proxy, *arguments)


def _is_named(proxy: Any) -> bool:
    return any(base in classes_named_by_tests for base in type(proxy).__mro__)


def _record_answer(name: str, answer: Any) -> Any:
    if isinstance(answer, bool):
        _answers_by_method.setdefault(name, set()).add(answer if name != "__ne__" else not answer)
    return answer


def never_denied() -> list[str]:
    """Methods of the program that decided a comparison, and always in its favour."""
    return sorted(name for name, answers in _answers_by_method.items() if answers == {True})


def _compare(peer: Peer, name: str, proxy: Any, other: Any, is_proxy: bool) -> Any:
    if is_proxy:
        if proxy is other and name in ("__eq__", "__ne__"):
            return name == "__eq__"
        return _record_answer(name, peer.ask("special", name, proxy, other))
    base = crossing_types.builtin_base(type(proxy))
    if base is not None:
        return getattr(base, name)(proxy, other)
    if other is None or not _plain(other) or not _is_named(proxy):
        return NotImplemented
    raise_undecided(f"{name} of the program's class {type(proxy).__name__!r} would decide about plain data")


def _contains(peer: Peer, proxy: Any, item: Any) -> bool:
    base: Any = crossing_types.builtin_base(type(proxy))
    if _is_named(proxy):
        return bool(_record_answer("__contains__", peer.ask("special", "__contains__", proxy, item)))
    if base is not None:
        return bool(base.__contains__(proxy, item))
    if hasattr(type(proxy), "__iter__"):
        return any(element is item or element == item for element in proxy)
    raise_undecided(
        f"__contains__ of the program's class {type(proxy).__name__!r}, which the tests do not name, would decide"
    )


def _arithmetic(peer: Peer, name: str, proxy: Any, arguments: tuple[Any, ...]) -> Any:
    base = crossing_types.builtin_base(type(proxy))
    if not _is_named(proxy):
        if base is not None and hasattr(base, name):
            return getattr(base, name)(proxy, *arguments)
        raise_undecided(
            f"{name} of the program's class {type(proxy).__name__!r}, which the tests do not name, would decide"
        )
    answer = peer.ask("special", name, proxy, *arguments)
    if id(answer) not in peer.proxied:
        raise_undecided(f"{name} of the program's class {type(proxy).__name__!r} made plain data of the tests' own")
    return answer


def _plain(value: Any) -> bool:
    kind = type(value)
    return (
        kind in (bool, tuple, frozenset, *crossing_types.SCALAR_TYPES)
        or kind in crossing_types.CONTAINER_TYPES
        or kind in crossing_types.IMMUTABLE_TYPES
    )
