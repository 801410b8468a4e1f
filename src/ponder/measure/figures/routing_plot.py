"""Routing: which problems a weak system hands on to a strong one, and what that costs and brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from ponder.measure.figures.costs import COST_LABELS, CostUnit, common_cost_unit, require_problem_costs
from ponder.measure.figures.coverage_plots import default_scorer
from ponder.measure.figures.theme import COLOURS, DASHES, MUTED_COLOUR
from ponder.measure.readers.attempts import Attempts, ProblemAttempts, align_problems
from ponder.measure.scaling.routing import RoutingCurve, routing_curve
from ponder.measure.statistics.decision_rules import DecisionRule, apply_rule, default_rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VOTES_SIGNAL = "votes"  # how many of the weak system's samples disagree with its most frequent answer


def plot_routing(
    systems: Sequence[Attempts],
    title: str = "",
    unit: CostUnit | None = None,
    rule: DecisionRule | None = None,
    scorer: str | None = None,
    common_only: bool = False,
) -> FigureWithData:
    """A cascade: the first system answers every problem, and those it is least sure of go on to the second.

    It is unsure where its samples disagree, or where their mean score is low. The dashed line sends problems on at
    random; the dotted one knows which of them gain.
    """
    if len(systems) != 2:
        raise UsageError(f"routing takes two logs, the weak system's and the strong one's; got {len(systems)}")
    (weak, strong), notes = align_problems(systems, common_only)
    paid_in = common_cost_unit([weak, strong], unit)
    costs = [require_problem_costs(s, paid_in) for s in (weak, strong)]
    values = [apply_rule(s, rule or _usual_rule(s)) for s in (weak, strong)]
    name = scorer or (VOTES_SIGNAL if _votes(weak) else default_scorer(weak) or VOTES_SIGNAL)
    signal = [_doubt(g, name) for g in weak.groups]
    graded = [i for i, row in enumerate(zip(signal, *values, strict=True)) if None not in row]
    if not graded:
        raise UsageError(f"{weak.name} has no {name} to route by, or no problem has a verdict from both: see --scorer")
    if missing := len(signal) - len(graded):
        notes.append(f"{missing} problems without a signal or a verdict from both are left out")
    doubt, weak_value, strong_value = ([float(c[i] or 0.0) for i in graded] for c in (signal, *values))
    weak_cost, strong_cost = ([c[i] for i in graded] for c in costs)
    curve = routing_curve(doubt, weak_value, strong_value, weak_cost, strong_cost, cascade=True)
    gain = [(s - w) / c for s, w, c in zip(strong_value, weak_value, strong_cost, strict=True)]
    oracle = routing_curve(gain, weak_value, strong_value, weak_cost, strong_cost, cascade=True)
    by = "votes" if name == VOTES_SIGNAL else name
    share = curve.recovered_share
    won = "nothing to gain by routing" if share != share else f"{100 * share:.0f} % of what knowing the gains would add"
    notes = [f"routed by {by}: {won}; mean accuracy over all costs {100 * curve.area:.1f} %", *notes]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        _paint(axes[0], curve, oracle, by, f"{COST_LABELS[paid_in]} per problem")
        set_headline(
            axes[0], f"accuracy, from {shorten_name(weak.name)} alone to {shorten_name(strong.name)} always, %"
        )
        add_footnotes(figure, notes)

    rows: list[FigureRow] = [
        {"curve": label, "cost": c.cost[i], "accuracy": c.quality[i], "in": paid_in, "area": c.area}
        for label, c in ((by, curve), ("oracle", oracle))
        for i in range(len(c.cost))
    ]
    return FigureWithData(make_panels(1, paint, title, size=(6.0, 3.7)), tuple(rows), tuple(notes))


def _votes(system: Attempts) -> bool:
    return system.has_answers and system.samples[1] > 1


def _usual_rule(system: Attempts) -> DecisionRule:
    """The system's own choice, else the majority's answer, else one attempt at random."""
    usual = default_rule(system)
    return "majority" if usual == "mean" and _votes(system) else usual


def _doubt(group: ProblemAttempts, scorer: str) -> float | None:
    """High where the system is unsure of this problem."""
    if scorer != VOTES_SIGNAL:
        known = [s for s in group.scores.get(scorer, ()) if s is not None]
        return -sum(known) / len(known) if known else None
    answers = [a for a in group.answers or () if a is not None]
    return 1 - Counter(answers).most_common(1)[0][1] / group.size if answers else 1.0 if group.answers else None


def _paint(ax: Axes, curve: RoutingCurve, oracle: RoutingCurve, by: str, cost_name: str) -> None:
    ax.plot(oracle.cost, oracle.quality, color=MUTED_COLOUR, lw=1.3, ls=DASHES[2], label="knowing the gains")
    ax.plot(curve.cost, curve.quality, color=COLOURS[0], lw=1.9, marker="o", ms=3, label=f"by {by}")
    ends = [0, -1]
    ax.plot(curve.cost[ends], curve.quality[ends], color=MUTED_COLOUR, lw=1.1, ls=DASHES[1], label="at random")
    both = [*curve.quality, *oracle.quality]
    set_percent_axis(ax, float(min(both)), float(max(both)))
    ax.set_xlabel(cost_name)
    ax.legend(fontsize=8.5, loc="lower right")
