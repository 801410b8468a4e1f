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
_said: dict[str, set[bool]] = {}  # what objects of the program answered about others, by method


def raise_undecided(reason: str) -> NoReturn:
    reasons.append(reason)
    raise TestUndecided(reason)


def register_library_bases(kind: type, library: tuple[type, ...]) -> None:
    _library[kind] = library


def derives(kind: type, other: type) -> bool:
    """Whether the class that a proxy's class stands for derives from one of the standard library."""
    return any(issubclass(found, other) for base in kind.__mro__ for found in _library.get(base, ()))


def call_special_method(peer: Peer, name: str, held: Any, arguments: tuple[Any, ...]) -> Any:
    """A special method of a proxy."""
    if name in ("__exit__", "__aexit__"):
        arguments = (*arguments[:2], None)  # frames stay where they are
    if name == "__deepcopy__":
        arguments = ()
    if peer.runs_tests and arguments:
        theirs = all(id(argument) in peer.proxied for argument in arguments)
        if name in methods.COMPARISON_METHODS:
            return _compare(peer, name, held, arguments[0], theirs)
        if not theirs and name in methods.CONTAINS_METHODS:
            return _contains(peer, held, arguments[0])
        if not theirs and name in methods.ARITHMETIC_METHODS:
            return _arithmetic(peer, name, held, arguments)
    return peer.ask("special", name, held, *arguments)


def _is_named(held: Any) -> bool:
    return any(base in classes_named_by_tests for base in type(held).__mro__)


def _answered(name: str, answer: Any) -> Any:
    if isinstance(answer, bool):
        _said.setdefault(name, set()).add(answer if name != "__ne__" else not answer)
    return answer


def never_denied() -> list[str]:
    """Methods of the program that decided, and always in its favour."""
    return sorted(name for name, said in _said.items() if said == {True})


def _compare(peer: Peer, name: str, held: Any, other: Any, theirs: bool) -> Any:
    if theirs:
        if held is other and name in ("__eq__", "__ne__"):
            return name == "__eq__"
        return _answered(name, peer.ask("special", name, held, other))
    base = crossing_types.builtin_base(type(held))
    if base is not None:
        return getattr(base, name)(held, other)
    if other is None or not _plain(other) or not _is_named(held):
        return NotImplemented
    raise_undecided(f"{name} of the program's class {type(held).__name__!r} would decide about plain data")


def _contains(peer: Peer, held: Any, item: Any) -> bool:
    base: Any = crossing_types.builtin_base(type(held))
    if _is_named(held):
        return bool(_answered("__contains__", peer.ask("special", "__contains__", held, item)))
    if base is not None:
        return bool(base.__contains__(held, item))
    if hasattr(type(held), "__iter__"):
        return any(found is item or found == item for found in held)
    raise_undecided(
        f"__contains__ of the program's class {type(held).__name__!r}, which the tests do not name, would decide"
    )


def _arithmetic(peer: Peer, name: str, held: Any, arguments: tuple[Any, ...]) -> Any:
    base = crossing_types.builtin_base(type(held))
    if not _is_named(held):
        if base is not None and hasattr(base, name):
            return getattr(base, name)(held, *arguments)
        raise_undecided(
            f"{name} of the program's class {type(held).__name__!r}, which the tests do not name, would decide"
        )
    answer = peer.ask("special", name, held, *arguments)
    if id(answer) not in peer.proxied:
        raise_undecided(f"{name} of the program's class {type(held).__name__!r} made plain data of the tests' own")
    return answer


def _plain(value: Any) -> bool:
    kind = type(value)
    return (
        kind in (bool, tuple, frozenset, *crossing_types.SCALAR_TYPES)
        or kind in crossing_types.CONTAINER_TYPES
        or kind in crossing_types.IMMUTABLE_TYPES
    )
