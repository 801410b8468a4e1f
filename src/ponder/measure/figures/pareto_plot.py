"""Systems by accuracy and cost per problem, with their Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    make_panels,
    set_cost_axis,
    set_headline,
    set_percent_axis,
    shorten_name,
)
from ponder.measure.figures.costs import COST_LABELS, CostUnit, common_cost_unit, require_problem_costs
from ponder.measure.figures.theme import COLOURS, MUTED_COLOUR, TEXT_COLOUR
from ponder.measure.readers.attempts import Attempts, align_problems
from ponder.measure.readers.score_table import ScoreTable
from ponder.measure.scaling.pareto import FrontierPoint, pareto_frontier, pareto_frontier_with_intervals
from ponder.measure.statistics.decision_rules import DecisionRule, apply_rule, default_rule
from ponder.measure.statistics.intervals import FEW_PROBLEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_pareto(
    systems: Sequence[Attempts],
    title: str = "",
    unit: CostUnit | None = None,
    rule: DecisionRule | None = None,
    common_only: bool = False,
) -> FigureWithData:
    """Each system at its mean cost per problem and its accuracy, both with 95 % intervals over problems."""
    aligned, notes = align_problems(systems, common_only)
    paid_in = common_cost_unit(aligned, unit)
    rules = {default_rule(s) for s in aligned}
    decided_by: DecisionRule = rule or (rules.pop() if len(rules) == 1 else "mean")
    values = [apply_rule(s, decided_by) for s in aligned]
    graded = [i for i in range(len(values[0])) if all(v[i] is not None for v in values)]
    if not graded:
        raise UsageError("no problem has a verdict from every system: there is nothing to compare")
    if missing := len(values[0]) - len(graded):
        notes.append(f"{missing} problems without a verdict from every system are left out")
    costs = [require_problem_costs(s, paid_in) for s in aligned]
    points = pareto_frontier_with_intervals(
        [s.name for s in aligned],
        [[c[i] for i in graded] for c in costs],
        [[float(v[i] or 0.0) for i in graded] for v in values],
    )
    if len(graded) < FEW_PROBLEMS:
        notes.append(f"{len(graded)} problems: fewer than {FEW_PROBLEMS}, so places move from luck alone")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint(axes[0], points, f"{COST_LABELS[paid_in]} per problem")
        set_headline(axes[0], f"accuracy ({decided_by}), %")
        add_footnotes(figure, ["crosses: 95 % intervals over problems; line: frontier", *notes])

    rows: list[FigureRow] = [
        {"system": p.name, "cost": p.cost, "cost_low": p.cost_interval[0], "cost_high": p.cost_interval[1],
         "in": paid_in, "accuracy": p.quality, "low": p.quality_interval[0], "high": p.quality_interval[1],
         "on_frontier": p.on_frontier, "chance_on_frontier": p.frontier_probability}
        for p in points
    ]  # fmt: skip
    return FigureWithData(make_panels(1, paint, title, size=(6.0, 3.8)), tuple(rows), tuple(notes))


def plot_pareto_table(table: ScoreTable, title: str = "") -> FigureWithData:
    """The frontier of a table of names, scores and costs; intervals of the scores where the table has them."""
    on_frontier = pareto_frontier([p.cost for p in table.points], [p.score for p in table.points])
    points = [
        FrontierPoint(p.name, p.cost, p.score, (p.cost, p.cost),
                      (p.low if p.low == p.low else p.score, p.high if p.high == p.high else p.score),
                      bool(on), float(on))
        for p, on in zip(table.points, on_frontier, strict=True)
    ]  # fmt: skip

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint(axes[0], points, table.cost_column, percent=table.is_share)
        set_headline(axes[0], f"{table.score_column}{', %' if table.is_share else ''}")
        bars = ["bars: the intervals of the table"] if any(p.low == p.low for p in table.points) else []
        add_footnotes(figure, ["; ".join(["line: frontier", *bars])])

    rows: list[FigureRow] = [
        {"system": p.name, "cost": p.cost, "in": table.cost_column, "accuracy": p.score, "low": p.low, "high": p.high,
         "on_frontier": bool(on)}
        for p, on in zip(table.points, on_frontier, strict=True)
    ]  # fmt: skip
    return FigureWithData(make_panels(1, paint, title, size=(6.0, 3.8)), tuple(rows))


def _paint(ax: Axes, points: Sequence[FrontierPoint], cost: str, percent: bool = True) -> None:
    on = sorted((p for p in points if p.on_frontier), key=lambda p: p.cost)
    spread = max(p.cost for p in points) / max(min(p.cost for p in points), 1e-300)
    known = [x for p in points for x in (p.cost, *p.cost_interval) if x == x]
    low, high = min(x for x in known if x > 0 or spread <= 8), max(known)
    if spread > 8:
        set_cost_axis(ax, low, high, cost)
        ax.set_xlim(low / 1.5, high * 2.6)
    else:
        wide = high - low or 0.2 * high
        ax.set_xlim(max(0.0, low - 0.1 * wide), high + 0.35 * wide)
    bottom = float(np.nanmin([x for p in points for x in (p.quality, p.quality_interval[0])]))
    top = float(np.nanmax([x for p in points for x in (p.quality, p.quality_interval[1])]))
    if percent:
        set_percent_axis(ax, bottom - 0.05 * (top - bottom), top)
    else:
        ax.set_ylim(bottom - 0.1 * (top - bottom or 1), top + 0.1 * (top - bottom or 1))
        ax.grid(axis="y")
    right = ax.get_xlim()[1]
    xs = [*[p.cost for p in on for _ in range(2)][1:], right]
    ys = [p.quality for p in on for _ in range(2)]
    ax.plot(xs, ys, color=COLOURS[5], lw=1.8, alpha=0.6, zorder=1)
    for p in points:
        colour = COLOURS[0] if p.on_frontier else MUTED_COLOUR
        ax.plot(p.cost_interval, [p.quality] * 2, color=colour, lw=1.1, zorder=2)
        ax.plot([p.cost] * 2, p.quality_interval, color=colour, lw=1.1, zorder=2)
        ax.plot(p.cost, p.quality, "o", ms=6, color=colour, mfc=colour if p.on_frontier else "white", zorder=3)
        sure = f"  ({100 * p.frontier_probability:.0f} % on it)" if 0.02 < p.frontier_probability < 0.98 else ""
        left = ax.transAxes.inverted().transform(ax.transData.transform((p.cost, p.quality)))[0] > 0.6
        ax.annotate(
            f"{shorten_name(p.name)}{sure}", (p.cost, p.quality), (-7 if left else 7, -9 if not p.on_frontier else 7),
            textcoords="offset points", fontsize=8.5, color=TEXT_COLOUR if p.on_frontier else MUTED_COLOUR, va="center",
            ha="right" if left else "left",
        )  # fmt: skip
    ax.set_xlabel(cost)
