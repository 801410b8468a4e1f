"""Layers of a network that compute otherwise, for one thread, for the length of a pass.

Whoever else uses the network, even meanwhile, knows nothing of it: the learner's layers stay its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]

_changing = threading.Lock()


class _Each:
    """A layer's forward: to each thread its own."""

    def __init__(self, plain: Forward) -> None:
        self.plain, self.own = plain, dict[int, Forward]()

    def __call__(self, x: Tensor) -> Tensor:
        return self.own.get(threading.get_ident(), self.plain)(x)


@contextmanager
def replaced(forwards: Mapping[Any, Callable[[Forward], Forward]]) -> Iterator[None]:
    """In here, and in this thread, each layer's forward is what is made of the one it has."""
    me = threading.get_ident()
    before: list[tuple[nn.Module, Forward | None]] = []
    try:
        with _changing:
            for module, make in forwards.items():
                each = module.__dict__.get("forward")  # found before the class's own
                if not isinstance(each, _Each):
                    each = module.__dict__["forward"] = _Each(module.forward)
                before.append((module, each.own.get(me)))
                each.own[me] = make(each.own.get(me, each.plain))
        yield
    finally:
        with _changing:
            for module, old in before:
                each = module.__dict__["forward"]
                if old is not None:
                    each.own[me] = old
                    continue
                del each.own[me]
                if not each.own:
                    del module.__dict__["forward"]
