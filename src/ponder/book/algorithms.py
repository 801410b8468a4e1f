"""Policy-gradient algorithms side by side: one start, one task, one learning rate, equal tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.prefix_values import measure_prefix_values, prefix_value_lines
from ponder.book.shared_settings import TINY_START
from ponder.book.training_samples import SHARED_COST, shared_start
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_metrics, read_traces
from ponder.types import Trace

NAMES: dict[str, str] = {
    "reinforce-plain": "REINFORCE, no baseline",
    "reinforce": "REINFORCE, batch mean",
    "rloo": "RLOO",
    "grpo": "GRPO",
    "dr-grpo": "Dr. GRPO",
    "dapo": "DAPO",
    "gspo": "GSPO",
    "ppo": "PPO",
}
TINY_RATE = (
    " (chosen with GRPO on validation problems in one seed, of four tries: 71.7 % of samples right after 18 steps; 3e-4"
    " with a warm-up of 16 optimiser steps 64.6 % after 12 steps; 3e-4 and 1e-3 with one optimiser step for each step's"
    " samples 62.9 and 27.5 % after 18)"
)


class Algorithms:
    name = "algorithms"
    title = "Policy-gradient algorithms at equal tokens"
    source = (
        "Williams 1992 (REINFORCE); Schulman et al. 2017, arXiv:1707.06347 (PPO); Ahmadian et al. 2024,"
        " arXiv:2402.14740 (RLOO: a critic is not needed); Shao et al. 2024, arXiv:2402.03300 (GRPO: as good as PPO"
        " with less memory); Liu et al. 2025, arXiv:2503.20783 (Dr."
        " GRPO); Yu et al. 2025, arXiv:2503.14476 (DAPO); Zheng et al. 2025, arXiv:2507.18071 (GSPO)"
    )
    claim = (
        "With a baseline REINFORCE learns faster than without; groups do without a critic, at half of PPO's memory and"
        " no less accuracy; DAPO's dynamic sampling gains more from the same tokens than GRPO."
    )
    settings = (
        "One learning rate for all algorithms, chosen with GRPO on validation problems in one seed, of four tries"
        f" (below). {TINY_START}"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        given = shared_start(run, self.name)
        folder = run.run_recipe("algorithms", **given)
        stages = {stage.name: stage.job for stage in run.recipe_job("algorithms", **given).stages}
        test = stages["start-test"]
        verifier = test.task.verifier
        runs = {name: training_curve(folder / name) for name in NAMES}
        budget = min(curve["tokens"][-1] for curve in runs.values())
        job = stages["grpo"]
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "budget": budget, "problems": test.limit}
        out |= {"lr": job.optimizer.lr, "samples a step": job.problems_per_step * job.group_size}
        out["start"] = share_right(folder / "start-test", verifier.name)
        for name, curve in runs.items():
            curve["state bytes"] = state_bytes(folder / name)
        out["runs"] = runs
        out["prefix values"] = measure_prefix_values(folder / "ppo", verifier, stages["ppo"], run)
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            for i, (name, title) in enumerate(NAMES.items()):
                own = [d["runs"][name] for d in data]
                x = [0.0, *np.mean([c["tokens"] for c in own], 0).tolist()]
                each = [[0.0, *(right - d["start"] for right in d["runs"][name]["pass@1"])] for d in data]
                y = [100 * over_seeds([gain[k] for gain in each])[0] for k in range(len(x))]
                style = {"color": COLOURS[i % len(COLOURS)], "ls": "--" if i >= len(COLOURS) else "-"}
                thousands = [tokens / 1000 for tokens in x]
                axes.plot(thousands, y, marker=MARKERS[i % len(MARKERS)], ms=3, lw=1.2, label=title, **style)
                for c, gains in zip(own, each, strict=True) if len(data) > 1 else ():
                    place = [0.0, *(tokens / 1000 for tokens in c["tokens"])]
                    axes.plot(place, [100 * gain for gain in gains], lw=0.6, alpha=0.4, **style)
                rows.extend({"algorithm": title, "tokens": a, "gain": b / 100} for a, b in zip(x, y, strict=True))
            axes.axhline(0, color="grey", ls=":", lw=1)
            axes.axvline(np.mean([d["budget"] for d in data]) / 1000, ymin=0.26, color="grey", ls=":", lw=1)
            axes.set_xlabel("thousand tokens, prompts and samples")
            axes.set_ylabel("gain on held-out problems, points")
            low, high = axes.get_ylim()
            axes.set_ylim(low - 0.32 * (high - low), high)  # room for the legend
            axes.legend(fontsize=6, ncols=2, loc="lower left")
            axes = panels[1]
            for i, (name, title) in enumerate(NAMES.items()):
                gains = [100 * gain for gain in gains_of(data, name)]
                mean, low, high = over_seeds(gains)
                error = [[mean - low], [high - mean]] if len(gains) > 1 else None
                axes.errorbar([mean], [-i], xerr=error, fmt=MARKERS[i % len(MARKERS)], ms=4,
                              color=COLOURS[i % len(COLOURS)], lw=1)  # fmt: skip
                axes.plot(gains, [-i] * len(gains), ".", color="grey", ms=3)
                rows.append({"algorithm": title, "gain": mean / 100})
            axes.axvline(0, color="grey", ls=":", lw=1)
            axes.set_yticks([-i for i in range(len(NAMES))], list(NAMES.values()), fontsize=7)
            axes.set_xlabel("gain at equal tokens, points (95 % over seeds)")
            rows.extend(_paint_values(panels[2], data))

        return FigureWithData(make_panels(3, paint, "", size=(4.4, 3.8)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first = data[0]
        rows = []
        start = [d["start"] for d in data]
        for name, title in NAMES.items():
            own = [d["runs"][name] for d in data]
            state = float(np.mean([c["state bytes"] for c in own]))
            flops = float(np.mean([at_budget(d, name, "flops") for d in data]))
            step = ", ".join(f"{at_budget(d, name, 'step'):.0f}" for d in data)
            right = [at_budget(d, name, "pass@1", d["start"]) for d in data]
            rows.append([title, format_interval(right, bounds=SHARE), format_interval(gains_of(data, name), sign=True),
                         step, format_amount(flops), _bytes(state)])  # fmt: skip
        head = ["algorithm", "right, %", "gain, points", "at step", "FLOPs so far", "weights and states"]
        return [
            f"All from the same start (right in {format_interval(start, bounds=SHARE)} %), {first['samples a step']}"
            " samples a step, 8 of each problem, four optimiser steps on them, no KL, and one learning rate,"
            f" {first['lr']:g}{TINY_RATE if first['model'] == 'tiny' else ''}. Right are"
            f" {first['problems']} held-out problems, 4 samples of each, at the tokens (prompts and samples) of"
            " the shortest run, on the line between two measurements:"
            f" {', '.join(format_amount(d['budget']) for d in data)}. DAPO's groups of equal rewards cost tokens, too."
            " FLOPs are those of sampling and learning by the one meter. The last column is what a checkpoint holds:"
            " weights, master weights and Adam's moments, of a critic too. Over seeds with a 95 % interval;"
            f" thin lines are the seeds. {SHARED_COST}",
            *markdown_table(head, rows),
            *prefix_value_lines([d["prefix values"] for d in data]),
            *self._verdict_lines(data),
        ]

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        def less(one: str, other: str) -> list[float]:
            return [x - y for x, y in zip(gains_of(data, one), gains_of(data, other), strict=True)]

        ratio = [d["runs"]["ppo"]["state bytes"] / d["runs"]["grpo"]["state bytes"] for d in data]
        pairs = (
            ("reinforce", "reinforce-plain", "a baseline helps REINFORCE"),
            ("grpo", "ppo", "groups are at least as good as a critic"),
            ("rloo", "ppo", "so is leave-one-out"),
            ("dapo", "grpo", "DAPO gains more than GRPO from the same tokens"),
        )
        lines = ["**Held?**", ""]
        for one, other, what in pairs:
            gap = less(one, other)
            lines.append(
                f"- {what}: {NAMES[one]} less {NAMES[other]} {format_interval(gap, sign=True)} points; above 0: "
                f"**{held_above(gap)}**"
            )
        lines.append(
            f"- PPO keeps {format_interval(ratio, 1, 2)} times what GRPO keeps in weights and optimiser states; twice:"
            f" **{'yes' if all(abs(r - 2) < 0.1 for r in ratio) else 'no'}**"
        )
        values = [d["prefix values"] for d in data]
        if not all(v["auroc"] for v in values):  # of no use where all answers of the last step are right, or all wrong
            return [*lines, ""]
        last = [len(v["auroc"]) - 1 for v in values]
        apart = {
            key: [v["right"][key][k] - v["wrong"][key][k] for v, k in zip(values, last, strict=True)]
            for key in ("truth", "value")
        }
        lines.append(
            "- after the last of these lines the share of right continuations is"
            f" {format_interval(apart['truth'], 1, 2)} higher for answers that end right:"
            f" **{held_above(apart['truth'])}**; the critic's value is {format_interval(apart['value'], 1, 3)} higher:"
            f" **{held_above(apart['value'])}**"
        )
        return [*lines, ""]


def training_curve(folder: Path) -> dict[str, Any]:
    """What a run measured while it trained: step, tokens and FLOPs so far, and accuracy on validation problems."""
    rows = [row for row in read_metrics(folder) if "eval/pass@1" in row]
    return {
        "step": [int(row["step"]) + 1 for row in rows],
        "tokens": [round(row["num_tokens"]) for row in rows],
        "flops": [float(f"{row['flops']:.4g}") for row in rows],
        "pass@1": [round(row["eval/pass@1"], 4) for row in rows],
    }


def at_budget(data: SeedData, name: str, key: str, start: float = 0.0) -> float:
    """A run's accuracy, FLOPs or steps when it had spent the budget, between two measurements on the line of both."""
    curve = data["runs"][name]
    return float(np.interp(data["budget"], [0, *curve["tokens"]], [start, *curve[key]]))


