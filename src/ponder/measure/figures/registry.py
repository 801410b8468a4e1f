"""Figures by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from ponder.measure.figures.canvas import FigureWithData
from ponder.measure.figures.coverage_plots import plot_coverage, plot_selection
from ponder.measure.figures.length_plots import plot_samples_and_length
from ponder.measure.figures.pareto_plot import CostUnit, plot_pareto
from ponder.measure.figures.scaling_law_plot import plot_coverage_law
from ponder.measure.figures.training_plots import plot_length_growth, plot_training_metrics
from ponder.measure.readers import Attempts, ColumnMap, read_logs, short_labels
from ponder.measure.statistics.decision_rules import DecisionRule

FigureKind = Literal["coverage", "selection", "law", "two-axis", "pareto", "training", "length"]
FIGURE_KINDS: tuple[FigureKind, ...] = get_args(FigureKind)


def draw_figure(
    kind: FigureKind,
    sources: Sequence[str],
    title: str = "",
    columns: ColumnMap = ColumnMap(),
    method: DecisionRule | None = None,
    currency: CostUnit | None = None,
    common: bool = False,
    metrics: Sequence[str] = (),
) -> tuple[FigureWithData, list[Attempts]]:
    """Draw a figure of these runs or logs, and say what was read from them."""
    if kind == "training":
        return plot_training_metrics(sources, title, metrics), []
    if kind == "length":
        return plot_length_growth(sources, title), []
    systems = read_logs(sources, columns)
    systems = [replace(s, name=name) for s, name in zip(systems, short_labels([s.name for s in systems]), strict=True)]
    if kind == "pareto":
        return plot_pareto(systems, title, currency, method, common), systems
    paint = {
        "coverage": plot_coverage,
        "selection": plot_selection,
        "law": plot_coverage_law,
        "two-axis": plot_samples_and_length,
    }
    return paint[kind](systems, title), systems
