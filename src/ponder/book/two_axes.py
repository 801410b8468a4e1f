"""Train longer or think longer: accuracy over training compute and over test-time compute, and both together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.sampled_answers import SampledProblem, read_samples
from ponder.measure import fit_log_linear, selection_curve
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_metrics

VOTES = (1, 2, 4, 8, 16, 32, 64)
TARGET = 0.8  # of the best accuracy of all: what "train or think" has to reach
MAX_LINES = 5  # checkpoints whose curve over samples is drawn
STRAIGHT = 0.05  # points of a straight line lie so close to it
QUERIES = (1, 100, 10_000, 1_000_000, 100_000_000)

TRIES = [  # before the settings of the tiny model stood
    "Two tries of one seed before: 320 steps with five checkpoints, among which nothing could be traded, and 640 steps"
    " at a higher rate, at which the training loss jumped after step 500 and accuracy fell from 93 to 48 %. Rate and"
    " steps were then chosen by the training loss of that run. Both had been measured on held-out problems, too.",
    "",
]


class TwoAxes:
    name = "two-axes"
    title = "Two axes: training compute and test-time compute"
    source = (
        "OpenAI 2024, Learning to reason with LLMs (o1: accuracy grows with the logarithm of train-time and of"
        " test-time compute); Snell et al. 2024, arXiv:2408.03314 (test-time compute for pretraining compute, by load)"
    )
    claim = (
        "Held-out accuracy grows steadily with the logarithm of training compute, and with that of test-time compute;"
        " for few queries thinking longer is the cheaper way to a given accuracy, for many queries training longer."
    )
    settings = (
        "Rate and steps of the tiny model came after two tries of one seed, which had been measured on held-out"
        " problems (below); checkpoints and samples had one value"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        folder = run.run_recipe("two_axes")
        stages = run.recipe_job("two_axes").stages
        verifier = stages[-1].job.task.verifier
        spent = {int(row["step"]) + 1: float(row["flops"]) for row in read_metrics(folder / "train") if "flops" in row}
        out: dict[str, Any] = {"model": run.model, "seed": run.seed, "checkpoints": []}
        for stage in stages[1:]:
            at = int(stage.name.partition("-")[2])
            problems = read_samples([folder / stage.name], verifier)
            out["checkpoints"].append({"step": at, "training flops": spent[at]} | measure_checkpoint(problems))
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []
        steps = _steps(data)

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            for i, n in enumerate((1, 8, VOTES[-1])):
                x, y = training_axis(data, n)
                axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=4, label=_votes(n))
                paint_seeds(axes, x, [training_axis([d], n)[1] for d in data], COLOURS[i])
                rows.extend(
                    {"panel": "training", "line": _votes(n), "x": a, "right": b} for a, b in zip(x, y, strict=True)
                )
            x, y = training_axis(data, 1)
            axes.plot(x, fit_log_linear(x, y)(x), color=COLOURS[0], ls=":", label="fit, one sample")
            axes.set_xlabel("training FLOPs")
            axes = panels[1]
            for i, c in enumerate(range(len(steps) - 1, -1, -math.ceil(len(steps) / MAX_LINES))):
                step, (x, y) = steps[c], thinking_axis(data, c)
                axes.plot(x, y, color=COLOURS[i], marker=MARKERS[i], ms=4, label=f"{step} steps")
                paint_seeds(axes, x, [thinking_axis([d], c)[1] for d in data], COLOURS[i])
                axes.plot(x, fit_log_linear(x, y)(x), color=COLOURS[i], ls=":", lw=1)
                rows.extend(
                    {"panel": "thinking", "line": f"{step} steps", "x": a, "right": b}
                    for a, b in zip(x, y, strict=True)
                )
            axes.set_xlabel("test-time FLOPs a problem")
            for axes, top, place in ((panels[0], 1.02, {"loc": "best"}), (panels[1], 1.2, {"loc": "upper center"})):
                axes.set_xscale("log")
                axes.set_ylim(0, top)  # of thinking longer with room for the legend
                axes.set_yticks([k / 5 for k in range(6)])
                axes.legend(fontsize=7, ncols=1 if axes is panels[0] else 3, **place)
            panels[0].set_ylabel("share right")
            axes = panels[2]
            grid = np.array([[over_seeds([d["checkpoints"][c]["vote"][v] for d in data])[0] for v in range(len(VOTES))]
                             for c in range(len(steps))])  # fmt: skip
            axes.imshow(grid, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=1)
            for c in range(len(steps)):
                for v in range(len(VOTES)):
                    colour = "white" if grid[c, v] < 0.6 else "black"
                    axes.text(v, c, f"{100 * grid[c, v]:.0f}", ha="center", va="center", fontsize=7, color=colour)
            axes.set_xticks(range(len(VOTES)), [str(n) for n in VOTES])
            axes.set_yticks(range(len(steps)), [str(s) for s in steps])
            axes.set_xlabel("samples in the vote")
            axes.set_ylabel("training steps")
            for axes, title in zip(panels, ("training longer", "thinking longer", "both, right in %"), strict=True):
                axes.set_title(title, fontsize=9)

        return FigureWithData(make_panels(3, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        steps, shown = _steps(data), (1, 4, 16, 64)
        rows = []
        for c, step in enumerate(steps):
            own = [d["checkpoints"][c] for d in data]
            cells = [format_interval([x["vote"][VOTES.index(n)] for x in own], bounds=SHARE) for n in shown]
            spent = [
                format_amount(float(np.mean([x[key] for x in own]))) for key in ("training flops", "flops per sample")
            ]
            rows.append([str(step), *spent, *cells])
        first = data[0]["checkpoints"][0]
        head = ["steps", "training FLOPs", "FLOPs a sample", *(_votes(n) for n in shown)]
        return [
            f"{first['problems']} held-out problems, {VOTES[-1]} samples of each from every checkpoint; the vote of n"
            " is the exact mean over subsets. FLOPs are those of the one meter, forward and backward for training. The"
            " learning rate is constant after its warm-up, so that a checkpoint is not in the middle of a decay. The"
            " training is imitation; accuracy over the compute of RL, o1's first axis, is in [r1-zero](r1-zero.md)."
            " Over seeds with a 95 % interval that stays within 0 and 100; thin lines are the seeds, dotted ones"
            " straight fits.",
            *markdown_table(head, rows),
            *(TRIES if data[0]["model"] == "tiny" else []),
            *self._fit_lines(data, steps),
            *self._cheapest_lines(data, steps),
        ]

    def _fit_lines(self, data: Sequence[SeedData], steps: Sequence[int]) -> list[str]:
        training = [fit_log_linear(*training_axis([d], 1)) for d in data]
        slope = [f.slope for f in training]
        thinking = {c: [fit_log_linear(*thinking_axis([d], c)).slope for d in data] for c in range(len(steps))}
        low = over_seeds(slope)[1]
        rising = [steps[c] for c, each in thinking.items() if over_seeds(each)[1] > 0]
        cells = "; ".join(f"after {steps[c]} steps {format_interval(each, sign=True)}" for c, each in thinking.items())
        off = [f.residual for f in training]
        where = "**not clear** at any checkpoint"
        if rising:
            others = "" if len(rising) == len(steps) else "; **not clear** at the other checkpoints"
            where = f"**yes**, after {', '.join(map(str, rising))} steps{others}"
        return [
            f"Points gained by a tenfold of training compute (one sample): {format_interval(slope, sign=True)}; the"
            f" deviation from that line is {format_interval(off)} points. By a tenfold of test-time compute: {cells}.",
            "",
            "**Held?**",
            "",
            f"- accuracy grows with the logarithm of training compute: **{_yes(low > 0)}**; along a straight line,"
            f" within {100 * STRAIGHT:.0f} points: **{_yes(max(off) < STRAIGHT)}**",
            f"- accuracy grows with the logarithm of test-time compute: {where}",
        ]

    def _cheapest_lines(self, data: Sequence[SeedData], steps: Sequence[int]) -> list[str]:
        best = float(np.mean([max(max(c["vote"]) for c in d["checkpoints"]) for d in data]))
        target = TARGET * best
        rows, trained, thought = [], [], []
        for queries in QUERIES:
            ways = [cheapest_way(d, target, queries) for d in data]
            known = [way for way in ways if way is not None]
            cells = [f"{steps[c]} steps, {_votes(n)}" for c, n, _ in known]
            rows.append([f"{queries:,}", *(cells if len(known) == len(data) else ["not reached"] * len(data))])
            trained.append([steps[c] for c, _, _ in known])
            thought.append([n for _, n, _ in known])
        later = bool(trained[0]) and all(b >= a for a, b in zip(trained[0], trained[-1], strict=True))
        less = bool(thought[0]) and all(b <= a for a, b in zip(thought[0], thought[-1], strict=True))
        moved = later and less and (trained[0] != trained[-1] or thought[0] != thought[-1])
        head = ["queries", *(f"seed {d['seed']}" for d in data)]
        return [
            f"- train or think: the cheapest way, training and answering together in FLOPs, to {100 * target:.0f} %"
            f" right ({100 * TARGET:.0f} % of the best measured). More queries ask for more training and fewer samples:"
            f" **{_yes(moved)}**",
            "",
            *markdown_table(head, rows)[1:],
        ]


def measure_checkpoint(problems: Sequence[SampledProblem]) -> dict[str, Any]:
    answers, right = [p.answers for p in problems], [p.right for p in problems]
    count = sum(map(len, right))
    votes = [n for n in VOTES if n <= min(map(len, right))]
    curve = selection_curve("majority", answers, right, votes, how="exact").mean
    return {
        "problems": len(problems), "vote": np.round(curve, 5).tolist(),
        "flops per sample": sum(p.flops for p in problems) / count,
        "tokens per sample": round(sum(sum(p.lengths) for p in problems) / count, 2),
    }  # fmt: skip


def cheapest_way(d: SeedData, target: float, queries: int) -> tuple[int, int, float] | None:
    """The checkpoint (its place), the samples and the FLOPs that reach an accuracy at least cost; None: no way."""
    ways = [
        (c, n, point["training flops"] + queries * n * point["flops per sample"])
        for c, point in enumerate(d["checkpoints"])
        for n, right in zip(VOTES, point["vote"], strict=False)
        if right >= target
    ]
    return min(ways, key=lambda way: way[2]) if ways else None


def training_axis(data: Sequence[SeedData], votes: int) -> tuple[list[float], list[float]]:
    """Training FLOPs and the accuracy of a vote, each the mean over seeds."""
    count = len(data[0]["checkpoints"])
    x = [float(np.mean([d["checkpoints"][c]["training flops"] for d in data])) for c in range(count)]
    at = VOTES.index(votes)
    return x, [float(np.mean([d["checkpoints"][c]["vote"][at] for d in data])) for c in range(count)]


def thinking_axis(data: Sequence[SeedData], checkpoint: int) -> tuple[list[float], list[float]]:
    """FLOPs of n samples of a problem and the accuracy of their vote, each the mean over seeds."""
    own = [d["checkpoints"][checkpoint] for d in data]
    a_sample = float(np.mean([c["flops per sample"] for c in own]))
    sizes = VOTES[: len(own[0]["vote"])]
    return [n * a_sample for n in sizes], [float(np.mean([c["vote"][v] for c in own])) for v in range(len(sizes))]


def _steps(data: Sequence[SeedData]) -> list[int]:
    return [c["step"] for c in data[0]["checkpoints"]]


def _votes(n: int) -> str:
    return "one sample" if n == 1 else f"vote of {n}"


def _yes(held: bool) -> str:
    return "yes" if held else "no"


FIGURE = TwoAxes()
