"""Colours and style of figures, and the reward curve. matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.intervals import Accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT_COLOUR, MUTED_COLOUR, LINE_COLOUR, MARK_COLOUR = "#1f2328", "#8c959f", "#1f5fbf", "#d1570a"
# Okabe and Ito (2008): told apart by colour-blind readers; each with a mark and a dash of its own for print in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2328", "#8c959f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": MUTED_COLOUR,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED_COLOUR,
    "ytick.color": MUTED_COLOUR,
    "xtick.labelcolor": TEXT_COLOUR,
    "ytick.labelcolor": TEXT_COLOUR,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "ponder",  # the same picture is the same file
}


def plot_reward_curve(
    path: str | Path,
    steps: Sequence[float],
    rewards: Sequence[float | None],
    *,
    before: Accuracy | None = None,
    after: Accuracy | None = None,
    title: str = "",
) -> Path:
    """Draw reward by training step as a PNG; with `before` and `after`, the test accuracies stand beside it.

    The faint line is every step as measured, the strong one a centred moving mean. A step without a reward (None)
    is a gap.
    """
    if len(steps) != len(rewards) or len(steps) == 0:
        raise UsageError(f"a curve takes one reward per step; got {len(steps)} steps and {len(rewards)} rewards")

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):
        marks = [(name, a) for name, a in (("before", before), ("after", after)) if a is not None]
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.04)
        figure = Figure(figsize=(7.4 if marks else 5.4, 3.1), layout=layout)
        FigureCanvasAgg(figure)  # draws without a display, and leaves pyplot's state alone
        if marks:
            curve, side = figure.subplots(1, 2, width_ratios=[2.7, 1])
            _plot_accuracies(side, marks)
        else:
            curve = figure.subplots()
        _plot_rewards(curve, np.asarray(steps, float), np.array([np.nan if r is None else r for r in rewards], float))
        if title:
            figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.014, ha="left")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200, facecolor="white")
    return path


def _plot_rewards(axes: Axes, steps_S: np.ndarray, rewards_S: np.ndarray) -> None:
    """S: training steps."""
    from matplotlib.ticker import MaxNLocator

    window = max(1, len(steps_S) // 12)
    few = len(steps_S) < 12  # too few to smooth: show the points themselves
    if few:
        axes.plot(steps_S, rewards_S, color=LINE_COLOUR, lw=1.8, marker="o", ms=3.5, clip_on=False)
    else:
        axes.plot(steps_S, rewards_S, color=LINE_COLOUR, lw=0.9, alpha=0.35)
        axes.plot(steps_S, moving_mean(rewards_S, window), color=LINE_COLOUR, lw=2.0)
    known = rewards_S[~np.isnan(rewards_S)]
    if np.all((known >= 0) & (known <= 1)):
        axes.set_ylim(0, 1.02)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.grid(axis="y")
    axes.set_xlabel("training step")
    axes.set_title("mean reward of the sampled answers", loc="left", fontsize=9, color=TEXT_COLOUR)


def _plot_accuracies(axes: Axes, marks: Sequence[tuple[str, Accuracy]]) -> None:
    for x, (_, a) in enumerate(marks):
        mean, low, high = 100 * a.mean, 100 * a.low, 100 * a.high
        reach = [[mean - low], [high - mean]]
        axes.errorbar(
            x, mean, reach, fmt="o", ms=5, color=MARK_COLOUR, lw=1.4, capsize=3.5, capthick=1.4, clip_on=False
        )
        over = high < 90  # the figure stands above its interval, or below where the frame is near
        axes.annotate(
            f"{mean:.1f}", (x, high if over else low), (0, 6 if over else -6), textcoords="offset points",
            ha="center", va="bottom" if over else "top", fontweight="bold",
        )  # fmt: skip
    axes.set_xlim(-0.6, len(marks) - 0.4)
    axes.set_ylim(0, 102)
    axes.set_xticks(range(len(marks)), [f"{name}\n{a.correct}/{a.total}" for name, a in marks])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.set_xlabel("with 95 % intervals", fontsize=8, color=MUTED_COLOUR)
    axes.set_title("test accuracy, %", loc="left", fontsize=9, color=TEXT_COLOUR)


def moving_mean(values_S: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` steps to either side. Within `window` of an end, where one side is short, the line fitted
    to the same number of steps: so the curve neither lags behind a trend there nor jumps to the last value.

    NaN is a gap: it stays one, and counts in no mean.
    """
    size = len(values_S)
    out = np.full(size, np.nan)
    for i in np.flatnonzero(~np.isnan(values_S)):
        centre = min(max(int(i), window), max(size - 1 - window, window))
        first, last = max(0, centre - window), min(size, centre + window + 1)
        x = np.arange(first, last)[~np.isnan(values_S[first:last])]
        y = values_S[x]
        off = x - x.mean()
        slope = off @ y / (off @ off) if len(x) > 2 else 0.0
        out[i] = np.clip(y.mean() + slope * (i - x.mean()), y.min(), y.max())
    return out
