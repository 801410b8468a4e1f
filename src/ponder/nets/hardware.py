"""Chooses device, dtype and number of threads by measuring this machine."""

from __future__ import annotations

import os
import time
from functools import cache

import torch

from ponder.errors import UnknownName, UsageError
from ponder.nets.gpu_share import LIMIT, read_gib

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: a GPU if there is one. Apple's MPS only on request: it works, but is not optimised."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda", "mps", "mps:0") and not name.startswith("cuda:"):
        raise UnknownName("device", name, ("auto", "cpu", "cuda", "mps"))
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device that torch can use: --device cpu, or run `ponder doctor`")
    if name.startswith("mps") and not torch.backends.mps.is_available():
        raise UsageError("this machine has no Apple MPS that torch can use: --device cpu, or run `ponder doctor`")
    if name.startswith("cuda"):
        read_gib(LIMIT)  # a wrong one is refused before anything is loaded
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 if the machine multiplies it faster than float32."""
    if name != "auto":
        if name not in DTYPES:
            raise UnknownName("dtype", name, ("auto", *DTYPES))
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if device.type == "cpu" and fast_bfloat16() else torch.float32


@cache
def fast_bfloat16() -> bool:
    """Whether bfloat16 is faster: with matrix units for it (AMX, Arm's bf16) it is, emulated it is slower.

    Measured once in a process, so that all its models get the same dtype.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return matmul_rate(torch.bfloat16) > 1.5 * matmul_rate(torch.float32)


def matmul_rate(dtype: torch.dtype, seconds: float = 0.05, rows: int = 256) -> float:
    """FLOP/s of matrix products of the size of a small language model's decoding."""
    a, b = torch.randn(rows, 576, dtype=dtype), torch.randn(1536, 576, dtype=dtype)
    torch.nn.functional.linear(a, b)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        torch.nn.functional.linear(a, b)
        count += 1
    return 2.0 * a.numel() * len(b) * count / (time.perf_counter() - began)


def set_threads() -> int:
    """Use as many threads as make products faster: a second one on a busy or shared core can slow them down.

    OMP_NUM_THREADS, where set, is obeyed.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rates = {n: 0.0 for n in {1, max(1, cores // 2), cores}}
    for _ in range(2):
        for n in rates:
            torch.set_num_threads(n)
            rates[n] = max(rates[n], matmul_rate(torch.float32, 0.03))
    best = max(n for n in rates if rates[n] > 0.9 * max(rates.values()))  # equal products: the rest still gains
    torch.set_num_threads(best)
    return best
