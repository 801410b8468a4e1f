"""Figures of training runs: metrics by step, and the length of answers by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    label_line_ends,
    make_panels,
    set_headline,
)
from ponder.measure.figures.theme import COLOURS, DASHES, TEXT_COLOUR, moving_mean
from ponder.measure.readers.attempts import short_labels
from ponder.measure.readers.run_directory import run_task, run_verifier, sampled_token_count
from ponder.runs import read_metrics, read_traces

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What to draw, where a run has it, and what to call it.
METRIC_LABELS = {
    "reward": "mean reward",
    "accuracy": "accuracy",
    "eval/accuracy": "held-out accuracy, greedy",
    "loss": "loss",
    "completions/mean_length": "mean length, tokens",
    "entropy": "entropy, nats per token",
    "kl": "KL to the reference, nats per token",
    "frac_reward_zero_std": "share of groups without a gradient",
    "completions/clipped_ratio": "share of answers cut off",
    "grad_norm": "gradient norm",
}
# What a training can be drawn against, with the label of the axis.
TrainingAxis = Literal["step", "tokens", "flops", "seconds"]
_AXIS_LABELS: dict[TrainingAxis, str] = {
    "step": "training step",
    "tokens": "tokens",
    "flops": "FLOPs of sampling and learning",
    "seconds": "seconds of training",
}
SMOOTHING_FRACTION = 12  # a moving mean spans a twelfth of the run to either side


def plot_training_metrics(
    folders: Sequence[str | Path], title: str = "", metrics: Sequence[str] = (), x: TrainingAxis = "step"
) -> FigureWithData:
    """One panel per metric, one line per run: faint as measured, strong as a centred moving mean."""
    runs = [(name, _metrics(f)) for name, f in zip(_run_labels(folders), folders, strict=True)]
    amounts = [_axis_values(name, rows, x) for name, rows in runs]
    have = {k for _, rows in runs for row in rows for k in row}
    if unknown := [m for m in metrics if m not in have]:
        raise UsageError(
            f"no run has the metric {unknown[0]!r}; they have {', '.join(sorted(have - {'step', 'time'}))}"
        )
    usual = [
        m for m in METRIC_LABELS if m in have and not (m == "loss" and "reward" in have)
    ]  # a policy's loss tells nothing
    shown = list(metrics) or usual
    if not shown:
        raise UsageError(f"none of {', '.join(METRIC_LABELS)} is in these runs: name metrics with --metric")
    table: list[FigureRow] = [
        {"run": name, "step": row["step"], x: amount, **{m: row.get(m, float("nan")) for m in shown}}
        for (name, rows), along in zip(runs, amounts, strict=True)
        for row, amount in zip(rows, along, strict=True)
    ]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for at, (ax, metric) in enumerate(zip(axes, shown, strict=True)):
            labelled = []
            for i, (name, rows) in enumerate(runs):
                values = np.array([row.get(metric, np.nan) for row in rows], float)
                colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
                labelled += _plot_line(ax, amounts[i], values, colour, dash, name)
            set_headline(ax, METRIC_LABELS.get(metric, metric))
            _step_axis(ax, whole=x == "step")
            _set_height(ax, metric)
            if len(runs) > 1 and at == 0:
                label_line_ends(ax, labelled) if len(shown) == 1 else ax.legend(labels=None, fontsize=8, loc="best")
        for ax in axes:
            ax.set_xlabel(_AXIS_LABELS[x])

    size = (3.5, 2.4) if len(shown) > 1 else (5.4, 3.1)
    return FigureWithData(make_panels(len(shown), paint, title or _run_title(folders), size=size), tuple(table))


def plot_length_growth(folders: Sequence[str | Path], title: str = "") -> FigureWithData:
    """Tokens per answer as training goes on, with the middle half of them; and right against wrong ones."""
    runs = [(name, _answer_lengths(f)) for name, f in zip(_run_labels(folders), folders, strict=True)]
    table: list[FigureRow] = []

    def paint(figure: Figure, axes: list[Axes]) -> None:
        labelled, split = [], []
        for i, (name, by_step) in enumerate(runs):
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
            steps = np.array(sorted(by_step), float)
            every = [[n for n, _ in by_step[int(s)]] for s in steps]
            low, high = (np.array([np.quantile(e, q) for e in every]) for q in (0.25, 0.75))
            mean = np.array([np.mean(e) for e in every])
            window = max(1, len(steps) // SMOOTHING_FRACTION)
            axes[0].fill_between(
                steps, moving_mean(low, window), moving_mean(high, window), color=colour, alpha=0.13, lw=0
            )
            labelled += _plot_line(axes[0], steps, mean, colour, dash, name)
            right, wrong = (
                np.array([_mean([n for n, r in by_step[int(s)] if r is k]) for s in steps]) for k in (True, False)
            )
            split += _plot_line(
                axes[1], steps, right, COLOURS[2], dash, f"{name} right".strip() if len(runs) > 1 else "right"
            )
            split += _plot_line(
                axes[1], steps, wrong, COLOURS[1], dash, f"{name} wrong".strip() if len(runs) > 1 else "wrong"
            )
            for s, m, lo, hi, r, w in zip(steps, mean, low, high, right, wrong, strict=True):
                table.append(
                    {
                        "run": name,
                        "step": int(s),
                        "mean": m,
                        "quarter": lo,
                        "three_quarters": hi,
                        "right": r,
                        "wrong": w,
                    }
                )
        for ax in axes:
            _step_axis(ax)
            ax.set_xlabel("training step")
            ax.set_ylim(bottom=0)
            ax.grid(axis="y")
        set_headline(axes[0], "tokens per answer")
        set_headline(axes[1], "of right and of wrong answers")
        if len(runs) > 1:
            label_line_ends(axes[0], labelled)
        label_line_ends(axes[1], split)
        add_footnotes(figure, ["strong: moving mean; band: the middle half of all answers of a step"])

    return FigureWithData(make_panels(2, paint, title or _run_title(folders), size=(4.3, 2.9)), tuple(table))


def _run_title(folders: Sequence[str | Path]) -> str:
    return ", ".join(Path(f).name or str(f) for f in folders[:3]) + " ..." * (len(folders) > 3)


def _run_labels(folders: Sequence[str | Path]) -> list[str]:
    names = [Path(f).name or str(f) for f in folders]
    return short_labels(names) if len(set(names)) == len(names) else [str(f) for f in folders]


def _metrics(folder: str | Path) -> list[dict[str, float]]:
    """Steps count from 1, as the progress of a run shows them."""
    if not Path(folder).is_dir():
        raise UsageError(f"there is no run directory {folder}: `ponder runs` lists those that are here")
    rows = read_metrics(folder)
    if not rows:
        raise UsageError(f"{folder} has no metrics: training curves are drawn from the run directory of a training")
    return [{**row, "step": row["step"] + 1} for row in rows]


def _axis_values(name: str, rows: Sequence[dict[str, float]], x: TrainingAxis) -> np.ndarray:
    """Where each row of a run stands on the x-axis."""
    column = {"step": "step", "tokens": "num_tokens", "flops": "flops", "seconds": "step_time"}[x]
    values = np.array([row.get(column, np.nan) for row in rows], float)
    if np.isnan(values).all():
        raise UsageError(f"{name} does not tell its {x}: choose another --x, or leave it out")
    return np.nancumsum(values) if x == "seconds" else values


def _answer_lengths(folder: str | Path) -> dict[int, list[tuple[int, bool | None]]]:
    """By step, counted from 1: the length of each answer, and whether it was right."""
    verifier = run_verifier(Path(folder), run_task(Path(folder)))
    lengths: dict[int, list[tuple[int, bool | None]]] = defaultdict(list)
    for step, trace in read_traces(folder):
        for i in trace.answers():
            score = trace.score(i, verifier) if verifier is not None else None
            lengths[step + 1].append((sampled_token_count(trace, i), None if score is None else score >= 1))
    if len(lengths) < 2:
        raise UsageError(
            f"{folder} has traces of {len(lengths)} steps: length growth takes the run directory of a training"
        )
    return lengths


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _plot_line(
    ax: Axes, steps: np.ndarray, values: np.ndarray, colour: str, dash: Any, name: str
) -> list[tuple[float, str, str]]:
    """Draws it, and says where it ends and what it is called."""
    known = ~(np.isnan(values) | np.isnan(steps))
    if not known.any():
        return []
    steps, values = steps[known], values[known]  # a step without a number is passed over
    if len(steps) < SMOOTHING_FRACTION:  # too few to smooth: the points themselves
        ax.plot(steps, values, color=colour, lw=1.6, marker="o", ms=3, label=name)
        return [(float(values[-1]), name, colour)]
    smooth = moving_mean(values, max(1, len(steps) // SMOOTHING_FRACTION))
    ax.plot(steps, values, color=colour, lw=0.8, alpha=0.3)
    ax.plot(steps, smooth, color=colour, lw=1.9, ls=dash, label=name)
    return [(float(smooth[-1]), name, colour)]


def _step_axis(ax: Axes, whole: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.margins(x=0.01)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=whole))


def _set_height(ax: Axes, metric: str) -> None:
    ax.grid(axis="y")
    low, high = ax.dataLim.intervaly
    if metric.startswith(("frac_", "completions/clipped", "accuracy")) or (
        metric == "reward" and low >= 0 and high <= 1
    ):
        ax.set_ylim(0, 1.02)
    elif low >= 0:
        ax.set_ylim(bottom=0)
    ax.tick_params(colors=TEXT_COLOUR, which="both", length=3)
