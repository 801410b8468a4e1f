"""Chain of thought against direct answers, with and without solved examples, on word problems."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    format_over_problems,
    held_above,
    held_over_problems,
    markdown_table,
    over_seeds,
)
from ponder.book.pruned_model import NAME, pruned_line, pruned_model
from ponder.book.shared_settings import PRUNED
from ponder.errors import UsageError
from ponder.measure import bootstrap_mean
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS
from ponder.measure.readers.run_directory import run_traces
from ponder.types import Cost, Trace

PROMPTS = {
    "zero.direct": "direct, no example",
    "zero.cot": "step by step, no example",
    "few.direct": "examples with answers alone",
    "few.cot": "examples with their working",
    "tuned.direct": "fine-tuned on answers alone",
    "tuned.cot": "fine-tuned on worked answers",
}
SHOTS = {"zero": "without examples", "few": "with examples", "tuned": "fine-tuned"}
SETS = {"gsm8k": "GSM8K", "svamp": "SVAMP", "multiarith": "MultiArith", "suite": "four-category suite"}


TRIED = [
    "",
    "A first look (256 problems, 8 samples) read answers in the requested form alone: less than 1 % was right on every"
    " set of word problems, because most answers gave a number in a sentence. What was read was changed, no other"
    " setting. How many of the right numbers below are right by chance was not measured.",
]


class ChainOfThought:
    name = "chain-of-thought"
    title = "Chain of thought against direct answers"
    source = (
        "Wei et al. 2022, arXiv:2201.11903 (examples with their working; it helps large models, and small ones not or"
        ' little); Kojima et al. 2022, arXiv:2205.11916 ("Let\'s think step by step", without examples); Wang et al.'
        " 2022, arXiv:2203.11171 (a vote of several chains); Cobbe et al. 2021, arXiv:2110.14168 (a model fine-tuned"
        " on answers without their working: 5.2 % where it has 20.6 % with it)"
    )
    claim = (
        "Asked for its working, with or without examples, a model solves more word problems than asked for the answer"
        " alone, and a vote of several chains more again; small models gain little. Fine-tuned on worked answers a"
        " model solves more than fine-tuned on answers alone."
    )
    settings = (
        "No setting was chosen by results: prompts, examples, temperature and the 100 steps of fine-tuning at 2e-4 had"
        f" one value in the kept runs; sizes were set by what the GPU does. {PRUNED}"
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
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "cells": measure_cells(job, folder)}
        tuned = next(stage.job for stage in job.stages if stage.name.startswith("sft-"))
        out["training problems"] = len(tuned.data.train)
        if (pruned := pruned_model(run)) is not None:
            job = run.build_recipe("chain_of_thought", model=pruned, seed=run.seed)
            folder = run.run_job(job, run.folder / "chain_of_thought-pruned")
            out |= {"small": {"cells": measure_cells(job, folder)}, "small model": NAME}
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []
        sizes = _sizes(list(seeds.values()))

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, (size, data) in zip(panels, sizes, strict=True):
                paint_size(axes, size, data)
            top = max(axes.get_ylim()[1] for axes in panels)
            for axes in panels:  # one scale, so that the sizes compare by eye
                axes.set_ylim(0, top)

        def paint_size(axes: Any, size: str, data: Sequence[SeedData]) -> None:
            bars = [sum(f"{name}.{prompt}" in data[0]["cells"] for prompt in PROMPTS) for name in SETS]
            for i, (prompt, title) in enumerate(PROMPTS.items()):
                there = [
                    (k, f"{name}.{prompt}") for k, name in enumerate(SETS) if f"{name}.{prompt}" in data[0]["cells"]
                ]
                x = [k + 0.14 * (i - (bars[k] - 1) / 2) for k, _ in there]
                for key in ("right", "vote") if there else ():
                    points = [_interval([d["cells"][cell] for d in data], key) for _, cell in there]
                    y = [100 * p[0] for p in points]
                    if key == "vote":
                        axes.plot(x, y, "D", ms=4, mfc="white", mec="black", mew=0.8, zorder=3)
                    else:
                        error = [
                            [max(0.0, sign * 100 * (p[j] - p[0])) for p in points] for j, sign in ((1, -1), (2, 1))
                        ]
                        axes.bar(x, y, 0.12, color=COLOURS[i], label=title)
                        axes.errorbar(x, y, error, fmt="none", ecolor="black", lw=0.8)
                    rows.extend(
                        {
                            "model": size,
                            "set": SETS[cell.partition(".")[0]],
                            "prompt": title,
                            "measure": key,
                            "right": v / 100,
                        }
                        for (_, cell), v in zip(there, y, strict=True)
                    )
            axes.set_xticks(range(len(SETS)), list(SETS.values()))
            axes.set_ylabel("right, %")
            if len(sizes) > 1:
                axes.set_title(size, fontsize=9)
            axes.legend(fontsize=7, title="diamonds: the vote of all samples", title_fontsize=7)

        return FigureWithData(make_panels(len(sizes), paint, "", size=(7.6, 3.8)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first, sizes = data[0]["cells"], _sizes(data)
        rows = []
        for size, name, prompt in itertools.product(range(len(sizes)), SETS, PROMPTS):
            label, every = sizes[size]
            cell = f"{name}.{prompt}"
            if cell in every[0]["cells"]:
                own = [d["cells"][cell] for d in every]
                rows.append([
                    *([label] if len(sizes) > 1 else []), SETS[name], PROMPTS[prompt],
                    *(_format_cells(own, key) for key in ("right", "vote")),
                    f"{100 * float(np.mean([c['states nothing'] for c in own])):.0f}",
                    f"{float(np.mean([c['length'] for c in own])):.0f}",
                    format_amount(float(np.mean([c["flops"] for c in own]))),
                ])  # fmt: skip
        n, problems = first["gsm8k.zero.cot"]["samples"], {k: first[f"{k}.zero.cot"]["problems"] for k in SETS}
        told = ", ".join(f"{SETS[k]} {count}" for k, count in problems.items())
        head = [
            *(["model"] if len(sizes) > 1 else []),
            "set",
            "asked",
            "one sample, %",
            f"vote of {n}, %",
            "states nothing, %",
            "tokens",
            "FLOPs",
        ]
        total = sum(c["tokens"] for _, every in sizes for d in every for c in d["cells"].values())
        examples = "; the suite has 8 of its own, written by hand." if "suite.few.cot" in first else "."
        return [
            f"Held-out problems ({told}), {n} samples of each at temperature 0.7. Examples are 8 of GSM8K's training"
            f" problems{examples}{pruned_line() if len(sizes) > 1 else ''} Fine-tuning is on"
            f" {data[0]['training problems']:,} of GSM8K's training problems, and the other"
            " sets are asked of the same model."
            " Of a text that gives no answer in a form that the verifier reads, the last number counts, as in the"
            " papers; the suite's own verifiers read forms alone. Tokens are the mean length of an answer, FLOPs those"
            f" of the cell by the one meter; {format_amount(total)} tokens were sampled in all."
            + (
                " Over seeds with a 95 % interval that stays within 0 and 100."
                if len(data) > 1
                else " One pass: 95 % intervals over problems, by bootstrap; differences are paired by problem."
            ),
            *(TRIED if data[0].get("model") == "smollm2" else []),
            *markdown_table(head, rows),
            "**Held?**",
            "",
            *(
                line
                for label, every in sizes
                for line in self._verdict_lines(every, f"{label}, " if len(sizes) > 1 else "")
            ),
            *(_size_line(data, name) for name in SETS if len(sizes) > 1),
            "",
        ]

    def _verdict_lines(self, data: Sequence[SeedData], label: str) -> list[str]:
        lines = []
        for name, words in SETS.items():
            title = label + words
            parts = []
            for shots, told in SHOTS.items():
                cells = [f"{name}.{shots}.{style}" for style in ("cot", "direct")]
                if cells[0] in data[0]["cells"]:
                    pairs = [[(d["cells"][cell], "right") for cell in cells] for d in data]
                    parts.append(f"{told} {_format_gap(pairs, 'points, above 0: ')}")
            lines.append(f"- {title}: working less direct, " + "; ".join(parts))
            votes = []
            for shots, told in SHOTS.items():
                cell = f"{name}.{shots}.cot"
                if cell in data[0]["cells"]:
                    both = [[(d["cells"][cell], key) for key in ("vote", "right")] for d in data]
                    votes.append(f"{told} {_format_gap(both, 'points, above 0: ')}")
            lines.append(f"- {title}: the vote of all chains less one chain, " + "; ".join(votes))
        return lines


def measure_cells(job: Any, folder: Path) -> dict[str, Any]:
    """The cells of a run of the recipe, by set and prompt."""
    cells: dict[str, Any] = {}
    for stage in job.stages:
        if not stage.name.startswith("sft-"):
            traces = [trace for _, trace in run_traces(folder / stage.name)]
            for task in stage.job.task.tasks:
                own = [trace for trace in traces if trace.problem.tags["task"] == task.name]
                found = measure_cell(own, task.verifier, stage.job.task.verifier.name)
                cells[f"{task.name}.{stage.name.removesuffix('.suite')}"] = found
    return cells


def _sizes(data: Sequence[SeedData]) -> list[tuple[str, Sequence[SeedData]]]:
    """The model, and the smaller one where every seed has it."""
    both: list[tuple[str, Sequence[SeedData]]] = [("the model", data)]
    return (
        [*both, (str(data[0]["small model"]), [d["small"] for d in data])] if all("small" in d for d in data) else both
    )


def _size_line(data: Sequence[SeedData], name: str) -> str:
    """What working is worth to the model, less what it is worth to the smaller one."""
    parts = []
    for shots, told in SHOTS.items():
        cells = [f"{name}.{shots}.{style}" for style in ("cot", "direct")]
        if not all(cell in own["cells"] for cell in cells for own in (data[0], data[0]["small"])):
            continue
        if len(data) == 1:
            terms = [_by_problem(own["cells"][cell], "right") for own in (data[0], data[0]["small"]) for cell in cells]
            each = [a - b - (c - d) for a, b, c, d in zip(*terms, strict=True)]
            found = f"{format_over_problems(each, sign=True)} points, above 0: **{held_over_problems(each)}**"
        else:
            gains = [
                [own["cells"][cells[0]]["right"] - own["cells"][cells[1]]["right"] for own in (d, d["small"])]
                for d in data
            ]
            more = [of_model - of_smaller for of_model, of_smaller in gains]
            found = f"{format_interval(more, sign=True)} points, above 0: **{held_above(more)}**"
        parts.append(f"{told} {found}")
    return f"- {SETS[name]}: what working gives the model less what it gives the smaller one, " + "; ".join(parts)


def _by_problem(cell: Mapping[str, Any], key: str) -> list[float]:
    """The share of right samples of each problem, or the verdict of its vote."""
    return [count / (cell["samples"] if key == "right" else 1) for count in cell[f"{key} by problem"]]


def _interval(cells: Sequence[Mapping[str, Any]], key: str) -> tuple[float, float, float]:
    """The mean and its interval, over seeds or over the problems of one."""
    if len(cells) > 1:
        return over_seeds([c[key] for c in cells], SHARE)
    found = bootstrap_mean(_by_problem(cells[0], key))
    return found.mean, found.low, found.high


def _format_cells(cells: Sequence[Mapping[str, Any]], key: str) -> str:
    if len(cells) == 1:
        return format_over_problems(_by_problem(cells[0], key))
    return format_interval([c[key] for c in cells], bounds=SHARE)


def _format_gap(pairs: Sequence[Sequence[tuple[Mapping[str, Any], str]]], unit: str = "") -> str:
    """What one measure of a cell has above another, over seeds, or over the problems of one."""
    if len(pairs) == 1:
        one, other = (_by_problem(cell, key) for cell, key in pairs[0])
        each = [x - y for x, y in zip(one, other, strict=True)]
        return f"{format_over_problems(each, sign=True)} {unit}**{held_over_problems(each)}**"
    gap = [one[0][one[1]] - other[0][other[1]] for one, other in pairs]
    return f"{format_interval(gap, sign=True)} {unit}**{held_above(gap)}**"


def measure_cell(traces: Sequence[Trace], verifier: Any, score: str | None = None) -> dict[str, Any]:
    """Of one set and one prompt: the share of right samples, of right votes (ties: the first answer), and the cost.
    Verdicts stand under the name `score`, or the verifier's own."""
    score = score or verifier.name
    right: list[float] = []
    counts: list[int] = []
    votes: list[float] = []
    lengths: list[int] = []
    nothing = 0
    for trace in sorted(traces, key=lambda t: t.problem.id):
        leaves = trace.answers()
        verdicts = [float(trace.score(i, score) or 0.0) for i in leaves]
        answers = [verifier.extract_answer(trace.text(i)) for i in leaves]
        right += verdicts
        counts.append(round(sum(verdicts)))
        lengths += [len(trace.steps[i].token_ids) for i in leaves]
        nothing += sum(a is None for a in answers)
        votes.append(vote_verdict(answers, verdicts))
    cost = sum((t.cost for t in traces), Cost())
    return {
        "problems": len(traces), "samples": len(right) // max(1, len(traces)), "right": round(float(np.mean(right)), 5),
        "vote": round(float(np.mean(votes)), 5), "states nothing": round(nothing / max(1, len(right)), 5),
        "length": round(float(np.mean(lengths)), 2), "tokens": cost.generated_tokens,
        "flops": float(f"{cost.flops:.4g}"), "right by problem": counts, "vote by problem": [round(v) for v in votes],
    }  # fmt: skip


def vote_verdict(answers: Sequence[Any], verdicts: Sequence[float]) -> float:
    """The verdict of the most frequent answer; of equally frequent ones, of the first. Nothing stated is no vote."""
    counts = Counter(a for a in answers if a is not None)
    if not counts:
        return 0.0
    winner = counts.most_common(1)[0][0]
    return verdicts[answers.index(winner)]


FIGURE = ChainOfThought()
