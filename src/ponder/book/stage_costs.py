"""What the stages of a figure's runs took: tokens and FLOPs, by the one meter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ponder.book.figure import SeedData, markdown_table
from ponder.measure.figures.canvas import format_amount
from ponder.runs import read_metrics, read_traces
from ponder.types import Cost

StageCost = dict[str, float]  # tokens and FLOPs


def stage_cost(folder: Path) -> StageCost | None:
    """Of a stage that trained, the tokens that it learned from and the FLOPs of learning, and of sampling in RL; of one
    that sampled, the tokens that it sampled and their FLOPs; None for one that did neither, or whose FLOPs an earlier
    version did not count."""
    if not (folder / "job.json").is_file():
        return None  # a harvest of right answers, which is no run
    rows = read_metrics(folder)
    if rows and "num_tokens" in rows[-1]:
        return _rounded(rows[-1]["num_tokens"], rows[-1]["flops"]) if "flops" in rows[-1] else None
    cost = sum((trace.cost for _, trace in read_traces(folder)), Cost())
    return _rounded(cost.generated_tokens, cost.flops) if cost.generated_tokens else None


def stage_costs(folder: Path, names: Iterable[str]) -> dict[str, StageCost]:
    """By the name of the stage, of those that sampled or trained."""
    found = {name: stage_cost(folder / name) for name in names if (folder / name).is_dir()}
    return {name: cost for name, cost in found.items() if cost is not None}


def add_costs(costs: Iterable[Mapping[str, float]]) -> StageCost:
    each = list(costs)
    return _rounded(sum(c["tokens"] for c in each), sum(c["flops"] for c in each))


def stage_cost_lines(data: Sequence[SeedData], title: Callable[[str], str]) -> list[str]:
    """A table of tokens and FLOPs by stage, means over seeds; where a seed was run before they were kept, that."""
    if not all("costs" in d for d in data):
        return [f"{UNKNOWN_FLOPS} by stage.", ""]
    rows = []
    for name in data[0]["costs"]:
        own = [d["costs"][name] for d in data if name in d["costs"]]
        rows.append([title(name), *(format_amount(float(np.mean([c[unit] for c in own]))) for unit in UNITS)])
    return [
        "Tokens that were sampled or learned from, and FLOPs, by the one meter, means over seeds:",
        *markdown_table(["stage", "tokens", "FLOPs"], rows),
    ]


UNITS = ("tokens", "flops")
UNKNOWN_FLOPS = (
    "FLOPs of these runs were not kept, and cannot be worked out from what was, which has no lengths of contexts; new"
    " runs keep them,"
)


def _rounded(tokens: float, flops: float) -> StageCost:
    return {"tokens": round(tokens), "flops": float(f"{flops:.4g}")}
