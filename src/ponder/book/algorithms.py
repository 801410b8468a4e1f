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
    listed_line,
    markdown_table,
    over_seeds,
    paint_error_bars,
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
ON, OFF = "on policy", "off policy"
MINIBATCHES = {ON: 1, OFF: 4}  # of 64 samples each
GROUP = 8
UPDATES = {"tiny": 960}  # optimiser steps of each run
OTHER_UPDATES = 128


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
        " no less accuracy; DAPO's dynamic sampling gains more from the same tokens than GRPO; and where samples are"
        " learned from in several optimiser steps, ratios and clips keep what REINFORCE and RLOO lose."
    )
    settings = (
        "One learning rate for all algorithms and both ways, on the tiny model 1e-4, chosen with GRPO on"
        " validation problems in nine tries, and elsewhere that of all recipes. Four in one seed were off policy:"
        " 71.7 % of samples right after 18 steps; 3e-4 with a warm-up of 16 optimiser steps 64.6 % after 12; 3e-4"
        " and 1e-3 with one optimiser step for 256 samples 62.9 and 27.5 % after 18. Five in another seed were on"
        " policy, after 1.39 million tokens, two thirds of a run: 1e-4 56.8 and 5e-5 58.5 %, which one measurement"
        " does not tell apart; with a warm-up of 50 steps 1e-4 55.1 and 2e-4 35.2; 3e-4, with 128 samples a step,"
        " was ended, at 35 after half. The number of optimiser steps was raised from 128 after runs in which"
        " nothing could be told apart."
        f" {TINY_START}"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        given = shared_start(run, self.name)
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "runs": {}}
        for way in MINIBATCHES:
            settings = given | way_settings(run.model, way)
            job = run.recipe_job("algorithms", **settings)
            folder = run.run_job(job, run.folder / way.replace(" ", "-"))
            curves = {name: training_curve(folder / name) for name in NAMES}
            out["runs"][way] = {n: curve | {"state bytes": state_bytes(folder / n)} for n, curve in curves.items()}
            stages = {stage.name: stage.job for stage in job.stages}
            test, grpo, verifier = stages["start-test"], stages["grpo"], stages["start-test"].task.verifier
            if way == ON:
                out["start"] = share_right(folder / "start-test", verifier.name)
                out["prefix values"] = measure_prefix_values(folder / "ppo", verifier, stages["ppo"], run)
        out["budget"] = min(curve["tokens"][-1] for curves in out["runs"].values() for curve in curves.values())
        return out | {"problems": test.limit, "lr": grpo.optimizer.lr, "updates": grpo.optimizer_steps}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, way in zip(panels, MINIBATCHES, strict=False):
                rows.extend(_paint_curves(axes, data, way))
            low = min(axes.get_ylim()[0] for axes in panels[:2])
            high = max(axes.get_ylim()[1] for axes in panels[:2])
            for axes in panels[:2]:
                axes.set_ylim(low - 0.3 * (high - low), high)  # room for the legend
            panels[1].legend(fontsize=6.5, ncols=2, loc="lower left")
            rows.extend(_paint_gains(panels[2], data))
            rows.extend(_paint_values(panels[3], data))

        return FigureWithData(make_panels(4, paint, "", size=(4.6, 3.4), columns=2), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first = data[0]
        start, budget = [d["start"] for d in data], float(np.mean([d["budget"] for d in data]))
        rows = []
        for name, title in NAMES.items():
            row = [title]
            for way in MINIBATCHES:
                row += [format_interval(right_at_budget(data, name, way), bounds=SHARE),
                        format_interval(gains_of(data, name, way), sign=True)]  # fmt: skip
            state = float(np.mean([d["runs"][ON][name]["state bytes"] for d in data]))
            flops = float(np.mean([at_budget(d, name, ON, "flops") for d in data]))
            rows.append([*row, format_amount(flops), _bytes(state)])
        heads = [f"{way}: {what}" for way in MINIBATCHES for what in ("right, %", "gain, points")]
        return [
            f"All from the same start (right in {format_interval(start, bounds=SHARE)} %), with no KL and one learning"
            f" rate, {first['lr']:g}. On policy each step has 64 samples, 8 of each problem, and one optimiser step."
            " Off policy it has 256 samples and four optimiser steps on a quarter of them each, so that three in four"
            f" are of a policy some updates old. Both have {first['updates']} optimiser steps in all. A batch's mean is"
            " over four times as many samples there, and a step's samples are of four times as many problems, which is"
            " not told apart from the samples' age. Right are"
            f" {first['problems']} held-out problems, 4 samples of each, at the tokens (prompts and samples) of the"
            f" shortest run, on the line between two measurements: {format_amount(budget)} in the mean over seeds."
            " DAPO's groups of equal rewards cost tokens, too. FLOPs are those of sampling and learning on policy by"
            " the one meter. The last column is what a checkpoint holds: weights, master weights and Adam's moments,"
            f" of a critic too. Over seeds with a 95 % interval and {listed_line(data)}; thin lines are the seeds."
            f" {SHARED_COST}",
            *markdown_table(["algorithm", *heads, "FLOPs so far", "weights and states"], rows),
            *prefix_value_lines([d["prefix values"] for d in data]),
            *self._verdict_lines(data),
        ]

    def _verdict_lines(self, data: Sequence[SeedData]) -> list[str]:
        lines = ["**Held?**", ""]
        pairs = (
            ("reinforce", "reinforce-plain", "a baseline helps REINFORCE"),
            ("grpo", "ppo", "groups are at least as good as a critic"),
            ("rloo", "ppo", "so is leave-one-out"),
            ("dapo", "grpo", "DAPO gains more than GRPO from the same tokens"),
        )
        for one, other, what in pairs:
            for way in MINIBATCHES:
                gap = _less(gains_of(data, one, way), gains_of(data, other, way))
                lines.append(
                    f"- {what}, {way}: {NAMES[one]} less {NAMES[other]} {format_interval(gap, sign=True)} points; above"
                    f" 0: **{held_above(gap)}**"
                )
        for name in ("reinforce", "rloo"):
            lost = [_less(gains_of(data, x, ON), gains_of(data, x, OFF)) for x in (name, "grpo")]
            more = _less(*lost)
            lines.append(
                f"- {NAMES[name]}, which has no ratio, loses more off policy than GRPO:"
                f" {format_interval(lost[0], sign=True)} points on policy less off policy, GRPO"
                f" {format_interval(lost[1], sign=True)}; more by {format_interval(more, sign=True)}:"
                f" **{held_above(more)}**"
            )
        ratio = [d["runs"][ON]["ppo"]["state bytes"] / d["runs"][ON]["grpo"]["state bytes"] for d in data]
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


def way_settings(model: str, way: str) -> dict[str, Any]:
    """The recipe's settings: as many optimiser steps, each on 64 samples, however many a step of RL takes."""
    parts = MINIBATCHES[way]
    steps = UPDATES.get(model, OTHER_UPDATES) // parts
    return {"minibatches": parts, "problems_per_step": 8 * parts, "group_size": GROUP, "steps": steps}


def training_curve(folder: Path) -> dict[str, Any]:
    """What a run measured while it trained: step, tokens and FLOPs so far, and accuracy on validation problems."""
    rows = [row for row in read_metrics(folder) if "eval/pass@1" in row]
    return {
        "step": [int(row["step"]) + 1 for row in rows],
        "tokens": [round(row["num_tokens"]) for row in rows],
        "flops": [float(f"{row['flops']:.4g}") for row in rows],
        "pass@1": [round(row["eval/pass@1"], 4) for row in rows],
    }


def at_budget(data: SeedData, name: str, way: str, key: str, start: float = 0.0) -> float:
    """A run's accuracy or FLOPs when it had spent the budget, between two measurements on the line of both."""
    curve = data["runs"][way][name]
    return float(np.interp(data["budget"], [0, *curve["tokens"]], [start, *curve[key]]))


def right_at_budget(data: Sequence[SeedData], name: str, way: str) -> list[float]:
    return [at_budget(d, name, way, "pass@1", d["start"]) for d in data]


def gains_of(data: Sequence[SeedData], name: str, way: str) -> list[float]:
    """What an algorithm gained within the budget, in each seed."""
    return _less(right_at_budget(data, name, way), [d["start"] for d in data])


def _less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(one, other, strict=True)]


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


