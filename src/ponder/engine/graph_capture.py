"""Capture a CUDA graph while other threads use the device."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

import torch

# Held while a graph is captured: only one thread may capture, and no thread may synchronize the device meanwhile.
capture_lock = threading.RLock()

# torch hands out 32 streams of each priority in turn, again and again. What another thread launches in the stream of a
# capture ends it with an error, so captures have a priority that nothing else here asks for. Replays do not keep it.
_CAPTURE_PRIORITY = -2


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any = None, part: int = 0) -> Iterator[None]:
    """What this thread launches goes into the graph. Graphs that run at the same time have different parts: torch keeps
    one workspace of cuBLAS for each stream, also for what is captured."""
    stream = _capture_stream(device.index if device.index is not None else torch.cuda.current_device(), part)
    with capture_lock, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        collects = gc.isenabled()
        gc.disable()  # an engine that is garbage synchronizes the device when its memory is freed
        try:
            yield
        finally:
            if collects:
                gc.enable()


def shared_pool(graphs: Iterable[torch.cuda.CUDAGraph]) -> Any:
    """The memory of these graphs, for one that never runs at the same time. None where they are all gone: torch ends
    with an internal error if memory of graphs that are gone is given to another."""
    return next((graph.pool() for graph in graphs), None)


class LentMemory(Protocol):
    def free_memory(self) -> bool:
        """Give back memory that is not in use, and can be had again; returns whether there was some."""
        ...


_owners: WeakSet[LentMemory] = WeakSet()
_owners_lock = threading.Lock()  # an engine's thread adds itself while a learner asks


def free_on_demand(owner: LentMemory) -> None:
    """`owner` is asked for memory where it is short."""
    with _owners_lock:
        _owners.add(owner)


def free_lent_memory() -> bool:
    """Free what owners hold and do not use, such as the cache of a sampler that sleeps. Returns whether there was some;
    torch may cache it."""
    with _owners_lock:
        owners = list(_owners)
    return any([owner.free_memory() for owner in owners])


def side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """A separate stream that waits for the work launched so far."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


@cache
def _capture_stream(device: int, part: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=_CAPTURE_PRIORITY)
