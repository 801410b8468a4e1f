"""Figures of runs and logs, each with its numbers: `draw_figure(kind, ...)`, then `save`."""

from ponder.measure.figures.canvas import FigureWithData
from ponder.measure.figures.figure_registry import FIGURE_KINDS, FigureKind, FigureSettings, draw_figure

__all__ = ["FIGURE_KINDS", "FigureKind", "FigureSettings", "FigureWithData", "draw_figure"]
