"""Layers of a network that compute otherwise, for one thread, for the length of a pass.

Whoever else uses the network, even meanwhile, knows nothing of it: the learner's layers stay its own.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]

_lock = threading.Lock()


def _thread_key() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


class _ThreadForward:
    """A layer's forward: to each thread its own."""

    def __init__(self, plain: Forward, found: bool) -> None:
        self.plain, self.found = plain, found  # was one there before, on this very layer?
        self.own: dict[tuple[int, int], Forward] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self.own.get(_thread_key(), self.plain)(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.plain, memo)  # a copy of the layer computes with its own weights

    def __reduce__(self) -> Any:
        return self.plain.__reduce__()


@contextmanager
def override_forward(forwards: Mapping[Any, Callable[[Forward], Forward]]) -> Iterator[None]:
    """In here, and in this thread, each layer's forward is what is made of the one it has."""
    me = _thread_key()
    before: list[tuple[nn.Module, _ThreadForward, Forward | None]] = []
    try:
        with _lock:
            for module, make in forwards.items():
                each = module.__dict__.get("forward")  # found before the class's own
                if not isinstance(each, _ThreadForward):
                    each = _ThreadForward(module.forward, each is not None)
                old = each.own.get(me)
                each.own[me] = make(old or each.plain)
                module.__dict__["forward"] = each
                before.append((module, each, old))
        yield
    finally:
        with _lock:
            for module, each, old in before:
                if old is not None:
                    each.own[me] = old
                    continue
                del each.own[me]
                if each.own:
                    continue
                if each.found:
                    module.__dict__["forward"] = each.plain
                else:
                    del module.__dict__["forward"]


def _after_fork() -> None:
    """A thread that held the lock is not in the new process."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
