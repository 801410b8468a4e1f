"""How much of a GPU's memory this process takes: all that is free, or what PONDER_GPU_GIB says.

torch's allocator is given the limit, less what the engine maps beside it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter

import torch

from ponder.errors import UsageError

LIMIT = "PONDER_GPU_GIB"

_mapped: Counter[int] = Counter()  # bytes beside torch's allocator, by GPU
mapping = threading.RLock()  # held while memory is mapped and counted; memory is also unmapped where it is collected


def read_gib(name: str) -> int | None:
    """Bytes, of an environment variable that counts GiB; None where it is not set."""
    setting = os.environ.get(name)
    if not setting:
        return None
    try:
        size = float(setting)
    except ValueError:
        size = 0.0
    if not 0 < size < 2**20:
        raise UsageError(f"{name} is {setting!r}; it must be a number of GiB, such as 4 or 0.5")
    return int(size * 2**30)


def limit_gpu_memory(device: torch.device) -> None:
    """Hold torch's allocator to the limit, where there is one. `available_gpu_memory`, which all who load, sample or
    learn ask, does it, too."""
    if (limit := read_gib(LIMIT)) is None or device.type != "cuda":
        return
    with mapping:
        number = _number(device)
        share = (limit - _mapped[number]) / torch.cuda.get_device_properties(number).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)), number)


def count_mapped_memory(device: torch.device, size: int) -> None:
    """So many bytes more, or fewer, are mapped beside torch's allocator."""
    with mapping:
        _mapped[_number(device)] += size
        limit_gpu_memory(device)


def available_gpu_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that this process may still take, and that it may have in all. From then on torch's allocator is
    held to the limit, where there is one."""
    free, whole = torch.cuda.mem_get_info(device)
    if (limit := read_gib(LIMIT)) is None:
        return free, whole
    with mapping:
        limit_gpu_memory(device)
        taken = torch.cuda.memory_reserved(device) + _mapped[_number(device)]
    return min(free, max(0, limit - taken)), min(whole, limit)


def whole_gpu_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process may have in all."""
    whole = int(torch.cuda.get_device_properties(device).total_memory)
    return min(whole, read_gib(LIMIT) or whole)


def may_map(device: torch.device, size: int) -> bool:
    """Whether the limit allows so much more beside torch's allocator."""
    return read_gib(LIMIT) is None or size <= available_gpu_memory(device)[0]


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that this process may still take of a GPU's memory: also what torch's allocator keeps and does not use."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available_gpu_memory(device)[0] + kept


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
