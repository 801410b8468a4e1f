"""Copies of a GPU's tensors in page-locked host memory, which is kept for the next copies.

Into fresh memory a copy runs at a few GB/s, since every page is mapped first and the driver copies twice; into
page-locked memory at the speed of the bus, and without the processor: a step can be sampled meanwhile. Too much of it
starves the machine, so large states are copied plainly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ponder.memory_check import free_memory

MAX_PINNED_BYTES = 8 << 30


class HostCopy:
    """A copy that may still be under way. Until `wait` returns, `tensors` are not whole and their sources must stay as
    they are. Any thread may wait."""

    def __init__(
        self, tensors: dict[str, Tensor], sources: Sequence[Tensor] = (), ends: Sequence[torch.cuda.Event] = ()
    ) -> None:
        self.tensors = tensors
        self._sources, self._ends = sources, ends  # sources may be temporary: their memory is not used again before

    def wait(self) -> None:
        for end in self._ends:
            end.synchronize()
        self._sources = ()


class HostBuffers:
    """The result of `copy` or `start` is overwritten by the next call."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate what copies of these need: page-locking takes about half a second for a GB."""
        if self._fits(tensors):
            self._kept = {name: self._buffer(name, t) for name, t in tensors.items()}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they are now, contiguous and on the CPU. Waits until they are copied."""
        started = self.start(tensors)
        started.wait()
        return started.tensors

    def start(self, tensors: Mapping[str, Tensor]) -> HostCopy:
        """As `copy`, but a GPU's copies run beside what is computed there next."""
        sources = {name: t.detach() for name, t in tensors.items()}
        if not self._fits(sources):
            self._kept = {}
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
        size = sum(t.nbytes for t in tensors.values())
        held = sum(t.nbytes for t in self._kept.values())
        return size <= MAX_PINNED_BYTES and size <= held + free_memory() // 4

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (like.shape, like.dtype):
            return kept
        if not like.is_cuda:
            return torch.empty(like.shape, dtype=like.dtype)
        with torch.cuda.device(like.device):  # any thread may be the first to use the device
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
