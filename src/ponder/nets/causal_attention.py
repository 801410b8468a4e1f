"""Attention over few long sequences without branches: torch's causal kernel for each. Shapes as in decoder.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

MIN_MEAN_TOKENS = 2048  # from this mean length on, a kernel call per sequence pays off
SDPA_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class CausalAttention:
    can_compile = False

    def __init__(self, sizes: Sequence[int], positions_T: np.ndarray[Any, Any], device: torch.device) -> None:
        self.positions_T = torch.from_numpy(positions_T).to(device)
        self._ends = list(pairwise(np.append(0, np.cumsum(sizes)).tolist()))

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        assert window is None
        out = []
        with sdpa_kernel(SDPA_BACKENDS, set_priority=True):
            for a, b in self._ends:
                q, k, v = (x[a:b].transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
                gqa = q.shape[1] != k.shape[1]
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)
                out.append(mixed[0].transpose(0, 1))
        return torch.cat(out)
