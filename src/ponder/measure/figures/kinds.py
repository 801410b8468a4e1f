"""The pictures by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from ponder.measure.decide import DecisionRule
from ponder.measure.figures.curves import coverage_against_consensus, selection_curves
from ponder.measure.figures.drawn import FigureWithData
from ponder.measure.figures.law import scaling_law
from ponder.measure.figures.lengths import two_axes
from ponder.measure.figures.pareto import Currency, plot_pareto
from ponder.measure.figures.training import length_growth, training_curves
from ponder.measure.readers import Attempts, ColumnMap, short_labels, read_logs

FigureKind = Literal["coverage", "selection", "law", "two-axis", "pareto", "training", "length"]
FIGURE_KINDS: tuple[FigureKind, ...] = get_args(FigureKind)


def draw_figure(
    kind: FigureKind,
    sources: Sequence[str],
    title: str = "",
    columns: ColumnMap = ColumnMap(),
    method: DecisionRule | None = None,
    currency: Currency | None = None,
    common: bool = False,
    metrics: Sequence[str] = (),
) -> tuple[FigureWithData, list[Attempts]]:
    """A picture of these runs or logs, and what was read of them."""
    if kind == "training":
        return training_curves(sources, title, metrics), []
    if kind == "length":
        return length_growth(sources, title), []
    systems = read_logs(sources, columns)
    systems = [replace(s, name=name) for s, name in zip(systems, short_labels([s.name for s in systems]), strict=True)]
    if kind == "pareto":
        return plot_pareto(systems, title, currency, method, common), systems
    paint = {
        "coverage": coverage_against_consensus,
        "selection": selection_curves,
        "law": scaling_law,
        "two-axis": two_axes,
    }
    return paint[kind](systems, title), systems
