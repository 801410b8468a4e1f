"""Matrices packed for the compiled products of nets/cpu_products.c: float32, on x86-64 with AVX2 or AVX-512."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ponder.nets.cpu_kernels import load_kernels


class Panels:
    """A copy of a matrix [outputs, inputs]."""

    def __init__(self, weight: Tensor) -> None:
        library = load_products(weight.dtype)
        assert library is not None
        weight = weight.contiguous()
        self._library, (self.outputs, self._inputs) = library, weight.shape
        width = _panel_width(library)
        self._numbers = weight.new_empty(-(-self.outputs // width) * width * self._inputs)
        self.address = self._numbers.data_ptr()
        library.pack(weight.data_ptr(), self.outputs, self._inputs, self.address, torch.get_num_threads())

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        self._library.multiply(
            x.data_ptr(), x.numel() // self._inputs, self._inputs, self.address,
            None if bias is None else bias.data_ptr(), self.outputs, out.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return out


def are_fast(dtype: torch.dtype) -> bool:
    """Whether there are compiled products for this dtype, and this processor has no faster ones of its own."""
    library = load_products(dtype)
    return library is not None and _panel_width(library) > 0


def load_products(dtype: torch.dtype) -> ctypes.CDLL | None:
    return load_kernels("cpu_layers.c", dtype) if dtype == torch.float32 else None


def _panel_width(library: ctypes.CDLL) -> int:
    width = ctypes.c_int64()
    library.panel_width(ctypes.byref(width))
    return width.value
