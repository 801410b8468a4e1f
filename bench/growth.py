"""Time and memory of GRPO's update as the context grows, and as the group grows: how both scale, and a plot.

Context: a fixed number of sequences, from 1k to 32k tokens each, one sequence at a time. Group: prompts of 512 tokens
with 2 to 64 completions of 256 tokens each, the prompt computed once for its group. For each point the seconds and the
bytes at most, against the number of tokens; the slope of log seconds over log tokens says how it grows (1: linear).
Attention itself grows with the square of the context; the share of its FLOPs is given beside each point. The peer is
the same update with the prompt computed for each completion anew, as trainers without shared prefixes do.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import RESULTS, hardware, make_parser, report
from ponder.types import Trace
from training_harness import SHAPES, model_flops, random_decoder, random_groups, time_updates


def split_groups(traces: list[Trace]) -> list[Trace]:
    """Each completion with its own copy of the prompt."""
    return [Trace(t.problem, [t.steps[0], step]) for t in traces for step in t.steps[1:]]


def measure_update(args: Any, traces: list[Trace], max_tokens_per_microbatch: int) -> dict[str, float]:
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    net = random_decoder(args.shape, args.device, dtype)
    done = time_updates(net, traces, args.device, args.steps, max_tokens_per_microbatch=max_tokens_per_microbatch)
    config = net.config
    total = model_flops(config, traces)
    tokens = sum(len(s.token_ids) for t in traces for s in t.steps)
    point = {"tokens": tokens, "seconds": done.seconds, "bytes": float(done.bytes), "flops": total}
    point["attention_share"] = 1 - model_flops(config, traces, attention=False) / total
    print({k: round(v, 4) for k, v in point.items()}, flush=True)
    del net, done
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return point


def slope(points: list[dict[str, float]], y: str) -> float:
    """Of a line through the logarithms."""
    x, values = ([np.log(p[k]) for p in points] for k in ("tokens", y))
    return float(np.polyfit(x, values, 1)[0])


def draw(curves: dict[str, list[dict[str, float]]], title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    for column, (what, label) in enumerate(
        (("context", "tokens of each sequence"), ("group", "completions per prompt"))
    ):
        for row, (key, unit, scale) in enumerate((("seconds", "time, s", 1.0), ("bytes", "memory, GiB", 2.0**30))):
            axis = axes[row][column]
            for name in (n for n in curves if n.startswith(what)):
                shared = name == what
                x, y = [p["x"] for p in curves[name]], [p[key] / scale for p in curves[name]]
                kind = {"color": "#1f5fbf", "label": "ponder"} if shared else {"color": "#8c959f", "ls": "--"}
                axis.plot(
                    x, y, "o-" if shared else "s", ms=4, **{"label": "prompt computed for each completion", **kind}
                )
                for p, value in zip(curves[name], y, strict=True):
                    if what == "context" and key == "seconds" and p["attention_share"] > 0.6:
                        share = f"attention {100 * p['attention_share']:.0f} % of FLOPs"
                        axis.annotate(
                            share, (p["x"], value), (-6, 0), textcoords="offset points", ha="right", fontsize=8
                        )
            axis.set(xlabel=label, ylabel=unit, xlim=(0, None), ylim=(0, None))
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            if what == "group" and row == 0:
                axis.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", choices=list(SHAPES), default="smollm2-135m")
    flags.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    flags.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    flags.add_argument("--steps", type=int, default=3)
    flags.add_argument("--draw", type=Path, help="measure nothing: draw a kept result again")
    args = flags.parse_args()
    if args.draw:
        kept = json.loads(args.draw.read_text(encoding="utf-8"))
        draw(
            kept["details"]["curves"],
            f"GRPO's update, {kept['work'].partition(':')[0]}, {kept['hardware']}",
            args.draw.with_suffix(".png"),
        )
        return
    config = SHAPES[args.shape]

    curves: dict[str, list[dict[str, float]]] = {"context": [], "group": [], "group, not shared": []}
    for tokens in args.contexts:
        work = random_groups(config, 2, 1, 16, tokens - 16)
        curves["context"].append({"x": tokens, **measure_update(args, work, tokens)})
    for n in args.groups:
        work = random_groups(config, 2, n, 512, 256)
        curves["group"].append({"x": n, **measure_update(args, work, 8192)})
        curves["group, not shared"].append({"x": n, **measure_update(args, split_groups(work), 8192)})
    path = RESULTS / f"growth-{hardware(args.device)}.png"
    draw(curves, f"GRPO's update, {args.shape} shape, {hardware(args.device)}", path)
    measured = [(name, y) for name in ("context", "group") for y in ("seconds", "bytes") if curves[name][0][y]]
    slopes = {f"{name}: {y}": slope(curves[name], y) for name, y in measured}
    last, theirs = curves["group"][-1], curves["group, not shared"][-1]
    report(
        "growth",
        f"{args.shape} shape: GRPO's update of 2 prompts of 512 tokens x {args.groups[-1]} completions of 256 tokens",
        last["seconds"],
        {"the prompt computed for each completion": theirs["seconds"]},
        unit="s",
        better="lower",
        device=args.device,
        details={"curves": curves, "slope": slopes},
    )


if __name__ == "__main__":
    main()
