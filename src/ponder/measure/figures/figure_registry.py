"""Figures by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from ponder.errors import UsageError
from ponder.measure.figures.calibration_plot import plot_reliability
from ponder.measure.figures.canvas import FigureWithData
from ponder.measure.figures.compute_plots import plot_compute, plot_compute_table, plot_train_or_think
from ponder.measure.figures.costs import CostUnit
from ponder.measure.figures.coverage_plots import plot_coverage, plot_selection
from ponder.measure.figures.length_plots import plot_samples_and_length
from ponder.measure.figures.pareto_plot import plot_pareto, plot_pareto_table
from ponder.measure.figures.routing_plot import plot_routing
from ponder.measure.figures.scaling_law_plot import plot_coverage_law
from ponder.measure.figures.training_plots import TrainingAxis, plot_length_growth, plot_training_metrics
from ponder.measure.figures.vote_plots import plot_condorcet, plot_votes
from ponder.measure.readers import Attempts, ColumnMap, read_logs, short_labels
from ponder.measure.readers.score_table import ScoreTable, read_score_tables
from ponder.measure.statistics.decision_rules import DecisionRule

FigureKind = Literal[
    "coverage", "selection", "votes", "condorcet", "law", "two-axis", "compute", "pareto", "routing", "train-or-think",
    "reliability", "training", "length",
]  # fmt: skip
FIGURE_KINDS: tuple[FigureKind, ...] = get_args(FigureKind)


@dataclass(frozen=True)
class FigureSettings:
    """What a figure may be asked for. A kind reads those that it has a use for."""

    title: str = ""  # empty: the names of the runs
    columns: ColumnMap = ColumnMap()
    select: DecisionRule | None = None
    scorer: str | None = None
    cost: CostUnit | None = None
    common_problems: bool = False
    metrics: Sequence[str] = ()
    x: TrainingAxis = "step"
    budgets: Sequence[int] = ()
    training_cost: float | None = None
    quality: float | None = None


def draw_figure(
    kind: FigureKind, sources: Sequence[str], settings: FigureSettings = FigureSettings()
) -> tuple[FigureWithData, list[Attempts]]:
    """Draw a figure of these runs, logs or tables; also what was read from them."""
    if kind == "training":
        return plot_training_metrics(sources, settings.title, settings.metrics, settings.x), []
    if kind == "length":
        return plot_length_growth(sources, settings.title), []
    table = read_score_tables(sources) if kind in ("pareto", "compute") else None
    if table is not None:
        return _draw_table(kind, table, replace(settings, title=settings.title or _title(sources))), []
    systems = read_logs(sources, settings.columns)
    title = settings.title or _title([s.name for s in systems])
    names = short_labels([s.name for s in systems])
    systems = [replace(s, name=name) for s, name in zip(systems, names, strict=True)]
    return _DRAW[kind](systems, title, settings), systems


def _title(names: Sequence[str]) -> str:
    return ", ".join(Path(n).name or n for n in names[:3]) + " ..." * (len(names) > 3)


def _draw_table(kind: FigureKind, table: ScoreTable, settings: FigureSettings) -> FigureWithData:
    if given := next((f for f in ("select", "cost") if getattr(settings, f) is not None), None):
        raise UsageError(f"--{given} is for runs and logs: a table of systems has one score and one cost of each")
    return (plot_pareto_table if kind == "pareto" else plot_compute_table)(table, settings.title)


_DRAW: dict[FigureKind, Callable[[Sequence[Attempts], str, FigureSettings], FigureWithData]] = {
    "coverage": lambda systems, title, s: plot_coverage(systems, title, s.cost),
    "selection": lambda systems, title, s: plot_selection(systems, title),
    "votes": lambda systems, title, s: plot_votes(systems, title),
    "condorcet": lambda systems, title, s: plot_condorcet(systems, title),
    "law": lambda systems, title, s: plot_coverage_law(systems, title),
    "two-axis": lambda systems, title, s: plot_samples_and_length(systems, title, budgets=s.budgets),
    "compute": lambda systems, title, s: plot_compute(systems, title, s.cost, s.select),
    "pareto": lambda systems, title, s: plot_pareto(systems, title, s.cost, s.select, s.common_problems),
    "routing": lambda systems, title, s: plot_routing(systems, title, s.cost, s.select, s.scorer, s.common_problems),
    "train-or-think": lambda systems, title, s: plot_train_or_think(
        systems, title, s.cost, s.select, s.training_cost, s.quality
    ),
    "reliability": lambda systems, title, s: plot_reliability(systems, title, s.scorer),
}
