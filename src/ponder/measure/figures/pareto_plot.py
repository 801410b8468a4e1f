"""Systems by accuracy and cost per problem, with their Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    make_panels,
    set_headline,
    set_percent_axis,
    shorten_name,
)
from ponder.measure.figures.theme import COLOURS, MUTED_COLOUR, TEXT_COLOUR
from ponder.measure.readers.attempts import Attempts, ProblemAttempts, align_problems
from ponder.measure.scaling.pareto import FrontierPoint, pareto_frontier_with_intervals
from ponder.measure.statistics.decision_rules import DecisionRule, apply_rule, default_rule
from ponder.measure.statistics.intervals import FEW_PROBLEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CostUnit = Literal["tokens", "flops", "seconds", "dollars"]
COST_UNITS: tuple[CostUnit, ...] = get_args(CostUnit)
COST_LABELS = {"tokens": "tokens written", "flops": "FLOPs", "seconds": "seconds", "dollars": "dollars"}


def plot_pareto(
    systems: Sequence[Attempts],
    title: str = "",
    currency: CostUnit | None = None,
    method: DecisionRule | None = None,
    common: bool = False,
) -> FigureWithData:
    """Each system at its mean cost per problem and its accuracy, both with 95 % intervals over problems."""
    aligned, said = align_problems(systems, common)
    paid = currency or next((c for c in COST_UNITS if all(_costs(s, c) is not None for s in aligned)), None)
    if paid is None:
        raise UsageError(
            "the systems have no cost in common (tokens, flops, seconds, dollars): their logs do not tell it"
        )
    ways = {default_rule(s) for s in aligned}
    rule: DecisionRule = method or (ways.pop() if len(ways) == 1 else "mean")
    worths = [apply_rule(s, rule) for s in aligned]
    kept = [i for i in range(len(worths[0])) if all(w[i] is not None for w in worths)]
    if not kept:
        raise UsageError("no problem has a verdict from every system: there is nothing to compare")
    if left := len(worths[0]) - len(kept):
        said.append(f"{left} problems without a verdict from every system are left out")
    costs = [_costs(s, paid) for s in aligned]
    if unknown := [s.name for s, c in zip(aligned, costs, strict=True) if c is None]:
        raise UsageError(f"{unknown[0]} does not tell its {paid}: choose another --cost, or leave it out")
    places = pareto_frontier_with_intervals(
        [s.name for s in aligned],
        [[c[i] for i in kept] for c in costs if c is not None],
        [[float(w[i] or 0.0) for i in kept] for w in worths],
    )
    if len(kept) < FEW_PROBLEMS:
        said.append(f"{len(kept)} problems: fewer than {FEW_PROBLEMS}, so places move from luck alone")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint(axes[0], places, f"{COST_LABELS[paid]} per problem")
        set_headline(axes[0], f"accuracy ({rule}), %")
        add_footnotes(figure, ["crosses: 95 % intervals over problems; line: frontier", *said])

    rows: list[FigureRow] = [
        {"system": p.name, "cost": p.cost, "cost_low": p.cost_interval[0], "cost_high": p.cost_interval[1], "in": paid,
         "accuracy": p.quality, "low": p.quality_interval[0], "high": p.quality_interval[1],
         "on_frontier": p.on_frontier, "chance_on_frontier": p.frontier_probability}
        for p in places
    ]  # fmt: skip
    return FigureWithData(make_panels(1, paint, title, size=(6.0, 3.8)), tuple(rows), tuple(said))


def _costs(system: Attempts, currency: CostUnit) -> list[float] | None:
    """Of each problem; None where any is unknown, or all are 0, which is how what nobody counted stands."""
    each = [_cost(g, currency) for g in system.groups]
    known = [c for c in each if c is not None]
    return known if len(known) == len(each) and any(known) else None


def _cost(group: ProblemAttempts, currency: CostUnit) -> float | None:
    if group.cost is not None:
        return float(getattr(group.cost, "generated_tokens" if currency == "tokens" else currency))
    if currency == "tokens" and group.tokens is not None and None not in group.tokens:
        return float(sum(t or 0 for t in group.tokens))
    return None


def _paint(ax: Axes, places: Sequence[FrontierPoint], cost: str) -> None:
    on = sorted((p for p in places if p.on_frontier), key=lambda p: p.cost)
    spread = max(p.cost for p in places) / max(min(p.cost for p in places), 1e-300)
    if spread > 8:
        ax.set_xscale("log")
    known = [x for p in places for x in (p.cost, *p.cost_interval) if x == x]
    low, high = min(x for x in known if x > 0 or spread <= 8), max(known)
    if spread > 8:
        ax.set_xlim(low / 1.5, high * 2.6)
    else:
        wide = high - low or 0.2 * high
        ax.set_xlim(max(0.0, low - 0.1 * wide), high + 0.35 * wide)
    set_percent_axis(ax, min(p.quality_interval[0] for p in places), max(p.quality_interval[1] for p in places))
    right = ax.get_xlim()[1]
    xs = [*[p.cost for p in on for _ in range(2)][1:], right]
    ys = [p.quality for p in on for _ in range(2)]
    ax.plot(xs, ys, color=COLOURS[5], lw=1.8, alpha=0.6, zorder=1)
    for p in places:
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
