"""Copies of a GPU's tensors in page-locked host memory, which is kept for the next copies.

Into fresh memory a copy runs at a few GB/s, since every page is mapped first and the driver copies twice; into
page-locked memory at the speed of the bus. Too much of it starves the machine, so large states are copied plainly.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ponder.memory_check import free_memory

MAX_PINNED_BYTES = 8 << 30


class HostBuffers:
    """The result of `copy` is overwritten by the next call."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they are now, contiguous and on the CPU. Waits until they are copied."""
        sources = {name: t.detach() for name, t in tensors.items()}
        if not self._fits(sources):
            self._kept = {}
            return {name: t.to("cpu", copy=True).contiguous() for name, t in sources.items()}
        self._kept = {name: self._buffer(name, t) for name, t in sources.items()}
        for name, t in sources.items():
            self._kept[name].copy_(t, non_blocking=True)
        for device in {t.device for t in sources.values() if t.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return dict(self._kept)

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        size = sum(t.nbytes for t in tensors.values())
        held = sum(t.nbytes for t in self._kept.values())
        return size <= MAX_PINNED_BYTES and size <= held + free_memory() // 4

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (like.shape, like.dtype):
            return kept
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
