"""Copies of a GPU's tensors in page-locked host memory, which is kept for the next copies.

Into fresh memory a copy runs at a few GB/s, since every page is mapped first and the driver copies twice; into
page-locked memory at the speed of the bus, and without the processor: a step can be sampled meanwhile. Too much of it
starves the machine, so large states are copied plainly, and states that the machine has no room for are not copied:
whoever writes them waits until they are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ponder.memory_check import free_memory

MAX_PINNED_BYTES = 8 << 30


class HostCopy:
    """A copy that may still be under way. Until `wait` returns, `tensors` are not whole and their sources must stay as
    they are. Any thread may wait. `is_copy=False`: `tensors` are the sources, which must stay as they are until they
    are written."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        sources: Sequence[Tensor] = (),
        ends: Sequence[torch.cuda.Event] = (),
        is_copy: bool = True,
    ) -> None:
        self.tensors, self.is_copy = tensors, is_copy
        self._sources, self._ends = sources, ends  # sources may be temporary: their memory is not used again before

    def wait(self) -> None:
        for end in self._ends:
            end.synchronize()
        self._sources = ()


class HostBuffers:
    """The result of `start` is overwritten by the next call."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate what copies of these need: page-locking takes about half a second for a GB."""
        if self._fits(tensors):
            self._kept = {name: self._buffer(name, t) for name, t in tensors.items()}

    def start(self, tensors: Mapping[str, Tensor]) -> HostCopy:
        """Copy the tensors as they are now, contiguous and to the CPU; a GPU's copies run beside what is computed there
        next. Where a plain copy would take more than half of the free memory, the tensors themselves, which are
        copied from a GPU a file at a time, as they are written."""
        sources = {name: t.detach() for name, t in tensors.items()}
        if not self._fits(sources):
            self._kept = {}
            if _size(sources) > free_memory() // 2:
                return HostCopy({name: t.contiguous() for name, t in sources.items()}, is_copy=False)
            return HostCopy({name: t.to("cpu", copy=True).contiguous() for name, t in sources.items()})
        self._kept = {name: self._buffer(name, t) for name, t in sources.items()}
        ends = [
            self._start_on(device, {n: t for n, t in sources.items() if t.device == device})
            for device in {t.device for t in sources.values() if t.is_cuda}
        ]
        for name, t in sources.items():
            if not t.is_cuda:
                self._kept[name].copy_(t)
        return HostCopy(dict(self._kept), list(sources.values()), ends)

    def _start_on(self, device: torch.device, sources: Mapping[str, Tensor]) -> torch.cuda.Event:
        """Copy these on a stream of their own, after what the device has been told to compute so far."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        end = torch.cuda.Event(blocking=True)  # who waits for it leaves its core to others
        with torch.cuda.stream(stream):
            for name, t in sources.items():
                self._kept[name].copy_(t, non_blocking=True)
            end.record(stream)
        return end

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        size = _size(tensors)
        return size <= MAX_PINNED_BYTES and size <= _size(self._kept) + free_memory() // 4

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (like.shape, like.dtype):
            return kept
        if not like.is_cuda:
            return torch.empty(like.shape, dtype=like.dtype)
        with torch.cuda.device(like.device):  # any thread may be the first to use the device
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())
