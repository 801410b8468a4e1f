"""Products of rows with packed bfloat16 matrices by the matrix units of x86 processors (AMX; nets/cpu_tiles.c).

Shapes: T rows, I inputs, O outputs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from ponder.engine import cpu_packed_weights
from ponder.nets.cpu_kernels import load_kernels

_ROWS, _DEPTH = 16, 32  # of a tile: rows or outputs, and inputs


def load_tiles(weight_OI: Tensor) -> ctypes.CDLL | None:
    """The functions for such a matrix. None: this machine has no such units, or the matrix does not fill tiles."""
    (outputs, inputs), is_cpu = weight_OI.shape, weight_OI.device.type == "cpu"
    if not is_cpu or weight_OI.dtype != torch.bfloat16 or outputs % _ROWS or inputs % _DEPTH:
        return None
    library = load_kernels("cpu_tiles.c", weight_OI.dtype)
    return library if library is not None and _request_tiles(library) else None


@cache
def _request_tiles(library: ctypes.CDLL) -> bool:
    return bool(library.request_tiles())


@cache
def are_faster(library: ctypes.CDLL) -> bool:
    """Whether products of a decoding step are faster than oneDNN's, with this number of threads. Measured once in a
    process, with more matrices than stay in a core's cache."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(1536, 576, generator=draw).to(torch.bfloat16) for _ in range(8)]
    x = torch.randn(64, 576, generator=draw).to(torch.bfloat16)
    tiles, packed = [pack_tiles(w) for w in weights], [cpu_packed_weights.pack(w) for w in weights]
    seconds = [_best_seconds(lambda: [multiply_tiles(library, x, t, None) for t in tiles])]
    seconds.append(_best_seconds(lambda: [cpu_packed_weights.multiply(x, p) for p in packed]))
    return seconds[0] < seconds[1]


def _best_seconds(work: Callable[[], object], times: int = 5) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def pack_tiles(weight_OI: Tensor) -> Tensor:
    """Tiles of 16 outputs and 32 inputs, pairs of inputs side by side."""
    outputs, inputs = weight_OI.shape
    tiles = weight_OI.detach().view(outputs // _ROWS, _ROWS, inputs // _DEPTH, _DEPTH // 2, 2)
    return tiles.permute(0, 2, 3, 1, 4).contiguous()


def multiply_tiles(library: ctypes.CDLL, x_TI: Tensor, tiles: Tensor, bias: Tensor | None) -> Tensor:
    (rows, inputs), outputs = x_TI.shape, len(tiles) * _ROWS
    x_TI = x_TI.contiguous()
    out = x_TI.new_empty(rows, outputs)
    last = None
    if filled := rows % _ROWS:
        last = x_TI.new_zeros(_ROWS, inputs)
        last[:filled] = x_TI[rows - filled :]
    library.multiply(
        x_TI.data_ptr(), None if last is None else last.data_ptr(), rows, inputs, tiles.data_ptr(), outputs,
        None if bias is None else bias.data_ptr(), out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
