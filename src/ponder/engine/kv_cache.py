"""The key-value cache: keys and values of all layers, by slot; and how much memory it takes.

Shapes: K key heads, D head size, S slots, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ponder.nets.config import DecoderConfig
from ponder.nets.gpu_share import free_gpu_memory, read_gib

MIN_CACHE_BYTES = 64 << 20  # a cache of this size is not halved any more
_CPU_CACHE_BYTES = 2 << 30


class KVCache:
    """`kv[layer]` is [2, K, S, D]. On a CPU, pages that were never written take no memory."""

    def __init__(
        self,
        config: DecoderConfig,
        slots: int,
        device: torch.device,
        dtype: torch.dtype,
        kv: list[Tensor] | None = None,  # tensors to use, if they are allocated already
    ) -> None:
        shape = (2, config.kv_heads, slots, config.head_dim)
        self.kv = kv or [torch.empty(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.device = device

    def to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy keys and values of some slots to others, in all layers."""
        old, new = (self.to_device(np.asarray(slots, np.int64)) for slots in (sources, targets))
        for kv in self.kv:
            kv.index_copy_(2, new, kv.index_select(2, old))

    def write(self, layer: int, slots_T: Tensor, kv_2KTD: Tensor) -> None:
        self.kv[layer].index_copy_(2, slots_T, kv_2KTD)


def bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def cache_budget(device: torch.device) -> int:
    """Bytes for the cache: PONDER_CACHE_GIB if it is set, else 2 GiB, on a GPU a quarter of its free memory."""
    if (given := read_gib("PONDER_CACHE_GIB")) is not None:
        return given
    if device.type != "cuda":
        return _CPU_CACHE_BYTES
    return max(MIN_CACHE_BYTES, free_gpu_memory(device) // 4)
