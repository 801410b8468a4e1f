"""What each effort level costs, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    POSITIVE,
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.shared_settings import SMOLLM2_START, TINY_START
from ponder.book.stated_answer import stated_answer
from ponder.book.word_problem_start import start_line, word_problem_start
from ponder.measure import bootstrap_mean
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels, set_cost_axis
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.measure.readers.run_directory import run_traces
from ponder.reason.effort import EFFORTS

PREFIX = "effort-"
SAME_POINTS = 0.5  # per cent: points of a picture that lie on each other
LONGER = 1.1  # times the tokens of `none`: with fewer, `low` is no longer, and `none` has the working, too


class EffortLevels:
    name = "effort"
    title = "Effort levels against accuracy and cost"
    source = (
        "OpenAI 2024 and 2025 (o1's and o3's reasoning effort: more thinking, more right answers, at more cost);"
        " Wang et al. 2022, arXiv:2203.11171 (a vote of chains gains most from the first few)"
    )
    claim = (
        "A higher effort level is right more often; working it out beats the answer alone, a vote of 8 beats one chain,"
        " and from there each doubling of the cost gains less than the one before."
    )
    settings = (
        "No setting was chosen by results of this figure: the levels are those of `--effort`, at one temperature."
        f" {TINY_START}. {SMOLLM2_START}. That answers to sums have at most 40 tokens, as in all recipes, was added"
        " before the kept runs. The tiny model has ten seeds, the first three of which left every step unclear"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        start = word_problem_start(run)
        folder = run.run_recipe("effort", **start)
        stages = [s for s in run.recipe_job("effort", **start).stages if s.name.startswith(PREFIX)]
        task = stages[0].job.task
        levels = {s.name.removeprefix(PREFIX): measure_level(folder / s.name, s.job.task.verifier) for s in stages}
        temperature = stages[-1].job.strategy.sampling.temperature
        return {
            "model": run.model, "task": task.name, "seed": run.seed, "temperature": temperature, "levels": levels,
            "own start": start_line(run.model, run.task) if start else "",
        }  # fmt: skip

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, key, title in zip(panels, ("tokens", "flops"), ("tokens sampled", "FLOPs"), strict=True):
                names = list(data[0]["levels"])
                x = [float(np.mean([d["levels"][name][key] for d in data])) for name in names]
                points = [_interval(data, name) for name in names]
                y = [100 * p[0] for p in points]
                axes.plot(x, y, color=COLOURS[0], marker=MARKERS[0], ms=5, lw=1.5)
                each = [[100 * d["levels"][name]["mean"] for name in names] for d in data]
                paint_seeds(axes, x, each, COLOURS[0], marker=MARKERS[0], ms=2.5)
                set_cost_axis(axes, min(x), 1.2 * max(x), f"{title} for a problem")
                axes.set_ylim(0, min(104.0, 1.2 * max(map(max, each))))
                for a, b, name, below in place_labels(x, y, names):
                    axes.annotate(name, (a, b), (3, -14 if below else 8), textcoords="offset points", fontsize=7)
                rows.extend(
                    {"cost": key, "level": name, "x": a, "right": p[0], "low": p[1], "high": p[2]}
                    for name, a, p in zip(names, x, points, strict=True)
                )
                axes.set_ylabel("right, %")

        return FigureWithData(make_panels(2, paint, "", size=(4.8, 3.4)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        first, names = data[0], list(data[0]["levels"])
        rows = []
        for name in names:
            own = [d["levels"][name] for d in data]
            level = EFFORTS[name]
            rows.append([
                name, f"{'vote of ' * (level.answers > 1)}{level.answers if level.answers > 1 else level.strategy}",
                _right_cell(data, name), format_interval([m["tokens"] for m in own], 1, 0, bounds=POSITIVE),
                format_amount(float(np.mean([m["flops"] for m in own]))),
                format_interval([m["none"] for m in own], bounds=SHARE),
            ])  # fmt: skip
        head = ["level", "strategy", "right, %", "tokens sampled", "FLOPs", "gives no answer, %"]
        over = "seeds" if len(data) > 1 else "problems"
        missing = [name for name in EFFORTS if name not in names]
        note = f" There is no level {', '.join(missing)}: the model reads digits alone." if missing else ""
        return [
            f"{len(first['levels'][names[0]]['right'])} held-out problems of {first['task']}, every level a run of its"
            f" own, at temperature {first['temperature']:g}. Tokens and FLOPs are those of one problem, by the one"
            f" meter. Over {over} with a 95 % interval; thin lines are the seeds. Where no answer is"
            f" longer than 256 tokens, `minimal` and `low` are the same.{first['own start']}{note}",
            *markdown_table(head, rows),
            *self._held_lines(data, names),
        ]

    def _held_lines(self, data: Sequence[SeedData], names: Sequence[str]) -> list[str]:
        lines = ["**Held?**", ""]
        pairs = [("none", "low", "working it out, against the answer alone")] if "none" in names else []
        pairs += [("low", "medium", "a vote of 8, against one chain"), ("medium", "high", "32, against 8"),
                  ("high", "max", "64, against 32")]  # fmt: skip
        for a, b, words in pairs:
            more = [d["levels"][b]["mean"] - d["levels"][a]["mean"] for d in data]
            cost = float(np.mean([d["levels"][b]["tokens"] / d["levels"][a]["tokens"] for d in data]))
            if a == "none" and cost < LONGER:
                lines.append(f"- {words}: **not measured**: asked for the answer alone (`none`), the model writes its"
                             f" working as well (`low` has {cost:.1f} times the tokens)")  # fmt: skip
                continue
            lines.append(f"- {words} (`{b}`, `{a}`): {format_interval(more, sign=True)} points for {cost:.1f} times the"
                         f" tokens; more right: **{held_above(more)}**")  # fmt: skip
        slopes = [[points_per_doubling(d, a, b) for d in data] for a, b in (("low", "medium"), ("medium", "max"))]
        fewer = [x - y for x, y in zip(*slopes, strict=True)]
        lines.append(
            f"- points for each doubling of the tokens: {format_interval(slopes[0], sign=True)} from `low` to `medium`,"
            f" {format_interval(slopes[1], sign=True)} from there to `max`; less: **{held_above(fewer)}**"
        )
        return [*lines, ""]


def measure_level(folder: Path, verifier: Any) -> dict[str, Any]:
    """Of one level: right or not for each problem, and the means of tokens, FLOPs and missing answers."""
    right, tokens, flops, none = [], [], [], []
    for _, trace in run_traces(folder):
        score = None if trace.chosen is None else trace.score(trace.chosen, verifier.name)
        right.append(float(score or 0.0))
        none.append(float(trace.chosen is None or stated_answer(verifier, trace.text(trace.chosen)) is None))
        tokens.append(trace.cost.generated_tokens)
        flops.append(trace.cost.flops)
    return {
        "right": [int(x) if x == int(x) else round(x, 3) for x in right], "mean": round(float(np.mean(right)), 5),
        "tokens": round(float(np.mean(tokens)), 2), "flops": float(f"{np.mean(flops):.4g}"),
        "none": round(float(np.mean(none)), 5),
    }  # fmt: skip


def place_labels(x: Sequence[float], y: Sequence[float], names: Sequence[str]) -> list[tuple[float, float, str, bool]]:
    """One label for the levels of one point, and whether it goes below: by turns, but of two points above each other
    the lower one has its label below."""
    points: dict[tuple[float, float], list[str]] = {}
    for a, b, name in zip(x, y, names, strict=True):
        same = next((p for p in points if _near(p[0], a) and abs(p[1] - b) < SAME_POINTS), (a, b))
        points.setdefault(same, []).append(name)
    out = []
    for place, ((a, b), group) in enumerate(points.items()):
        beside = [q for p, q in points if _near(p, a) and q != b]
        below = b < max(beside) if beside else place % 2 == 0
        out.append((a, b, ", ".join(group), below))
    return out


def _near(a: float, b: float) -> bool:
    return max(a, b) < LONGER * min(a, b)


def points_per_doubling(d: SeedData, a: str, b: str) -> float:
    """Accuracy gained from one level to another, by each doubling of the tokens."""
    one, other = d["levels"][a], d["levels"][b]
    return float((other["mean"] - one["mean"]) / np.log2(other["tokens"] / one["tokens"]))


def _interval(data: Sequence[SeedData], name: str) -> tuple[float, float, float]:
    """The mean over seeds with its interval; of one seed, over problems."""
    if len(data) > 1:
        return over_seeds([d["levels"][name]["mean"] for d in data], SHARE)
    found = bootstrap_mean(data[0]["levels"][name]["right"])
    return found.mean, found.low, found.high


def _right_cell(data: Sequence[SeedData], name: str) -> str:
    if len(data) > 1:
        return format_interval([d["levels"][name]["mean"] for d in data], bounds=SHARE)
    mean, low, high = (100 * x for x in _interval(data, name))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


FIGURE = EffortLevels()
