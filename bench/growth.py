"""Time and memory of GRPO's update as the context grows, and as the group grows: how both scale, and a plot.

Context: a fixed number of sequences, from 1k to 32k tokens each, one sequence at a time. Group: prompts of 512 tokens
with 2 to 64 completions of 256 tokens each, the prompt computed once for its group. For each point the seconds and the
bytes at most, against the number of tokens; the slope of log seconds over log tokens says how it grows (1: linear).
Attention itself grows with the square of the context; the share of its FLOPs is given beside each point. The peer is
the same update with the prompt computed for each completion anew, as trainers without shared prefixes do.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch

from harness import RESULTS, hardware, parser, report
from ponder.types import Trace
from training import SHAPES, flops, fresh, groups, update


def alone(traces: list[Trace]) -> list[Trace]:
    """Each completion with its own copy of the prompt."""
    return [Trace(t.problem, [t.steps[0], step]) for t in traces for step in t.steps[1:]]


def measure(told: Any, traces: list[Trace], micro_tokens: int) -> dict[str, float]:
    dtype = torch.bfloat16 if told.device == "cuda" else torch.float32
    net = fresh(told.shape, told.device, dtype)
    done = update(net, traces, told.device, told.steps, micro_tokens=micro_tokens)
    config = net.config
    total = flops(config, traces)
    tokens = sum(len(s.token_ids) for t in traces for s in t.steps)
    plain = 3 * tokens * config.flops_per_token(0)
    point = {"tokens": tokens, "seconds": done.seconds, "bytes": float(done.bytes), "flops": total}
    point["attention_share"] = max(0.0, 1 - plain / total)
    print({k: round(v, 4) for k, v in point.items()}, flush=True)
    del net, done
    gc.collect()
    if told.device == "cuda":
        torch.cuda.empty_cache()
    return point


def slope(points: list[dict[str, float]], y: str) -> float:
    """Of a line through the logarithms."""
    x, values = ([np.log(p[k]) for p in points] for k in ("tokens", y))
    return float(np.polyfit(x, values, 1)[0])


def draw(curves: dict[str, list[dict[str, float]]], title: str, path: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    figure.suptitle(title)
    pairs = (("context", "tokens per sequence"), ("group", "completions per prompt"))
    for column, (what, label) in enumerate(pairs):
        for row, (key, unit, scale) in enumerate((("seconds", "s", 1.0), ("bytes", "GiB", 2.0**30))):
            axis = axes[row][column]
            for name, points in curves.items():
                if name.startswith(what):
                    style = "o-" if name == what else "s--"
                    told = "ponder" if name == what else "prompt computed for each completion"
                    axis.plot([p["x"] for p in points], [p[key] / scale for p in points], style, label=told)
            axis.set(
                xscale="log", yscale="log", xlabel=label, ylabel=f"{'time' if row == 0 else 'memory'} of a step, {unit}"
            )
            axis.grid(alpha=0.3, which="both")
            if what == "group" and row == 0:
                axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--shape", choices=list(SHAPES), default="smollm2-135m")
    flags.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    flags.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    flags.add_argument("--steps", type=int, default=3)
    told = flags.parse_args()
    config = SHAPES[told.shape]

    curves: dict[str, list[dict[str, float]]] = {"context": [], "group": [], "group, not shared": []}
    for tokens in told.contexts:
        work = groups(config, 2, 1, 16, tokens - 16)
        curves["context"].append({"x": tokens, **measure(told, work, tokens)})
    for n in told.groups:
        work = groups(config, 2, n, 512, 256)
        curves["group"].append({"x": n, **measure(told, work, 8192)})
        curves["group, not shared"].append({"x": n, **measure(told, alone(work), 8192)})
    path = RESULTS / f"growth-{hardware(told.device)}.png"
    draw(curves, f"GRPO's update, {told.shape} shape, {hardware(told.device)}", path)
    measured = [(name, y) for name in ("context", "group") for y in ("seconds", "bytes") if curves[name][0][y]]
    slopes = {f"{name}: {y}": slope(curves[name], y) for name, y in measured}
    last, theirs = curves["group"][-1], curves["group, not shared"][-1]
    report(
        "growth",
        f"{told.shape} shape: GRPO's update of 2 prompts of 512 tokens x {told.groups[-1]} completions of 256 tokens",
        last["seconds"],
        {"the prompt computed for each completion": theirs["seconds"]},
        unit="s",
        better="lower",
        device=told.device,
        details={"curves": curves, "slope": slopes},
    )


if __name__ == "__main__":
    main()
