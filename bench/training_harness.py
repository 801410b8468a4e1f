"""What the trainer's benches share: shapes of public models with random weights, traces of random tokens, FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Step, Trace, ids, user_messages

SHAPES = {
    "smollm2-135m": DecoderConfig(
        "llama", 49152, 576, 30, 9, 3, 64, mlp_width=1536, context=65536, rope=RopeConfig(100000.0), eos=(2,),
    ),
    "qwen3-0.6b": DecoderConfig(
        "qwen3", 151936, 1024, 28, 16, 8, 128, mlp_width=3072, context=65536, rope=RopeConfig(1e6), qk_norm=True,
        eos=(2,),
    ),
    "qwen2.5-1.5b": DecoderConfig(
        "qwen2", 151936, 1536, 28, 12, 2, 128, mlp_width=8960, context=65536, rope=RopeConfig(1e6), qkv_bias=True,
        eos=(2,),
    ),
    "qwen2.5-7b": DecoderConfig(
        "qwen2", 152064, 3584, 28, 28, 4, 128, mlp_width=18944, context=65536, rope=RopeConfig(1e6),
        tied_embeddings=False, qkv_bias=True, eos=(2,),
    ),
}  # fmt: skip


def random_decoder(shape: str, device: str, dtype: torch.dtype) -> Decoder:
    """Random weights: time and memory do not depend on their values."""
    with torch.device(device):
        return initialise_on(SHAPES[shape], device, dtype)


def initialise_on(config: DecoderConfig, device: str, dtype: torch.dtype) -> Decoder:
    if device == "cpu":
        return init_decoder(config, 0, dtype)
    with torch.device(device):  # else billions of numbers are drawn on the host
        net = Decoder(config).to(dtype)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
    return net


def trl_dataset(rows: list[dict[str, Any]]) -> Any:
    """What TRL's trainer takes. It has a fingerprint of its own: datasets 5.2 cannot hash the tables of pyarrow 26."""
    import pyarrow
    from datasets import Dataset

    return Dataset(pyarrow.Table.from_pylist(rows), fingerprint="rows")


def random_groups(config: DecoderConfig, prompts: int, n: int, prompt: int, tokens: int, seed: int = 0) -> list[Trace]:
    """Groups of completions of random tokens, credited as by GRPO with rewards that all differ."""
    draw = np.random.default_rng(seed)

    def random(count: int) -> np.ndarray:
        return ids(draw.integers(3, config.vocab, count))

    out = []
    for i in range(prompts):
        trace = Trace(Problem(str(i), user_messages("?")), [Step(None, "?", random(prompt))])
        for advantage in draw.normal(size=n):
            trace.add(Step(0, "", random(tokens), np.full(tokens, -1.0, np.float32), "length"))
            trace.steps[-1].advantages = np.full(tokens, advantage, np.float32)
        out.append(trace)
    return out


def model_flops(config: DecoderConfig, traces: list[Trace], attention: bool = True) -> float:
    """Of one forward and backward pass: three times the forward's, each token seeing what lies before it on its path.

    Nothing that is computed twice (the head, activations) counts twice. Without `attention`: all but what mixes tokens.
    """
    total = 0.0
    for trace in traces:
        for i, step in enumerate(trace.steps):
            before = sum(len(trace.steps[j].token_ids) for j in trace.path(i)[:-1])
            count = len(step.token_ids)
            seen = before + (count + 1) / 2 if attention else 0.0
            total += 3 * count * (config.flops_per_token(0) + 4 * config.layers * config.heads * config.head_dim * seen)
    head = 2.0 * config.vocab * config.width
    return total - 3 * head * sum(len(t.steps[0].token_ids) for t in traces)  # a prompt passes no head


def matmul_rate(device: str, dtype: torch.dtype, size: int = 8192) -> float:
    """FLOP/s of a large matrix product, the best of several: what the machine can do at most."""
    size = size if device == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(8):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronize(device)
        best = max(best, 10 * 2 * size**3 / (time.perf_counter() - began))
    return best


def synchronize(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class UpdateCost:
    seconds: float  # of one step: the median
    every: list[float]
    bytes: int  # at most, on the device
    kernels: dict[str, Any] = field(default_factory=dict)  # of one more step, see `time_kernels`


def time_updates(
    net: Decoder, traces: list[Trace], device: str, steps: int, states: str = "float32", profile: bool = False,
    **settings: object,
) -> UpdateCost:  # fmt: skip
    """GRPO's update as the trainer does it: forward, loss, backward, clipping, AdamW on float32 masters."""
    learner = Learner(net, GRPO(kl=None), AdamW(lr=1e-6, states=states), **settings)  # type: ignore[arg-type]
    times = []
    for i in range(steps + 2):  # two to warm up: compilation, and then its second look at sizes
        if i == 2 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = synchronize(device)
        args = learner.step(traces)
        times.append(synchronize(device) - began)
        assert args["grad_norm"] > 0
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    kernels = time_kernels(lambda: learner.step(traces), device) if profile else {}
    return UpdateCost(sorted(times[2:])[steps // 2], times[2:], peak, kernels)


# Parts of a training step, by what the names of their kernels contain; the first that fits.
_KERNEL_KINDS = {
    "attention": ("flash", "fmha", "flex", "attention"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk", "_mm", "linear"),
    "optimiser": ("multi_tensor", "adam", "foreach"),
    "fused short operations": ("triton",),  # before copies: their names tell of conversions inside
    "copies": ("memcpy", "memset", "copy", "direct_copy", "catarray"),
}


def time_kernels(work: Callable[[], Any], device: str, listed: int = 25) -> dict[str, Any]:
    """Milliseconds of each kind of kernel in one run of `work`, the longest kernels, and the whole while profiled."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=kinds) as seen:
        began = synchronize(device)
        work()
        whole = synchronize(device) - began
    times: dict[str, list[float]] = {}
    for event in seen.events():
        on_device = str(event.device_type).endswith("CUDA")
        if on_device == (device == "cuda"):
            spent = event.self_device_time_total if on_device else event.self_cpu_time_total
            times.setdefault(event.name, []).append(spent / 1000)
    sums: dict[str, float] = dict.fromkeys([*_KERNEL_KINDS, "other"], 0.0)
    for name, many in times.items():
        fits = (kind for kind, parts in _KERNEL_KINDS.items() if any(part in name.lower() for part in parts))
        sums[next(fits, "other")] += sum(many)
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:listed]
    return {
        "whole_ms": 1000 * whole,
        "kernels_ms": sum(sums.values()),
        "kinds_ms": sums,
        "longest": [{"name": name[:120], "calls": len(many), "ms": sum(many)} for name, many in longest],
    }