def _paint_curves(axes: Any, data: Sequence[SeedData], way: str) -> list[dict[str, Any]]:
    """Gains over tokens."""
    rows: list[dict[str, Any]] = []
    for i, (name, title) in enumerate(NAMES.items()):
        own = [d["runs"][way][name] for d in data]
        x = [0.0, *(np.mean([c["tokens"] for c in own], 0) / 1000).tolist()]
        gains = [[0.0, *(100 * (right - d["start"]) for right in c["pass@1"])] for d, c in zip(data, own, strict=True)]
        y = np.mean(gains, 0).tolist()
        colour, style = COLOURS[i % len(COLOURS)], "--" if i >= len(COLOURS) else "-"
        axes.plot(x, y, marker=MARKERS[i % len(MARKERS)], ms=3, lw=1.2, label=title, color=colour, ls=style)
        paint_seeds(axes, x, gains, colour, ls=style, alpha=0.2)
        rows += [{"way": way, "algorithm": title, "tokens": 1000 * a, "gain": b / 100}
                 for a, b in zip(x, y, strict=True)]  # fmt: skip
    axes.axhline(0, color="grey", ls=":", lw=1)
    axes.set_title(f"{way}: {MINIBATCHES[way]} optimiser step{'s' * (MINIBATCHES[way] > 1)} on each step's samples",
                   fontsize=8)  # fmt: skip
    axes.set_xlabel("thousand tokens, prompts and samples")
    axes.set_ylabel("gain on held-out problems, points")
    return rows


def _paint_gains(axes: Any, data: Sequence[SeedData]) -> list[dict[str, Any]]:
    """Gains at equal tokens, on policy and off policy below each other."""
    rows: list[dict[str, Any]] = []
    for j, way in enumerate(MINIBATCHES):
        gains = [[100 * gain for gain in gains_of(data, name, way)] for name in NAMES]
        place = [-i - 0.3 * j for i in range(len(NAMES))]
        for y, own in zip(place, gains, strict=True):
            axes.plot(own, [y] * len(own), ".", color="grey", ms=2.5)
        mean = [float(np.mean(own)) for own in gains]
        axes.plot(mean, place, MARKERS[j], color=COLOURS[j], ms=4, label=way)
        paint_error_bars(axes, place, gains, horizontal=True)
        rows += [
            {"way": way, "algorithm": title, "gain": m / 100} for title, m in zip(NAMES.values(), mean, strict=True)
        ]
    axes.axvline(0, color="grey", ls=":", lw=1)
    axes.set_yticks([-i - 0.15 for i in range(len(NAMES))], list(NAMES.values()), fontsize=7)
    axes.set_xlabel("gain at equal tokens, points (95 % over seeds)")
    axes.legend(fontsize=6.5)
    return rows


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
