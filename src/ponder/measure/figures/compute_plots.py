"""Accuracy over log compute: fitted lines, curves overlaid by a shift, and where training beats thinking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    format_amount,
    label_line_ends,
    make_panels,
    set_cost_axis,
    set_headline,
    set_percent_axis,
    shorten_name,
)
from ponder.measure.figures.costs import COST_LABELS, CostUnit, common_cost_unit, sample_cost
from ponder.measure.figures.coverage_plots import CURVE_LABELS, figure_notes, judged_system, rule_curve
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS, MUTED_COLOUR, TEXT_COLOUR
from ponder.measure.readers.attempts import Attempts
from ponder.measure.readers.score_table import ScoreTable
from ponder.measure.scaling.break_even import TrainOrThink, train_or_think
from ponder.measure.scaling.log_linear import ComputeShift, LogLinearFit, compute_shift, fit_log_linear
from ponder.measure.statistics.arrays import FloatArray
from ponder.measure.statistics.decision_rules import DecisionRule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ComputeCurve:
    """One family: what it costs per problem and how accurate it is, from little compute to much."""

    name: str
    cost: FloatArray
    accuracy: FloatArray
    low: FloatArray
    high: FloatArray


def sample_curves(
    systems: Sequence[Attempts], unit: CostUnit | None, rule: DecisionRule | None
) -> tuple[list[ComputeCurve], CostUnit, str]:
    """A curve for each log: k samples at k times the mean cost of one. Also the unit and the rule that decides."""
    if rule not in (None, "majority", "any"):
        raise UsageError(f"accuracy over compute is of a majority vote or of any sample, not of {rule}: see --select")
    graded = [judged_system(s) for s in systems]
    paid_in = common_cost_unit([j.system for j in graded], unit)
    votes = rule == "majority" or (rule is None and all(j.system.has_answers for j in graded))
    if votes and (silent := [j.system.name for j in graded if not j.system.has_answers]):
        raise UsageError(f"{silent[0]} has no answers to vote on: use --select any")
    decided_by = "majority" if votes else "coverage"
    out = []
    for j in graded:
        ks = [2**i for i in range(j.max_k.bit_length())]
        curve = rule_curve(j.system, decided_by, ks)
        if np.isnan(curve.mean).any():
            raise UsageError(f"{j.system.name}: votes fall on attempts without a verdict on every problem")
        cost = np.asarray(curve.k * sample_cost(j.system, paid_in), dtype=np.float64)
        out.append(ComputeCurve(j.system.name, cost, curve.mean, curve.low, curve.high))
    return out, paid_in, decided_by


def table_curves(table: ScoreTable) -> list[ComputeCurve]:
    """The families of a table; all rows are one where it has no column `family`."""
    out = []
    for family in dict.fromkeys(p.family for p in table.points):
        points = sorted((p for p in table.points if p.family == family), key=lambda p: p.cost)
        columns = (np.array([getattr(p, c) for p in points]) for c in ("cost", "score", "low", "high"))
        out.append(ComputeCurve(family or table.score_column, *columns))
    return out


def plot_compute(
    systems: Sequence[Attempts], title: str = "", unit: CostUnit | None = None, rule: DecisionRule | None = None
) -> FigureWithData:
    """Accuracy of k samples against what they cost, with the line accuracy = a + b log10(cost)."""
    curves, paid_in, decided_by = sample_curves(systems, unit, rule)
    notes = figure_notes(systems, "bars: 95 % intervals over problems; k samples cost k times the mean cost of one")
    return _draw(curves, f"{COST_LABELS[paid_in]} per problem", f"{CURVE_LABELS[decided_by]} of k, %", notes, title)


def plot_compute_table(table: ScoreTable, title: str = "") -> FigureWithData:
    """The same for a table of names, scores and costs."""
    if not table.is_share:
        raise UsageError(f"accuracy over compute takes scores from 0 to 1, and {table.score_column} has others")
    return _draw(table_curves(table), table.cost_column, f"{table.score_column}, %", [], title)


def _draw(
    curves: Sequence[ComputeCurve], cost_name: str, headline: str, notes: Sequence[str], title: str
) -> FigureWithData:
    fits = [fit_log_linear(c.cost, c.accuracy) for c in curves]
    shifts = [_shift(c, curves[0]) for c in curves]
    text = [_fit_text(c, fit, shift) for c, fit, shift in zip(curves, fits, shifts, strict=True)]
    overlaid = [i for i, s in enumerate(shifts) if s is not None]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint_curves(axes[0], curves, [1.0] * len(curves), cost_name)
        for i, (c, fit) in enumerate(zip(curves, fits, strict=True)):
            ends = c.cost[[0, -1]]
            axes[0].plot(ends, np.clip(fit(ends), 0, 1), color=COLOURS[i % len(COLOURS)], lw=1.3, ls=DASHES[1])
        set_headline(axes[0], headline)
        if len(axes) > 1:
            factors = [1.0 if s is None else 1 / s.factor for s in shifts]
            shown = [curves[i] for i in overlaid]
            _paint_curves(axes[1], shown, [factors[i] for i in overlaid], f"{cost_name}, shifted", overlaid)
            set_headline(axes[1], f"the same, moved onto {shorten_name(curves[0].name)}")
        add_footnotes(figure, ["dashed: a + b log10(cost)", *text, *notes])

    rows = tuple(row for c, fit, shift in zip(curves, fits, shifts, strict=True) for row in _rows(c, fit, shift))
    figure = make_panels(2 if len(overlaid) > 1 else 1, paint, title, size=(5.0, 3.6), sharey=True)
    return FigureWithData(figure, rows, tuple(text))


def _shift(curve: ComputeCurve, onto: ComputeCurve) -> ComputeShift | None:
    """How many times the compute of `onto` this curve takes; None where they reach no accuracy in common."""
    try:
        return compute_shift((curve.cost, curve.accuracy), (onto.cost, onto.accuracy))
    except UsageError:
        return None


def _fit_text(curve: ComputeCurve, fit: LogLinearFit, shift: ComputeShift | None) -> str:
    interval = fit.slope_interval
    width = f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    moved = "" if shift is None or shift.factor == 1 else (
        f"; takes {shift.factor:.2g} times the compute ({shift.min_factor:.2g} to {shift.max_factor:.2g},"
        f" between {100 * shift.accuracy_range[0]:.0f} and {100 * shift.accuracy_range[1]:.0f} %)"
    )  # fmt: skip
    return f"{shorten_name(curve.name)}: {100 * fit.slope:+.1f} points{width} per tenfold compute{moved}"


def _rows(curve: ComputeCurve, fit: LogLinearFit, shift: ComputeShift | None) -> list[FigureRow]:
    law = fit(curve.cost)
    return [
        {"system": curve.name, "cost": curve.cost[i], "accuracy": curve.accuracy[i], "low": curve.low[i],
         "high": curve.high[i], "line": law[i], "slope_per_decade": fit.slope,
         "shift": float("nan") if shift is None else shift.factor}
        for i in range(len(curve.cost))
    ]  # fmt: skip


def _paint_curves(
    ax: Axes, curves: Sequence[ComputeCurve], factors: Sequence[float], cost_name: str, styles: Sequence[int] = ()
) -> None:
    labels = []
    for place, (c, factor) in enumerate(zip(curves, factors, strict=True)):
        style = styles[place] if styles else place
        colour, x = COLOURS[style % len(COLOURS)], c.cost * factor
        ax.plot(x, c.accuracy, color=colour, lw=1.7, marker=MARKERS[style % len(MARKERS)], ms=4.5, zorder=3)
        ax.vlines(x, c.low, c.high, color=colour, lw=1.1, alpha=0.55, zorder=2)
        labels.append((float(c.accuracy[-1]), c.name, colour))
    xs = np.concatenate([c.cost * f for c, f in zip(curves, factors, strict=True)])
    set_cost_axis(ax, float(xs.min()), float(xs.max()), cost_name)
    before = ax.get_ylim() if not ax.get_autoscaley_on() else (1.0, 0.0)  # panels share their height
    low = np.nanmin([x for c in curves for x in (*c.accuracy, *c.low)])
    high = np.nanmax([x for c in curves for x in (*c.accuracy, *c.high)])
    set_percent_axis(ax, min(float(low), before[0]), max(float(high), before[1]))
    if len(curves) > 1:
        label_line_ends(ax, labels)


def plot_train_or_think(
    systems: Sequence[Attempts],
    title: str = "",
    unit: CostUnit | None = None,
    rule: DecisionRule | None = None,
    training_cost: float | None = None,
    quality: float | None = None,
) -> FigureWithData:
    """Two ways to one accuracy: a trained model (the first log) that samples little, or the present one (the second)
    that samples more. What both cost over the number of queries, and where they cross."""
    if len(systems) != 2:
        raise UsageError(
            f"train or think takes two logs, the trained model's and the present one's, not {len(systems)}"
        )
    if training_cost is None or training_cost < 0:
        raise UsageError("train or think needs --training-cost: what training costs once, in the unit of --cost")
    (trained, present), paid_in, decided_by = sample_curves(systems, unit, rule)
    target = min(trained.accuracy.max(), present.accuracy.max()) if quality is None else quality
    result = train_or_think(
        float(target), training_cost, (trained.cost, trained.accuracy), (present.cost, present.accuracy)
    )
    text = _break_even_text(result, float(target), f"{CURVE_LABELS[decided_by]} of k", COST_LABELS[paid_in])
    even = result.break_even_queries
    middle = even if 0 < even < np.inf else 1e3
    queries = np.geomspace(max(1.0, middle / 100), middle * 100, 60)
    totals = [result.cost(float(q)) for q in queries]
    lines = [
        (name, np.array([t[i] for t in totals], float), COLOURS[i])
        for i, name in enumerate((f"train: {trained.name}", f"think: {present.name}"))
        if totals[0][i] is not None
    ]
    if not lines:
        raise UsageError(f"neither log reaches {100 * target:.1f} %: give a lower --quality")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        for name, total, colour in lines:
            ax.plot(queries, total, color=colour, lw=1.9, label=shorten_name(name))
        ax.set_yscale("log")
        set_cost_axis(ax, queries[0], queries[-1], "queries")
        if 0 < even < np.inf:
            ax.axvline(even, color=MUTED_COLOUR, lw=0.9, ls=DASHES[2])
            ax.annotate(f" {format_amount(even)} queries", (even, 0.03), xycoords=("data", "axes fraction"),
                        fontsize=8.5, color=TEXT_COLOUR)  # fmt: skip
        ax.grid(axis="y")
        ax.legend(fontsize=8.5, loc="upper left")
        set_headline(ax, f"{COST_LABELS[paid_in]} in all, to reach {100 * target:.1f} %")
        add_footnotes(figure, [text])

    rows: list[FigureRow] = [
        {"queries": float(q), "train": t[0], "think": t[1], "in": paid_in, "quality": float(target), "break_even": even}
        for q, t in zip(queries, totals, strict=True)
    ]
    return FigureWithData(make_panels(1, paint, title, size=(5.8, 3.6)), tuple(rows), (text,))


def _break_even_text(result: TrainOrThink, quality: float, rule: str, unit: str) -> str:
    goal = f"{100 * quality:.1f} % ({rule})"
    if result.thinking_query_cost is None:
        return f"only the trained model reaches {goal}"
    if result.trained_query_cost is None:
        return f"only the present model reaches {goal}"
    each = (
        f"{format_amount(result.trained_query_cost)} {unit} per query trained,"
        f" {format_amount(result.thinking_query_cost)} thinking"
    )
    if result.break_even_queries == np.inf:
        return f"{goal}: {each}; training never pays"
    return f"{goal}: {each}; training pays from {format_amount(result.break_even_queries)} queries on"
