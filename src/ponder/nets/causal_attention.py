"""Attention over few long sequences without branches: torch's causal kernel for each. Shapes as in decoder.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ponder.nets.host_arrays import to_device

MIN_MEAN_TOKENS = 2048  # from this mean length on, a kernel call per sequence pays off
SDPA_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class CausalAttention:
    """Sequences of equal length that follow each other are one call. Tokens are split, not sliced: the gradient of a
    slice is as large as what was sliced."""

    can_compile = False

    def __init__(self, sizes: Sequence[int], positions_T: np.ndarray[Any, Any], device: torch.device) -> None:
        self.positions_T = to_device(positions_T, device)
        self._calls = [(size, len(list(equal))) for size, equal in groupby(sizes)]  # length, sequences

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        assert window is None
        totals = [size * count for size, count in self._calls]
        parts = [(x,) if len(totals) == 1 else x.split(totals) for x in (q_THD, k_TKD, v_TKD)]
        out = []
        with sdpa_kernel(SDPA_BACKENDS, set_priority=True):
            for (size, count), *qkv in zip(self._calls, *parts, strict=True):
                q, k, v = (x.unflatten(0, (count, size)).transpose(1, 2) for x in qkv)
                gqa = q.shape[1] != k.shape[1]
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)
                out.append(mixed.transpose(1, 2).flatten(0, 1))
        return out[0] if len(out) == 1 else torch.cat(out)
