"""How much memory a cache takes where nobody said, and which runner computes a network's passes."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from ponder.engine import cpu_packed_weights
from ponder.engine.fused_weights import QUANTIZED_DTYPES
from ponder.engine.model_runner import ModelRunner
from ponder.errors import UnknownName, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder

MIN_CACHE_BYTES = 64 << 20  # bytes of a cache that shrinks no more
_CPU_CACHE_BYTES = 2 << 30


def cache_budget(device: torch.device) -> int:
    """Bytes: as PONDER_CACHE_GIB says, or 2 GiB, on a GPU a quarter of what is free there."""
    if told := os.environ.get("PONDER_CACHE_GIB"):
        try:
            size = float(told)
        except ValueError:
            size = 0.0
        if not 0 < size < 2**20:
            raise UsageError(f"PONDER_CACHE_GIB is {told!r}; it must be a number of GiB, such as 4 or 0.5")
        return int(size * 2**30)
    if device.type != "cuda":
        return _CPU_CACHE_BYTES
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(MIN_CACHE_BYTES, free // 4)


def make_runner(net: Decoder, slots: int, max_num_seqs: int, cuda_graphs: bool, quantization: str) -> ModelRunner:
    """With adapters attached, the network has layers that graphs know nothing of."""
    if quantization and quantization not in QUANTIZED_DTYPES:
        raise UnknownName("kind of small weights", quantization, QUANTIZED_DTYPES)
    if cuda_graphs and net.device.type == "cuda" and not lora.has_adapter(net) and find_spec("triton"):
        from ponder.engine.cuda_graph_runner import CudaGraphRunner

        return CudaGraphRunner(net, slots, max_num_seqs, quantization)
    if quantization:
        raise UsageError(
            f"{quantization} weights are for an NVIDIA GPU with triton, and for a network without adapters"
        )
    if net.device.type == "cpu" and cpu_packed_weights.is_worthwhile(net):
        return cpu_packed_weights.PackedWeightsRunner(net, slots)
    return ModelRunner(net, slots)
