"""How long the processor works for a block: what a busy machine, other threads and old garbage do not change."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def processor_time_below(seconds: float, *what: object) -> Iterator[None]:
    """Fail where this thread used more processor time than that. `what`: shown with the failure."""
    collects = gc.isenabled()
    gc.disable()  # a collection walks through all that earlier tests left
    began = time.thread_time()
    try:
        yield
        took = time.thread_time() - began
    finally:
        if collects:
            gc.enable()
    assert took < seconds, (took, *what)


def spin(seconds: float) -> None:
    """Keep the processor busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
