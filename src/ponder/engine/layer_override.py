"""Layers of a network that compute otherwise, for one thread, for the length of a pass.

Other threads that use the network at the same time are not affected: the learner's layers stay as they are.
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
    """A layer's forward that each thread can override for itself."""

    def __init__(self, plain: Forward, had_own: bool) -> None:
        self.plain, self.had_own = plain, had_own  # whether the instance already had a forward
        self.own: dict[tuple[int, int], Forward] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self.own.get(_thread_key(), self.plain)(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.plain, memo)  # a copied layer computes with its own weights

    def __reduce__(self) -> Any:
        return self.plain.__reduce__()


@contextmanager
def override_forward(forwards: Mapping[Any, Callable[[Forward], Forward]]) -> Iterator[None]:
    """Inside this context and in this thread, each layer's forward is the result of its function."""
    me = _thread_key()
    before: list[tuple[nn.Module, _ThreadForward, Forward | None]] = []
    try:
        with _lock:
            for module, make in forwards.items():
                override = module.__dict__.get("forward")  # looked up before the class's
                if not isinstance(override, _ThreadForward):
                    override = _ThreadForward(module.forward, override is not None)
                old = override.own.get(me)
                override.own[me] = make(old or override.plain)
                module.__dict__["forward"] = override
                before.append((module, override, old))
        yield
    finally:
        with _lock:
            for module, override, old in before:
                if old is not None:
                    override.own[me] = old
                    continue
                del override.own[me]
                if override.own:
                    continue
                if override.had_own:
                    module.__dict__["forward"] = override.plain
                else:
                    del module.__dict__["forward"]


def _after_fork() -> None:
    """The thread that held the lock does not exist in the new process."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