def gains_of(data: Sequence[SeedData], name: str) -> list[float]:
    """What an algorithm gained within the budget, in each seed."""
    return [at_budget(d, name, "pass@1", d["start"]) - d["start"] for d in data]


def share_right(folder: Path, scorer: str) -> float:
    """The share of right answers of a run."""

    def right(trace: Trace) -> list[float]:
        return [float(trace.score(i, scorer) or 0.0) for i in trace.answers()]

    return round(float(np.mean([x for _, trace in read_traces(folder) for x in right(trace)])), 5)


def state_bytes(folder: Path) -> int:
    """What the newest checkpoint of a run holds: the weights and states of all its learners."""
    newest = max((folder / "checkpoints").glob("step-*"))
    return sum(path.stat().st_size for path in newest.rglob("*.safetensors"))


def _bytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def _paint_values(axes: Any, data: Sequence[SeedData]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i, kind in enumerate(("right", "wrong")):
        for j, (key, title, style) in enumerate((("value", "critic", "-"), ("truth", "share of continuations", ":"))):
            own = [d["prefix values"][kind][key] for d in data]
            length = min(map(len, own))
            y = [over_seeds([o[k] for o in own])[0] for k in range(length)]
            x = list(range(length))
            axes.plot(x, y, color=COLOURS[i], ls=style, marker=MARKERS[j], ms=3, label=f"{kind} in the end: {title}")
            paint_seeds(axes, x, [o[:length] for o in own], COLOURS[i], ls=style)
            both = zip(x, y, strict=True)
            rows.extend({"answers": kind, "line": title, "lines": int(a), "value": b} for a, b in both)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xticks(range(1 + max(row["lines"] for row in rows)))
    axes.set_xlabel("lines written")
    axes.set_ylabel("value of the prefix")
    axes.legend(fontsize=6)
    return rows


FIGURE = Algorithms()
