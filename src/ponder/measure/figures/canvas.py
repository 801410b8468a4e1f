"""A figure with its numbers, and the layout that all figures share. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.theme import MUTED_COLOUR, STYLE, TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FigureRow = Mapping[str, Any]
PANEL_INCHES = 4.3, 3.2  # inches
MAX_PANELS_PER_ROW = 4  # panels in a row
MAX_LABEL_CHARS = 30  # characters of a name


@dataclass(frozen=True)
class FigureWithData:
    figure: Figure
    rows: tuple[FigureRow, ...]  # every number in it
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> list[Path]:
        """The picture as PNG and SVG, its numbers as CSV beside them."""
        stem = Path(path)
        stem = stem.with_suffix("") if stem.suffix in (".png", ".svg", ".csv") else stem
        try:
            return self._save(stem)
        except OSError as why:
            raise UsageError(f"cannot write {stem}.png ({why.strerror or why}); give another path with --out") from None

    def _save(self, stem: Path) -> list[Path]:
        import matplotlib

        stem.parent.mkdir(parents=True, exist_ok=True)
        out = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg", ".csv")]
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a name in letters that the font lacks is drawn as boxes
            self.figure.savefig(out[0], dpi=200, facecolor="white")
            self.figure.savefig(out[1], facecolor="white", metadata={"Date": None})
        with open(out[2], "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(dict.fromkeys(k for row in self.rows for k in row)))
            table.writeheader()
            table.writerows({k: csv_cell(v) for k, v in row.items()} for row in self.rows)
        return out


def csv_cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.6g}"
    return value


def make_panels(count: int, paint: Callable[[Figure, list[Axes]], None], title: str = "", **more: Any) -> Figure:
    """A figure of so many panels in our style, painted by the caller."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as New
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = more.pop("columns", min(count, MAX_PANELS_PER_ROW) if count not in (5, 6) else 3)
    lines = -(-count // columns)
    width, height = more.pop("size", PANEL_INCHES)
    with matplotlib.rc_context(STYLE):
        figure = New(
            figsize=(width * columns + 0.4, height * lines + 0.3 * bool(title)),
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.05),
        )
        FigureCanvasAgg(figure)  # draws without a display, and leaves pyplot's state alone
        grid = figure.subplots(lines, columns, squeeze=False, **more)
        axes = list(grid.flat)
        for unused in axes[count:]:
            unused.remove()
        paint(figure, axes[:count])
        if title:
            figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.014, ha="left", color=TEXT_COLOUR)
    return figure


def shorten_name(name: str) -> str:
    """A name that leaves room for what it names; its end tells more than its beginning."""
    return name if len(name) <= MAX_LABEL_CHARS else f"...{name[3 - MAX_LABEL_CHARS :]}"


def set_headline(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9, color=TEXT_COLOUR)


def set_k_axis(axes: Axes, most: int, name: str = "samples per problem, k") -> None:
    """An axis of k: doubled at each tick."""
    axes.set_xscale("log", base=2)
    ticks = [2**i for i in range(0, 40) if 2**i <= most]
    step = max(1, -(-len(ticks) // 8))
    axes.set_xticks(ticks[::step], [f"{t:,}" for t in ticks[::step]])
    axes.minorticks_off()
    axes.set_xlim(0.93, most * 1.06)
    axes.set_xlabel(name)


def set_cost_axis(axes: Axes, low: float, high: float, name: str) -> None:
    """A logarithmic axis of cost, with numbers that can be read: 300, 1,000, 3e+12."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low / 1.12, high * 1.12)
    decades = np.log10(high / low)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 2.5 else (1.0,), numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_amount(x)))
    axes.set_xlabel(name)


def format_amount(x: float) -> str:
    """A number for an axis or a note: 0.03, 300, 12,000, 3e+12."""
    if x and not 1e-3 <= abs(x) < 1e6:
        return f"{x:.2g}"
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:g}"


def set_percent_axis(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """An axis of shares in percent, as wide as what is drawn needs, in round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    span = max(high - low, 0.02)
    bottom, top = max(0.0, low - 0.06 * span), min(1.0, high + 0.06 * span)
    if bottom < 0.12:
        bottom = 0.0
    axes.set_ylim(bottom, top + 0.004)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}"))
    axes.grid(axis="y")


def label_line_ends(axes: Axes, labels: Sequence[tuple[float, str, str]], x: float = 1.015) -> None:
    """Name lines at their right ends: (height, text, colour) each, pushed apart where they would overlap."""
    bottom, top = axes.get_ylim()
    gap = 0.062 * (top - bottom)
    ordered = sorted(labels, key=lambda item: item[0])
    places = spread_labels([h for h, *_ in ordered], gap)
    places = [max(place, bottom + (i + 0.3) * gap) for i, place in enumerate(places)]  # none on the axis below
    for (height, text, colour), at in zip(ordered, places, strict=True):
        axes.annotate(
            shorten_name(text), (1, height), (x, at), xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"), color=colour, va="center", ha="left", fontsize=8.5,
            annotation_clip=False,
        )  # fmt: skip


def spread_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, at least so far from each other, those that had to move around their common middle."""
    stacks: list[list[float]] = []
    for height in heights:
        stacks.append([height])
        while (
            len(stacks) > 1
            and _mean_height(stacks[-1]) - _mean_height(stacks[-2]) < gap * len(stacks[-1] + stacks[-2]) / 2
        ):
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    return [_mean_height(s) + gap * (i - (len(s) - 1) / 2) for s in stacks for i in range(len(s))]


def _mean_height(heights: Sequence[float]) -> float:
    return sum(heights) / len(heights)


def add_footnotes(figure: Figure, lines: Sequence[str]) -> None:
    """Notes below the figure that a reader needs to interpret it."""
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=7.5, color=MUTED_COLOUR, x=0.014, ha="left")


def log_spaced_ints(most: int, count: int = 24) -> list[int]:
    """Whole numbers from 1 to `most`, even on a log scale, powers of two among them."""
    if most < 1:
        raise UsageError("there is no k to draw: every problem needs at least one judged sample")
    even = {round(x) for x in np.geomspace(1, most, count)}
    return sorted(even | {2**i for i in range(most.bit_length()) if 2**i <= most} | {most})
