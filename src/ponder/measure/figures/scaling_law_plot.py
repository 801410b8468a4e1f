"""The power law of coverage, fitted to few samples and extrapolated to many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    label_line_ends,
    log_spaced_ints,
    make_panels,
    set_headline,
    set_k_axis,
    set_percent_axis,
)
from ponder.measure.figures.coverage_plots import figure_notes, judged_system
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS
from ponder.measure.readers.attempts import Attempts
from ponder.measure.scaling.coverage_power_law import fit_coverage_law_to_counts
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.sample_curve import SampleCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_coverage_law(systems: Sequence[Attempts], title: str = "", reach: float = 10.0) -> FigureWithData:
    """Coverage as c = exp(a k^b) (Brown et al. 2024): fitted on the first quarter of k, tried on the rest, extended."""
    fits = []
    for s in systems:
        a = judged_system(s)
        n, c = a.system.counts
        ks = log_spaced_ints(a.max_k)
        known = [k for k in ks if k <= max(4, a.max_k // 4)] if a.max_k >= 16 else ks
        fits.append((a, coverage_curve(n, c, ks), fit_coverage_law_to_counts(n, c, known), max(known)))
    rows: list[FigureRow] = []

    def paint(figure: Figure, axes: list[Axes]) -> None:
        (ax,) = axes
        labels, low, high = [], 1.0, 0.0
        furthest = max(a.max_k for a, *_ in fits) * reach
        for i, (a, curve, law, known) in enumerate(fits):
            colour = COLOURS[i % len(COLOURS)]
            xs = np.geomspace(1, a.max_k * reach, 120)
            inside = xs <= known * 1.0001
            if law.resampled_parameters is not None:
                bottom, top = law.confidence_band(xs)
                high = max(high, float(top.max()))
                ax.fill_between(xs, bottom, top, color=colour, alpha=0.12, lw=0)
            ax.plot(xs[inside], law(xs[inside]), color=colour, lw=2.0)
            ax.plot(xs[~inside], law(xs[~inside]), color=colour, lw=1.6, ls=DASHES[1])
            marked = [j for j, k in enumerate(curve.k.tolist()) if k & (k - 1) == 0 or j == len(curve.k) - 1]
            for j in marked:
                used = curve.k[j] <= known
                bars = np.maximum([[curve.mean[j] - curve.low[j]], [curve.high[j] - curve.mean[j]]], 0)
                ax.errorbar(
                    curve.k[j], curve.mean[j], bars, fmt=MARKERS[i % len(MARKERS)], ms=4.5, color=colour,
                    mfc=colour if used else "white", lw=1.0, capsize=2, zorder=3,
                )  # fmt: skip
            off = [abs(float(law(k)) - m) for k, m in zip(curve.k, curve.mean, strict=True) if k > known]
            labels.append((float(law(furthest)), a.system.name, colour))
            low = min(low, float(np.nanmin([curve.low, curve.mean])))
            high = max(high, float(law(furthest)), float(np.nanmax([curve.high, curve.mean])))
            rows.extend(_law_rows(a.system.name, curve, law, known, off))
        set_k_axis(ax, int(furthest))
        set_percent_axis(ax, low, high)
        set_headline(ax, "share of problems solved by any of k samples, %")
        if len(fits) > 1:
            label_line_ends(ax, labels)
        _law_text(ax, fits)
        add_footnotes(
            figure,
            figure_notes(systems, "filled: fitted; hollow: held out; dashed: predicted; bands: 95 %, over problems"),
        )

    figure = make_panels(1, paint, title, size=(6.4, 3.7))
    return FigureWithData(figure, tuple(rows))


def _law_text(ax: Axes, fits: Sequence[Any]) -> None:
    for i, (_, curve, law, known) in enumerate(fits):
        off = [abs(float(law(k)) - m) for k, m in zip(curve.k, curve.mean, strict=True) if k > known]
        formula = f"exp({law.a:.2f} k$^{{{law.b:.2f}}}$)" + (
            f", off by {100 * np.mean(off):.1f} points beyond k = {known}" if off else ""
        )
        ax.annotate(
            formula,
            (0.98, 0.03 + 0.075 * (len(fits) - 1 - i)),  # where no curve comes: they rise
            xycoords="axes fraction",
            va="bottom",
            ha="right",
            fontsize=8.5,
            color=COLOURS[i % len(COLOURS)],
        )


def _law_rows(name: str, curve: SampleCurve, law: Any, known: int, off: Sequence[float]) -> list[FigureRow]:
    a, b = law.a_interval or (float("nan"),) * 2, law.b_interval or (float("nan"),) * 2
    out: list[FigureRow] = [
        {"system": name, "k": k, "coverage": curve.mean[i], "low": curve.low[i], "high": curve.high[i],
         "law": float(law(k)), "fitted": k <= known}
        for i, k in enumerate(curve.k.tolist())
    ]  # fmt: skip
    mean_off = float(np.mean(off)) if off else float("nan")
    laws = {
        "a": law.a,
        "a_low": a[0],
        "a_high": a[1],
        "b": law.b,
        "b_low": b[0],
        "b_high": b[1],
        "mean_error": mean_off,
    }
    return [out[0] | laws, *out[1:]] if isinstance(out[0], dict) else out
