"""The book: claims of the field's papers and lectures, each made from scratch by one command, `ponder book FIGURE`."""

from __future__ import annotations

from importlib import import_module

from ponder.book.figure import BookFigure
from ponder.errors import UnknownName

_MODULES = {"judges": "ponder.book.judges", "bandits": "ponder.book.bandits"}
FIGURES = tuple(_MODULES)


def find_figure(name: str) -> BookFigure:
    """A figure by its name."""
    if name not in _MODULES:
        raise UnknownName("figure", name, FIGURES)
    figure: BookFigure = import_module(_MODULES[name]).FIGURE
    return figure
