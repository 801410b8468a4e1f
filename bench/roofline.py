"""How fast sampling could be on this machine, and where the engine's time goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

import ponder.engine.engine as engine_module
from ponder.engine.cpu_decode_runner import CompiledDecodeRunner
from ponder.engine.cuda_graph_runner import CudaGraphRunner
from ponder.engine.engine import Engine
from ponder.engine.kv_cache import bytes_per_token
from ponder.engine.model_runner import ModelRunner
from ponder.nets.config import DecoderConfig
from ponder.types import Ids
from training_harness import matmul_rate, synchronize


@dataclass(frozen=True)
class MachinePeaks:
    """Measured, each the best of several."""

    bandwidth: float  # bytes/s that can be read (or copied, if that is faster, both ways counted)
    matrix_rate: float  # FLOP/s of a large matrix product


def measure_peaks(device: str, dtype: torch.dtype) -> MachinePeaks:
    result = MachinePeaks(bandwidth(device), matmul_rate(device, dtype) if device == "cuda" else cpu_matmul_rate(dtype))
    if device == "cuda":
        torch.cuda.empty_cache()  # others ask the device, not torch, how much is free
    return result


def bandwidth(device: str) -> float:
    size = (4 << 30) if device == "cuda" else (256 << 20)  # far more than a last-level cache holds
    a, b = (torch.ones(size // 4, device=device) for _ in range(2))
    works: list[tuple[int, Callable[[], Any]]] = [(size, lambda: a.sum()), (2 * size, lambda: a.copy_(b))]
    best = 0.0
    for moved, work in works:
        for _ in range(10):
            began = synchronize(device)
            work()
            best = max(best, moved / (synchronize(device) - began))
    return best


def cpu_matmul_rate(dtype: torch.dtype) -> float:
    """The best single product of many, short ones and long: on a shared machine some run undisturbed."""
    best = 0.0
    for size, times in ((256, 200), (512, 50), (1024, 10), (2048, 4), (4096, 2)):
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        for _ in range(times):
            began = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


@dataclass(frozen=True)
class DecodePass:
    """One more token for each of so many sequences."""

    rows: int
    keys: float  # tokens whose keys and values must be read, those that several sequences share once
    context: float  # tokens that each sequence sees


def min_seconds(
    config: DecoderConfig, dtype: torch.dtype, filled: int, passes: Iterable[DecodePass], machine: MachinePeaks
) -> dict[str, float]:
    """Seconds that no engine can beat on this machine: in each pass all weights and keys are read once, and all
    products are computed; the longer of the two counts. `filled` tokens of prompts are computed once, before."""
    weights = config.flops_per_token(0) / 2
    head = config.vocab * config.width
    reading = counting = least = 0.0
    for p in passes:
        read = (weights * dtype.itemsize + p.keys * bytes_per_token(config, dtype)) / machine.bandwidth
        count = p.rows * config.flops_per_token(int(p.context)) / machine.matrix_rate
        reading, counting, least = reading + read, counting + count, least + max(read, count)
    prompts = filled * 2 * (weights - head) / machine.matrix_rate
    return {
        "seconds": least + prompts,
        "reading_seconds": reading,
        "matrix_seconds": counting,
        "prompt_seconds": prompts,
        "bandwidth": machine.bandwidth,
        "matrix_rate": machine.matrix_rate,
    }


def explain_rates(
    least: Mapping[str, float], total: int, rates: Mapping[str, float], inside: Mapping[str, Any]
) -> dict[str, Any]:
    """For a result: how much of what is possible each side reaches, and what fills ponder's time. Also in words."""
    shares = {who: rate * least["seconds"] / total for who, rate in rates.items()}
    parts = {name: inside[name] / inside["seconds"] for name in TIME_SHARES}
    print(f"at most {total / least['seconds']:,.0f} tokens/s here: {_format_percents(shares)} of it")
    print(f"inside ponder: {_format_percents(parts)}", flush=True)
    limit = {"tokens_per_second": total / least["seconds"], **least}
    return {"share_of_limit": shares, "limit": limit, "inside_ponder": dict(inside)}


def _format_percents(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())


def count_distinct_prefixes(prefixes: Sequence[Ids]) -> int:
    """Nodes of the tree of these prefixes: what must be computed, and kept, at least."""
    return len({p[:i].tobytes() for p in prefixes for i in range(1, len(p) + 1)})


# What a run's time is made of: the network filling prefixes, and writing tokens; drawing them, and noting what was
# drawn; the rest of the engine's passes; and what its callers do, completions and texts among it.
TIME_SHARES = ("prompts", "network", "sampling", "schedule", "between passes")

# What is timed inside the engine, and the name it gets in a result.
_TIMED_METHODS: list[tuple[Any, str, str]] = [
    (Engine, "_step", "passes"),
    (ModelRunner, "prefill", "prompts"),
    (ModelRunner, "decode", "network"),
    (CudaGraphRunner, "launch", "network"),  # draws as well
    (CompiledDecodeRunner, "_decode_rows", "network"),  # this too
    (engine_module, "sample_and_append", "sampling"),
    (engine_module, "append_sampled", "sampling"),
]


@contextmanager
def time_engine(device: str) -> Iterator[dict[str, Any]]:
    """Seconds that the engine spends where, in here. It waits for the device after each part, so what is timed this
    way is a little slower than what is not: measure rates elsewhere."""
    seconds = dict.fromkeys([name for *_, name in _TIMED_METHODS], 0.0)
    calls = dict.fromkeys(seconds, 0)
    timings: dict[str, Any] = {}
    idle, running = threading.Condition(), 0

    def timed(work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            nonlocal running
            with idle:
                running += 1
            began = time.perf_counter()
            try:
                return work(*given, **named)
            finally:
                with idle:
                    seconds[name] += synchronize(device) - began
                    calls[name] += 1
                    running -= 1
                    idle.notify_all()

        return run

    with ExitStack() as stack:
        for owner, name, label in (point for point in _TIMED_METHODS if hasattr(*point[:2])):
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), label)))
        began = synchronize(device)
        yield timings
        with idle:  # the engine's thread may still be at the end of the pass that gave the last answer
            idle.wait_for(lambda: not running)
        whole = synchronize(device) - began
    inside = sum(seconds[name] for name in ("prompts", "network", "sampling"))
    timings |= {name: seconds[name] for name in ("prompts", "network", "sampling")}
    timings |= {"schedule": seconds["passes"] - inside, "between passes": whole - seconds["passes"]}
    timings |= {"seconds": whole, "calls": calls}
