"""Products of rows with packed bfloat16 matrices by the matrix units of x86 processors (AMX; nets/cpu_tiles.c).

Shapes: T rows, I inputs, O outputs.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from ponder.nets.cpu_kernels import load_kernels

_ROWS, _DEPTH = 16, 32  # of a tile: rows or outputs, and inputs


@cache
def _request_tiles(library: ctypes.CDLL) -> bool:
    return bool(library.request_tiles())


def load_tiles(weight_OI: Tensor) -> ctypes.CDLL | None:
    """The functions for such a matrix. None: this machine has no such units, or the matrix does not fill tiles."""
    (outputs, inputs), is_cpu = weight_OI.shape, weight_OI.device.type == "cpu"
    if not is_cpu or weight_OI.dtype != torch.bfloat16 or outputs % _ROWS or inputs % _DEPTH:
        return None
    library = load_kernels("cpu_tiles.c", weight_OI.dtype)
    return library if library is not None and _request_tiles(library) else None


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
