"""How much memory a cache takes where nobody said, and which runner computes a network's passes."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from ponder.engine import packed
from ponder.engine.runner import Runner
from ponder.engine.weights import SMALL
from ponder.errors import UnknownName, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder

LEAST = 64 << 20  # bytes of a cache that shrinks no more
_CPU_CACHE = 2 << 30


def room(device: torch.device) -> int:
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
        return _CPU_CACHE
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(LEAST, free // 4)


def make_runner(net: Decoder, slots: int, most_rows: int, graphs: bool, small: str) -> Runner:
    """With adapters attached, the network has layers that graphs know nothing of."""
    if small and small not in SMALL:
        raise UnknownName("kind of small weights", small, SMALL)
    if graphs and net.device.type == "cuda" and not lora.attached(net) and find_spec("triton"):
        from ponder.engine.cuda import Graphs

        return Graphs(net, slots, most_rows, small)
    if small:
        raise UsageError(f"{small} weights are for an NVIDIA GPU with triton, and for a network without adapters")
    if net.device.type == "cpu" and packed.pays(net):
        return packed.Packed(net, slots)
    return Runner(net, slots)
