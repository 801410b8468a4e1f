"""RMSNorm, SwiGLU and rotation on a CPU with their gradients, each in one pass over the numbers (cpu_training_ops.c).

Shapes: T tokens, E width, H heads, D head size.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from ponder.nets.cpu_kernels import load_kernels

_MIN_NUMBERS = 1 << 14  # of an operation: below, torch's own operations start as fast as these


def load_training_kernels(*tensors: Tensor) -> ctypes.CDLL | None:
    """The functions for these tensors. None: they are small, elsewhere, or of another kind, or it is not compiled."""
    first = tensors[0]
    if torch.compiler.is_compiling() or first.numel() < _MIN_NUMBERS:  # in this order: compiled code asks for no size
        return None
    plain = Tensor, torch.nn.Parameter
    for x in tensors:
        if type(x) not in plain or x.device.type != "cpu" or x.dtype != first.dtype or not x.is_contiguous():
            return None
    return load_kernels("cpu_training_ops.c", first.dtype)


def rms_norm(library: ctypes.CDLL, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out: Tensor = _RMSNorm.apply(x, weight, eps, library)  # type: ignore[no-untyped-call]
    return out


def swiglu(library: ctypes.CDLL, gate: Tensor, up: Tensor) -> Tensor:
    out: Tensor = _SwiGLU.apply(gate, up, library)  # type: ignore[no-untyped-call]
    return out


def rotate(library: ctypes.CDLL, x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Both halves of a head have the same angles."""
    out: Tensor = _Rotate.apply(x_THD, cos_T1D, sin_T1D, library)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, library: ctypes.CDLL) -> Tensor:
        width = x.shape[-1]
        out, factors = torch.empty_like(x), torch.empty(x.numel() // width)
        ctx.save_for_backward(x, weight, factors)
        ctx.library = library
        library.norm(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), factors.data_ptr(), len(factors), width, eps,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, factors = ctx.saved_tensors
        grad, grad_x, threads = grad.contiguous(), torch.empty_like(x), torch.get_num_threads()
        sums = torch.zeros(threads, x.shape[-1])
        ctx.library.norm_backward(
            grad.data_ptr(), x.data_ptr(), weight.data_ptr(), factors.data_ptr(), grad_x.data_ptr(), sums.data_ptr(),
            len(factors), x.shape[-1], threads,
        )  # fmt: skip
        return grad_x, sums.sum(0).to(weight.dtype), None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, library: ctypes.CDLL) -> Tensor:
        out = torch.empty_like(gate)
        ctx.save_for_backward(gate, up)
        ctx.library = library
        library.swiglu(gate.data_ptr(), up.data_ptr(), out.data_ptr(), gate.numel(), torch.get_num_threads())
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        grad, grad_gate, grad_up = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        pointers = [x.data_ptr() for x in (grad, gate, up, grad_gate, grad_up)]
        ctx.library.swiglu_backward(*pointers, gate.numel(), torch.get_num_threads())
        return grad_gate, grad_up, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor, library: ctypes.CDLL) -> Tensor:
        ctx.save_for_backward(cos_T1D, sin_T1D)
        ctx.library = library
        return _turn(library, x_THD, cos_T1D, sin_T1D, 1.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos_T1D, sin_T1D = ctx.saved_tensors
        return _turn(ctx.library, grad.contiguous(), cos_T1D, sin_T1D, -1.0), None, None, None


def _turn(library: ctypes.CDLL, x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor, sign: float) -> Tensor:
    (rows, heads, size), out = x_THD.shape, torch.empty_like(x_THD)
    library.turn(
        x_THD.data_ptr(), cos_T1D.data_ptr(), sin_T1D.data_ptr(), out.data_ptr(), heads * size, rows, heads, size, sign,
        torch.get_num_threads(),
    )  # fmt: skip
    return out
