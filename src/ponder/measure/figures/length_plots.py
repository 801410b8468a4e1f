"""Accuracy over samples per problem and tokens per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureWithData,
    add_footnotes,
    label_line_ends,
    make_panels,
    set_headline,
    set_k_axis,
    set_percent_axis,
)
from ponder.measure.figures.coverage_plots import CURVE_LABELS, figure_notes, judged_system, rule_curve
from ponder.measure.figures.theme import MARKERS, TEXT_COLOUR
from ponder.measure.readers.attempts import Attempts, ProblemAttempts
from ponder.measure.scaling.budget_metrics import budget_control, budget_performance, budget_scaling
from ponder.measure.statistics.sample_curve import SampleCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_samples_and_length(
    systems: Sequence[Attempts], title: str = "", rule: str = "", budgets: Sequence[int] = ()
) -> FigureWithData:
    """Accuracy over samples and length: thinking wider and thinking longer, with s1's metrics of its budgets.

    One log: an attempt longer than the limit counts as cut off, which is wrong and has no vote. Several: each is run
    under a budget of its own (`budgets`, in their order), or stands at the mean length of its attempts.
    """
    if any(g.tokens is None or any(t is None for t in g.tokens) for s in systems for g in s.groups):
        raise UsageError(
            "samples x length needs the tokens of each attempt: name their column with --column tokens=NAME"
        )
    if budgets and len(budgets) != len(systems):
        raise UsageError(f"--budgets has {len(budgets)} numbers for {len(systems)} runs: give one for each")
    graded = [judged_system(s) for s in systems]
    chosen = rule or ("majority" if all(j.system.has_answers for j in graded) else "coverage")
    max_k = min(j.max_k for j in graded)
    ks = [k for k in (2**i for i in range(20)) if k <= max_k]
    limits = list(budgets) or (_length_limits(graded[0].system) if len(graded) == 1 else [])
    cells = _cells([j.system for j in graded], limits)
    curves = [(length, rule_curve(s, chosen, ks)) for length, s, _ in cells]
    if any(np.isnan(c.mean).any() for _, c in curves):
        raise UsageError(f"{CURVE_LABELS[chosen]}: on every problem the choice falls on an attempt without a verdict")
    notes = _budget_notes(cells)
    rows = [
        {"length": length, "k": k, "rule": chosen, "mean": c.mean[i], "low": c.low[i], "high": c.high[i],
         "control": control}
        for (length, c), (_, _, control) in zip(curves, cells, strict=True)
        for i, k in enumerate(ks)
    ]  # fmt: skip

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint_lengths(axes[0], curves, ks, max_k)
        _paint_cells(axes[1], curves, ks)
        set_headline(axes[0], f"{CURVE_LABELS[chosen]} of k, %")
        set_headline(axes[1], "the same, as a map; underlined: best for its tokens")
        how = "as budgeted" if budgets else "longer attempts count as cut off" if limits else "each run at its mean"
        text = f"length: tokens per attempt, {how}; bands: 95 % intervals over problems"
        add_footnotes(figure, [*figure_notes(systems, text), *notes])

    return FigureWithData(make_panels(2, paint, title, size=(4.6, 3.4)), tuple(rows), tuple(notes))


def _cells(systems: Sequence[Attempts], limits: Sequence[int]) -> list[tuple[int, Attempts, float]]:
    """By length: the system at it, and the share of its attempts within the limit (NaN without one)."""
    if len(systems) == 1 and len(limits) > 1:
        tokens = _tokens(systems[0])
        return [(limit, _truncate_at(systems[0], limit), budget_control(tokens, limit)) for limit in limits]
    if limits:
        pairs = zip(limits, systems, strict=True)
        return sorted(((b, s, budget_control(_tokens(s), b)) for b, s in pairs), key=lambda c: c[0])
    return sorted(((int(np.mean(_tokens(s))), s, float("nan")) for s in systems), key=lambda c: c[0])


def _tokens(system: Attempts) -> list[int]:
    return [t for g in system.groups for t in g.tokens or () if t is not None]


def _budget_notes(cells: Sequence[tuple[int, Attempts, float]]) -> list[str]:
    """Control, Scaling and Performance of one sample over the budgets."""
    if len({length for length, _, _ in cells}) < 2:
        return []
    accuracy = [float(np.mean([m for m in s.means if m is not None])) for _, s, _ in cells]
    slope = budget_scaling([length for length, _, _ in cells], accuracy)
    parts = [
        f"Scaling {1e5 * slope:+.2f} points per 1,000 tokens",
        f"Performance {100 * budget_performance(accuracy):.1f} %",
    ]
    controls = [c for _, _, c in cells if c == c]
    if controls:
        parts.insert(0, f"Control {100 * sum(controls) / len(controls):.1f} %")
    return [f"s1's metrics of one sample: {', '.join(parts)}"]


def _length_limits(system: Attempts) -> list[int]:
    """Lengths that cut off some attempts: doubling, up to the longest."""
    low, high = np.quantile(_tokens(system), [0.1, 1.0])
    steps = np.geomspace(max(low, 1), high, 5)
    return sorted({round(x) for x in steps})


def _truncate_at(system: Attempts, limit: int) -> Attempts:
    def shorter(g: ProblemAttempts) -> ProblemAttempts:
        fits = [t is not None and t <= limit for t in g.tokens or ()]
        correct = tuple(c if keep else 0.0 for c, keep in zip(g.correct, fits, strict=True))
        answers = None if g.answers is None else tuple(a if k else None for a, k in zip(g.answers, fits, strict=True))
        return replace(g, correct=correct, answers=answers)

    return system.map_problems(shorter)


def _length_colour(i: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["cividis"](0.05 + 0.8 * i / max(1, count - 1))


def _paint_lengths(ax: Axes, curves: Sequence[tuple[int, SampleCurve]], ks: Sequence[int], most: int) -> None:
    labels = []
    for i, (length, c) in enumerate(curves):
        colour = _length_colour(i, len(curves))
        ax.fill_between(c.k, c.low, c.high, color=colour, alpha=0.10, lw=0)
        ax.plot(c.k, c.mean, color=colour, lw=1.8, marker=MARKERS[i % len(MARKERS)], ms=3.8, clip_on=False)
        labels.append((float(c.mean[-1]), f"{length:,} tokens", colour))
    set_k_axis(ax, most)
    lows, highs = [np.nanmin([c.low, c.mean]) for _, c in curves], [np.nanmax([c.high, c.mean]) for _, c in curves]
    set_percent_axis(ax, float(min(lows)), float(max(highs)))
    label_line_ends(ax, labels)


def _paint_cells(ax: Axes, curves: Sequence[tuple[int, SampleCurve]], ks: Sequence[int]) -> None:
    values = np.array([c.mean for _, c in curves])
    ax.imshow(values, origin="lower", aspect="auto", cmap="cividis", vmin=values.min(), vmax=values.max())
    spent = np.array([[length * k for k in ks] for length, _ in curves])
    for i in range(len(curves)):
        for j in range(len(ks)):
            as_cheap = values[spent <= spent[i, j]]
            best = values[i, j] >= as_cheap.max()
            dark = values[i, j] <= (values.min() + values.max()) / 2
            ax.text(
                j, i, f"{100 * values[i, j]:.0f}", ha="center", va="center", fontsize=8.5,
                color="white" if dark else TEXT_COLOUR, fontweight="bold" if best else "normal",
            )  # fmt: skip
            if best:
                ax.plot([j - 0.22, j + 0.22], [i - 0.24] * 2, color="white" if dark else TEXT_COLOUR, lw=1.2)
    ax.set_xticks(range(len(ks)), [str(k) for k in ks])
    ax.set_yticks(range(len(curves)), [f"{length:,}" for length, _ in curves])
    ax.set_xlabel("samples per problem, k")
    ax.set_ylabel("tokens per attempt")
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
