"""A runner for CPUs with a copy of the large matrices in the layout that kernels read: of compiled products
(cpu_panels.py) where there are some, else of oneDNN.

Without it, oneDNN reorders a matrix in every product. For the few rows of a decoding step, that takes as long as the
product itself. A single row reads each number once, in any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.engine import cpu_panels
from ponder.engine.cpu_panels import Panels
from ponder.engine.layer_override import Forward, override_forward
from ponder.engine.model_runner import ModelRunner
from ponder.memory_check import free_memory
from ponder.nets.decoder import Decoder, at_least_float32

_MIN_MATRIX_ENTRIES = 1 << 16  # a smaller matrix stays in the processor's cache, in any layout
_TOKENS_BEFORE_PACKING = 64  # tokens computed with new weights before packing, which takes as long as a step or two

PackedMatrix = Panels | Tensor  # a tensor: in oneDNN's layout


class PackedWeightsRunner(ModelRunner):
    def __init__(self, net: Decoder, slots: int) -> None:
        super().__init__(net, slots)
        self._packed: dict[nn.Linear, PackedMatrix] = {}
        self._forwards: dict[nn.Linear, Callable[[Forward], Forward]] = {}
        self._tokens_since_change = 0  # tokens computed since the weights changed

    def refresh_weights(self) -> None:
        self._packed, self._forwards, self._tokens_since_change = {}, {}, 0

    @contextmanager
    def _with_adapters(self, names: Sequence[str], sizes: Sequence[int]) -> Iterator[None]:
        self._tokens_since_change += (tokens := sum(sizes))
        if not self._packed and self._tokens_since_change >= _TOKENS_BEFORE_PACKING:
            try:
                self._packed = self._pack_layers()
            except RuntimeError:  # other programs took the memory meanwhile
                self._tokens_since_change = 0
            self._forwards = {layer: _packed_forward(layer, matrix) for layer, matrix in self._packed.items()}
        with override_forward(self._forwards if tokens > 1 else {}), super()._with_adapters(names, sizes):
            yield

    def _pack_layers(self) -> dict[nn.Linear, PackedMatrix]:
        return {layer: pack(layer.weight) for layer in _large_layers(self.net)}

    def _logits_from_hidden(self, hidden_BE: Tensor) -> Tensor:
        head = self._packed.get(self.net.lm_head)
        if head is None or len(hidden_BE) == 1:
            return super()._logits_from_hidden(hidden_BE)
        return at_least_float32(multiply(hidden_BE, head))


def is_worthwhile(net: Decoder) -> bool:
    """Whether there is something to pack, memory for it, and a kernel that reads it."""
    size = sum(layer.weight.nbytes for layer in _large_layers(net))
    return 0 < size < free_memory() // 4 and is_supported(net.dtype)


def is_supported(dtype: torch.dtype) -> bool:
    """Whether there are kernels for this dtype. Not for float16: oneDNN accumulates in 16 bits there."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    if cpu_panels.are_fast(dtype):
        return True
    x = torch.arange(64 * 64).view(64, 64).remainder(7).to(dtype)
    try:
        return torch.backends.mkldnn.is_available() and torch.equal(multiply(x, pack(x)), F.linear(x, x))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def pack(weight: Tensor) -> PackedMatrix:
    if cpu_panels.are_fast(weight.dtype):
        return Panels(weight.detach())
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 64)
    return packed


def multiply(x: Tensor, packed: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    if isinstance(packed, Panels):
        return packed.multiply(x, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


def _large_layers(net: Decoder) -> list[nn.Linear]:
    return [m for m in net.modules() if isinstance(m, nn.Linear) and m.weight.numel() >= _MIN_MATRIX_ENTRIES]


def _packed_forward(layer: nn.Linear, packed: PackedMatrix) -> Callable[[Forward], Forward]:
    return lambda plain: lambda x: multiply(x, packed, layer.bias)
