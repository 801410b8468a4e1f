"""A callback that does not keep alive the object whose method it calls.

An object that hands one of its own methods to a part of itself is freed only by Python's cyclic garbage collector,
which looks at old objects rarely: a model would hold its memory long after its last user is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakMethod

R = TypeVar("R")


def weak_method(method: Callable[..., R], otherwise: Callable[[], R]) -> Callable[..., R]:
    """Calls a bound method while its object is alive, else `otherwise`."""
    reference = WeakMethod(method)

    def call(*arguments: object) -> R:
        alive = reference()
        return otherwise() if alive is None else alive(*arguments)

    return call
