"""Chain of thought against direct answers, with and without solved examples, on word problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ponder.book.figure import SHARE, FigureRun, SeedData, format_interval, held_above, markdown_table, over_seeds
from ponder.errors import UsageError
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS
from ponder.runs import read_traces
from ponder.types import Cost, Trace

PROMPTS = {
    "zero.direct": "direct, no example",
    "zero.cot": "step by step, no example",
    "few.direct": "examples with answers alone",
    "few.cot": "examples with their working",
}
SETS = {"gsm8k": "GSM8K", "svamp": "SVAMP", "multiarith": "MultiArith", "suite": "four-category suite"}


class ChainOfThought:
    name = "chain-of-thought"
    title = "Chain of thought against direct answers"
    source = (
        "Wei et al. 2022, arXiv:2201.11903 (examples with their working; it helps large models, and small ones not or"
        ' little); Kojima et al. 2022, arXiv:2205.11916 ("Let\'s think step by step", without examples); Wang et al.'
        " 2022, arXiv:2203.11171 (a vote of several chains)"
    )
    claim = (
        "Asked for its working, with or without examples, a model solves more word problems than asked for the answer"
        " alone, and a vote of several chains more again; small models gain little."
    )
    models = ("smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "tiny" or run.task is not None:
            raise UsageError(
                "this figure asks word problems of its own sets in words: give --on smollm2 or another language model,"
                " and no --task"
            )
        job = run.build_recipe("chain_of_thought", model=run.model, seed=run.seed)
        folder = run.run_job(job, run.folder / "chain_of_thought")
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "cells": {}}
        for stage in job.stages:
            verifier = stage.job.task.verifier
            out["cells"][stage.name] = measure_cell([t for _, t in read_traces(folder / stage.name)], verifier)
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            (axes,) = panels
            for i, (prompt, title) in enumerate(PROMPTS.items()):
                for key, alpha in (("vote", 0.45), ("right", 1.0)):
                    there = [
                        (k, f"{name}.{prompt}") for k, name in enumerate(SETS) if f"{name}.{prompt}" in data[0]["cells"]
                    ]
                    x = [k + 0.2 * (i - 1.5) for k, _ in there]
                    points = [over_seeds([d["cells"][cell][key] for d in data], SHARE) for _, cell in there]
                    y = [100 * p[0] for p in points]
                    label = f"{title}{', vote of all' * (key == 'vote')}"
                    axes.bar(x, y, 0.18 if key == "right" else 0.19, color=COLOURS[i], alpha=alpha, label=label)
                    if key == "right" and len(data) > 1:
                        error = [
                            [max(0.0, 100 * (p[0] - p[1])) for p in points],
                            [max(0.0, 100 * (p[2] - p[0])) for p in points],
                        ]
                        axes.errorbar(x, y, error, fmt="none", ecolor="black", lw=0.8)
                    rows.extend(
                        {"set": SETS[cell.partition(".")[0]], "prompt": title, "measure": key, "right": v / 100}
                        for (_, cell), v in zip(there, y, strict=True)
                    )
            axes.set_xticks(range(len(SETS)), list(SETS.values()))
            axes.set_ylabel("right, %")
            axes.legend(fontsize=6)

        return FigureWithData(make_panels(1, paint, "", size=(6.4, 3.8)), tuple(rows))  # fmt: skip

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first = data[0]["cells"]
        rows = []
        for name, title in SETS.items():
            for prompt, asked in PROMPTS.items():
                cell = f"{name}.{prompt}"
                if cell not in first:
                    continue
                own = [d["cells"][cell] for d in data]
                rows.append([
                    title, asked, *(format_interval([c[key] for c in own], bounds=SHARE) for key in ("right", "vote")),
                    f"{100 * float(np.mean([c['states nothing'] for c in own])):.0f}",
                    f"{float(np.mean([c['length'] for c in own])):.0f}",
                    format_amount(float(np.mean([c["flops"] for c in own]))),
                ])  # fmt: skip
        n, problems = first["gsm8k.zero.cot"]["samples"], {k: first[f"{k}.zero.cot"]["problems"] for k in SETS}
        told = ", ".join(f"{SETS[k]} {count}" for k, count in problems.items())
        head = ["set", "asked", "one sample, %", f"vote of {n}, %", "states nothing, %", "tokens", "FLOPs"]
        total = sum(c["tokens"] for d in data for c in d["cells"].values())
        return [
            f"Held-out problems ({told}), {n} samples of each at temperature 0.7. Examples are 8 of GSM8K's training"
            " problems, drawn anew for each seed. No setting was chosen by results. Tokens are the mean length of an"
            f" answer, FLOPs those of the cell by the one meter; {format_amount(total)} tokens were sampled in all."
            " Over seeds with a 95 % interval that stays within 0 and 100.",
            *markdown_table(head, rows),
            *self._verdict_lines(data),
        ]

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        for name, title in SETS.items():
            parts = []
            for shots, told in (("zero", "without examples"), ("few", "with examples")):
                cells = [f"{name}.{shots}.{style}" for style in ("cot", "direct")]
                if cells[0] not in data[0]["cells"]:
                    continue
                gap = [d["cells"][cells[0]]["right"] - d["cells"][cells[1]]["right"] for d in data]
                parts.append(f"{told} {format_interval(gap, sign=True)} points, above 0: **{held_above(gap)}**")
            best = [best_chains(d["cells"], name) for d in data]
            vote = [d["cells"][c]["vote"] - d["cells"][c]["right"] for d, c in zip(data, best, strict=True)]
            parts.append(
                f"the vote of chains less one chain {format_interval(vote, sign=True)}: **{held_above(vote)}**"
            )
            lines.append(f"- {title}: working less direct, " + "; ".join(parts))
        return [*lines, ""]


def best_chains(cells: Mapping[str, Mapping[str, float]], name: str) -> str:
    """The prompt for chains that has the most right samples of a set."""
    return max((c for c in cells if c.startswith(f"{name}.") and c.endswith("cot")), key=lambda c: cells[c]["right"])


def measure_cell(traces: Sequence[Trace], verifier: Any) -> dict[str, Any]:
    """Of one set and one prompt: the share of right samples, of right votes (ties: the first answer), and the cost."""
    right: list[float] = []
    votes: list[float] = []
    lengths: list[int] = []
    nothing = 0
    for trace in traces:
        leaves = trace.answers()
        verdicts = [float(trace.score(i, verifier.name) or 0.0) for i in leaves]
        answers = [verifier.extract_answer(trace.text(i)) for i in leaves]
        right += verdicts
        lengths += [len(trace.steps[i].token_ids) for i in leaves]
        nothing += sum(a is None for a in answers)
        votes.append(vote_verdict(answers, verdicts))
    cost = sum((t.cost for t in traces), Cost())
    return {
        "problems": len(traces), "samples": len(right) // max(1, len(traces)), "right": round(float(np.mean(right)), 5),
        "vote": round(float(np.mean(votes)), 5), "states nothing": round(nothing / max(1, len(right)), 5),
        "length": round(float(np.mean(lengths)), 2), "tokens": cost.generated_tokens,
        "flops": float(f"{cost.flops:.4g}"),
    }  # fmt: skip


def vote_verdict(answers: Sequence[Any], verdicts: Sequence[float]) -> float:
    """The verdict of the most frequent answer; of equally frequent ones, of the first. Nothing stated is no vote."""
    counts = Counter(a for a in answers if a is not None)
    if not counts:
        return 0.0
    winner = counts.most_common(1)[0][0]
    return verdicts[answers.index(winner)]


FIGURE = ChainOfThought()
