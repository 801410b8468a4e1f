"""Linear layers whose three matrix products are computed in 8-bit floats (FP8: Micikevicius et al. 2022,
arXiv:2209.05433), for training on GPUs that have them.

Before a product each factor is scaled by a power of two, chosen by its largest magnitude, and rounded: inputs and
weights to e4m3 (3 bits of mantissa), gradients to e5m2 (2 bits, more range). Sums are float32, and the result has the
input's dtype. The weights themselves are not rounded: the optimiser's masters stay float32.

Shapes: T tokens, K inputs, N outputs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.errors import UsageError
from ponder.nets.quantized_linear import QuantizedLinear

INPUT_DTYPE, GRADIENT_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
SIZE_MULTIPLE = 16  # what the GPU's instructions take of N, and of the dimension that is summed over
MIN_CAPABILITY = (8, 9)  # Ada; Hopper is 9.0
_MIN_AMAX = 1e-30  # a matrix of zeros is scaled by a finite number


def linear(layer: nn.Module, x_TK: Tensor, fp8: bool) -> Tensor:
    """A linear layer, with or without an adapter, whose own products are computed in FP8 if asked."""
    if not fp8:
        return layer(x_TK)
    if hasattr(layer, "base_layer"):
        return layer(x_TK, fp8=True)
    assert isinstance(layer, nn.Linear)
    if layer.in_features % SIZE_MULTIPLE or layer.out_features % SIZE_MULTIPLE:
        return layer(x_TK)
    out: Tensor = _Fp8Product.apply(x_TK, layer.weight)  # type: ignore[no-untyped-call]
    return out if layer.bias is None else out + layer.bias


def check_supported(net: nn.Module, device: torch.device) -> None:
    """Raise UsageError if this device, or this network, cannot be trained with FP8 products."""
    if any(isinstance(module, QuantizedLinear) for module in net.modules()):
        raise UsageError("weights under adapters are quantised already (--lora.base): leave out --fp8")
    if device.type != "cuda" or torch.version.cuda is None:
        raise UsageError(f"FP8 products need an NVIDIA GPU, and the model is on {device.type}: leave out --fp8")
    if (has := torch.cuda.get_device_capability(device)) < MIN_CAPABILITY:
        needed = ".".join(map(str, MIN_CAPABILITY))
        raise UsageError(
            f"FP8 products need a GPU of compute capability {needed} or more (Ada, Hopper), and this one has "
            f"{has[0]}.{has[1]}: leave out --fp8"
        )


@cache
def prepare_compiler() -> None:
    """Let Dynamo take a product as one operation; what it computes is traced and fused after that. It cannot trace an
    autograd function with sizes that vary. Not done on import, which would import the compiler."""
    torch.compiler.allow_in_graph(_Fp8Product)


class _Fp8Product(torch.autograd.Function):
    """x W^T. A factor is stored along the dimension that is summed over, the only order that the GPU takes."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_TK, weight_NK)
        return _multiply(_round(x_TK, INPUT_DTYPE), _round(weight_NK, INPUT_DTYPE), x_TK.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, grad_TN: Tensor) -> Any:
        x_TK, weight_NK = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            rows, columns = _round(grad_TN, GRADIENT_DTYPE), _transpose(_round(weight_NK, INPUT_DTYPE))
            grad_x = _multiply(rows, columns, x_TK.dtype, fast=False)
        if ctx.needs_input_grad[1]:
            missing = -x_TK.shape[0] % SIZE_MULTIPLE  # a GPU's micro-batch is a multiple already
            if missing:
                grad_TN, x_TK = (F.pad(t, (0, 0, 0, missing)) for t in (grad_TN, x_TK))
            rows, columns = _transpose(_round(grad_TN, GRADIENT_DTYPE)), _transpose(_round(x_TK, INPUT_DTYPE))
            grad_weight = _multiply(rows, columns, weight_NK.dtype, fast=False)
        return grad_x, grad_weight


def _round(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix in FP8, and the number that it has to be multiplied by. Scales are powers of two: a number is rounded
    alike whatever else is in the matrix, unless it becomes very small."""
    amax = x.abs().amax().float().clamp(min=_MIN_AMAX)
    scale = torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / amax)))
    return (x.float() * scale).to(dtype), 1 / scale


def _transpose(rounded: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return rounded[0].t().contiguous(), rounded[1]


def _multiply(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], dtype: torch.dtype, fast: bool) -> Tensor:
    """A B^T of two rounded matrices. `fast` sums a few numbers at a time with 14 bits, as gradients must not."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=dtype, use_fast_accum=fast)
