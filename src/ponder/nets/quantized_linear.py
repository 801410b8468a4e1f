"""A frozen linear layer in 4 or 8 bits, as the base of LoRA adapters (QLoRA, Dettmers et al. 2023, arXiv:2305.14314).

Weights are cut into blocks of 64. Each block keeps its largest magnitude in float32, and each weight a code: for `nf4`
one of 16 quantiles of a normal distribution, two to a byte; for `int8` one of 255 equal steps. A product dequantises
the matrix, multiplies, and drops it again, forward and backward; so a layer takes 4.5 or 8.5 bits per weight. There is
no double quantisation. Plain torch, on any device.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.errors import ModelError, UnknownName

QuantizedBase = Literal["int8", "nf4"]
BLOCK_WEIGHTS = 64
MAX_INT8 = 127
# The paper's appendix E: quantiles of the standard normal distribution, scaled to [-1, 1], with an exact 0.
NF4_CODES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class QuantizedLinear(nn.Module):
    """y = x W^T + b with a quantised, frozen W. `weight` is W as it multiplies, computed anew."""

    codes: Tensor  # uint8, two codes to a byte (nf4); or int8
    scales: Tensor  # float32, one of each block

    def __init__(self, layer: nn.Linear, base: QuantizedBase) -> None:
        super().__init__()
        if base not in get_args(QuantizedBase):
            raise UnknownName("quantised base", base, get_args(QuantizedBase))
        self.base, self.dtype = base, layer.weight.dtype
        self.in_features, self.out_features = layer.in_features, layer.out_features
        codes, scales = quantize(layer.weight.detach(), base)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.bias = layer.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    @property
    def weight(self) -> Tensor:
        shape = (self.out_features, self.in_features)
        return dequantize(self.codes, self.scales, self.base, shape).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _FrozenProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        """To another device; another dtype is that of the product, while the scales stay float32."""
        stored = dict(self._buffers)
        like = fn(torch.empty(0, dtype=self.dtype, device=self.scales.device))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = like.dtype
        self._buffers.update({name: t if t is None else t.to(like.device) for name, t in stored.items()})
        return self

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, base={self.base}"


def quantized_weights(net: nn.Module) -> int:
    """Weights of a network that are stored as codes, and so are none of its parameters."""
    return sum(m.in_features * m.out_features for m in net.modules() if isinstance(m, QuantizedLinear))


class _FrozenProduct(torch.autograd.Function):
    """x W^T. The backward pass dequantises W again, so that no graph holds on to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad @ ctx.layer.weight, None


@cache
@torch.inference_mode(False)  # a tensor made in inference mode cannot be used in training
def _nf4_codes(device: torch.device) -> Tensor:
    """The codes, copied to a device once: a CUDA graph can hold no copy from the host."""
    return torch.tensor(NF4_CODES, device=device)


def quantize(weight: Tensor, base: QuantizedBase) -> tuple[Tensor, Tensor]:
    """The codes of a matrix, and the largest magnitude of each block."""
    if not bool(torch.isfinite(weight).all()):
        raise ModelError("weights that are not finite cannot be quantised; download the model again")
    flat = F.pad(weight.float().flatten(), (0, -weight.numel() % BLOCK_WEIGHTS)).view(-1, BLOCK_WEIGHTS)
    scales = flat.abs().amax(1)
    unit = flat / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    if base == "int8":
        return (unit * MAX_INT8).round().to(torch.int8).flatten(), scales
    book = _nf4_codes(weight.device)
    nearest = torch.bucketize(unit.flatten(), (book[1:] + book[:-1]) / 2).to(torch.uint8)
    return nearest[::2] << 4 | nearest[1::2], scales


def dequantize(codes: Tensor, scales: Tensor, base: QuantizedBase, shape: tuple[int, int]) -> Tensor:
    """The matrix in float32."""
    if base == "int8":
        unit = codes.float() / MAX_INT8
    else:
        book = _nf4_codes(codes.device)
        unit = book[torch.stack((codes >> 4, codes & 15), 1).flatten().int()]
    flat = unit.view(-1, BLOCK_WEIGHTS) * scales[:, None]
    return flat.flatten()[: shape[0] * shape[1]].view(shape)
