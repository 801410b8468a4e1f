"""Accuracy over the number of samples: coverage (pass@k) against votes, and selection curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ponder.errors import UsageError
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
    shorten_name,
)
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS, MUTED_COLOUR, TEXT_COLOUR
from ponder.measure.readers.attempts import LOGPROB_COLUMN, SCORE_COLUMN, Attempts
from ponder.measure.statistics.answer_selection import SubsetScheme, selection_curve
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.intervals import FEW_PROBLEMS
from ponder.measure.statistics.sample_curve import SampleCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_EXACT_SAMPLES = 128  # samples up to which a vote's expectation is worked out; of more, random subsets are counted
CURVE_STYLE_INDEX = {
    "coverage": 0,
    "majority": 1,
    "best": 2,
    "weighted": 3,
    "logprob": 4,
    "one sample": 7,
}  # of COLOURS, everywhere
LineLabels = list[tuple[float, str, str]]  # where a line ends, its name and colour
CURVE_LABELS = {"coverage": "any right (pass@k)", "majority": "majority", "best": "best score",
          "weighted": "weighted vote",
          "logprob": "likeliest", "one sample": "one sample"}  # fmt: skip


@dataclass(frozen=True)
class JudgedSystem:
    """One system on the problems that have a verdict, and the most samples that all of them have."""

    system: Attempts
    max_k: int


def judged_system(system: Attempts) -> JudgedSystem:
    told = system.on_problems([g.problem for g in system.groups if g.mean is not None])
    most = int(told.counts[0].min())
    if most < 2:
        raise UsageError(
            f"{system.name} has a problem with {most} judged sample: a curve over k needs 2 or more of each"
        )
    return JudgedSystem(told, most)


def _curves(asked: JudgedSystem, how: SubsetScheme, said: list[str], subsets: int = 100) -> dict[str, SampleCurve]:
    """Every rule that a system's data allow. Where no verdict says what a rule's choice is worth, that is said."""
    out = _computable_curves(asked, how, subsets)
    if unknown := [rule for rule, curve in out.items() if np.isnan(curve.mean).any()]:
        rules = " and ".join(CURVE_LABELS[rule] for rule in unknown)
        said.append(
            f"{asked.system.name}: no {rules}, since choices fall on attempts without a verdict on every problem"
        )
    return {rule: curve for rule, curve in out.items() if rule not in unknown}


def _computable_curves(asked: JudgedSystem, how: SubsetScheme, subsets: int) -> dict[str, SampleCurve]:
    system, ks = asked.system, log_spaced_ints(asked.max_k)
    out = {"coverage": coverage_curve(*system.counts, ks)}
    if any(g.sample_counts for g in system.groups):
        return out
    right = [g.correct for g in system.groups]
    answers = [g.answers or () for g in system.groups]
    own = [
        range(g.size) for g in system.groups
    ]  # by score an attempt is chosen, not an answer: each has its own verdict
    if system.has_answers:
        votes: SubsetScheme = how if asked.max_k <= MAX_EXACT_SAMPLES else "subsets"
        out["majority"] = selection_curve("majority", answers, right, ks, how=votes, subsets=subsets)
    if scorer := _scorer(system):
        scores = [g.scores[scorer] for g in system.groups]
        out["best"] = selection_curve("best", own, right, ks, scores, how, subsets, "abstain")
        if system.has_answers:
            out["weighted"] = selection_curve("weighted", answers, right, ks, scores, "subsets", subsets, "abstain")
    if LOGPROB_COLUMN in system.scorers:
        scores = [g.scores[LOGPROB_COLUMN] for g in system.groups]
        out["logprob"] = selection_curve("best", own, right, ks, scores, how, subsets, "abstain")
    return out


def _scorer(system: Attempts) -> str:
    """The score to go by: the log's own, or the one there is besides the verdict itself."""
    named = [s for s in system.scorers if s != LOGPROB_COLUMN and not _is_verdict(system, s)]
    return SCORE_COLUMN if SCORE_COLUMN in named else named[0] if len(named) == 1 else ""


def _is_verdict(system: Attempts, scorer: str) -> bool:
    return all(g.scores[scorer] == g.correct for g in system.groups if g.size)


def figure_notes(systems: Sequence[Attempts], band: str) -> list[str]:
    least = min(len(s.groups) for s in systems)
    lines = [band]
    if least < FEW_PROBLEMS:
        lines.append(f"{least} problems: fewer than {FEW_PROBLEMS}, so the curves move by points from luck alone")
    return lines


def _rows(name: str, curves: dict[str, SampleCurve]) -> list[FigureRow]:
    out: list[FigureRow] = []
    for rule, c in curves.items():
        for i, k in enumerate(c.k.tolist()):
            sd = c.sd[i] if c.sd is not None else float("nan")
            row = {"system": name, "curve": rule, "k": k, "mean": c.mean[i], "low": c.low[i], "high": c.high[i]}
            out.append({**row, "sd": sd, "problems": int(c.problems[i])})
    return out


def plot_coverage(systems: Sequence[Attempts], title: str = "") -> FigureWithData:
    """Can it, and does one find it: pass@k beside what a vote or a score chooses.

    A panel for each system; one for all where there is nothing to choose by, and only coverage to show.
    """
    asked, said = [judged_system(s) for s in systems], list[str]()
    curves = [_curves(a, "exact", said) for a in asked]
    together = len(asked) > 1 and all(len(found) == 1 for found in curves)

    def paint(figure: Figure, axes: list[Axes]) -> None:
        if together:
            lines = [(a.system.name, i, c["coverage"]) for i, (a, c) in enumerate(zip(asked, curves, strict=True))]
            ended = [_paint_curves(axes[0], lines, "interval")]
            set_headline(axes[0], "share of problems solved by any of k samples, %")
            set_k_axis(axes[0], max(a.max_k for a in asked))
        else:
            ended = [
                _paint_curves(ax, _labelled_curves(found), "interval") for ax, found in zip(axes, curves, strict=True)
            ]
            for ax, a, found in zip(axes, asked, curves, strict=True):
                set_headline(ax, shorten_name(a.system.name) if len(asked) > 1 else "share of problems solved, %")
                set_k_axis(ax, a.max_k)
                if len(found) > 1:
                    _annotate_gap(ax, found)
        for ax, named in zip(axes, ended, strict=True):  # when the height that panels share is known
            label_line_ends(ax, named)
        add_footnotes(figure, [*figure_notes(systems, "bars: 95 % intervals over problems"), *said])

    figure = make_panels(1 if together else len(asked), paint, title, sharey=True)
    rows = tuple(r for a, c in zip(asked, curves, strict=True) for r in _rows(a.system.name, c))
    return FigureWithData(figure, rows, tuple(said))


def plot_selection(systems: Sequence[Attempts], title: str = "", subsets: int = 100) -> FigureWithData:
    """What a rule chooses among k random samples, with its spread over random subsets."""
    asked, said = [judged_system(s) for s in systems], list[str]()
    curves = [_curves(a, "subsets", said, subsets) for a in asked]
    for a, found in zip(asked, curves, strict=True):
        if len(found) < 2:
            why = said[-1] if said else f"{a.system.name} has neither answers nor scores to choose by"
            raise UsageError(f"{why}: draw its coverage instead")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        ended = [_paint_curves(ax, _labelled_curves(found), "sd") for ax, found in zip(axes, curves, strict=True)]
        for ax, a, found, named in zip(axes, asked, curves, ended, strict=True):
            label_line_ends(ax, named)
            one = float(found["coverage"].mean[0])
            ax.axhline(one, color=MUTED_COLOUR, lw=0.9, ls=DASHES[2], zorder=1)
            set_headline(
                ax,
                shorten_name(a.system.name) if len(asked) > 1 else "share of problems whose chosen answer is right, %",
            )
            set_k_axis(ax, a.max_k)
        spread = f"bars: standard deviation over {subsets} random subsets; dotted: one sample"
        add_footnotes(figure, [*figure_notes(systems, spread), *said])

    figure = make_panels(len(asked), paint, title, sharey=True)
    rows = tuple(r for a, c in zip(asked, curves, strict=True) for r in _rows(a.system.name, c))
    return FigureWithData(figure, rows, tuple(said))


def _labelled_curves(curves: dict[str, SampleCurve]) -> list[tuple[str, int, SampleCurve]]:
    return [(CURVE_LABELS[rule], CURVE_STYLE_INDEX[rule], curve) for rule, curve in curves.items()]


def _paint_curves(ax: Axes, curves: Sequence[tuple[str, int, SampleCurve]], spread: str) -> LineLabels:
    """Each with its name and look. Bars at powers of two, set apart a little: bands would cover each other."""
    lows, highs, named = [], [], []
    for place, (name, look, c) in enumerate(curves):
        colour = COLOURS[look % len(COLOURS)]
        if spread == "interval":
            low, high = c.low, c.high
        else:
            low, high = (c.mean, c.mean) if c.sd is None else (c.mean - c.sd, c.mean + c.sd)
        marks = [i for i, k in enumerate(c.k.tolist()) if k & (k - 1) == 0 or i == len(c.k) - 1]
        shape = MARKERS[look % len(MARKERS)]
        ax.plot(c.k, c.mean, color=colour, lw=1.9, marker=shape, ms=4.2, markevery=marks, clip_on=False, zorder=3)
        apart = 2.0 ** (0.035 * (place - (len(curves) - 1) / 2))
        ax.vlines(
            c.k[marks] * apart, low[marks], high[marks], color=colour, lw=1.1, alpha=0.55, clip_on=False, zorder=2
        )
        named.append((float(c.mean[-1]), name, colour))
        lows.append(float(np.nanmin([low, c.mean])))  # one problem has no interval
        highs.append(float(np.nanmax([high, c.mean])))
    before = ax.get_ylim() if not ax.get_autoscaley_on() else (1.0, 0.0)  # panels share their height
    set_percent_axis(ax, min(*lows, before[0]), max(*highs, before[1]))
    return named


def _annotate_gap(ax: Axes, curves: dict[str, SampleCurve]) -> None:
    """What is there and not found: the distance of coverage from the best choice at the largest k."""
    chosen = max((float(c.mean[-1]), rule) for rule, c in curves.items() if rule != "coverage")
    top = float(curves["coverage"].mean[-1])
    if top - chosen[0] < 0.03:
        return
    bottom, height = ax.get_ylim()
    if top - chosen[0] < 0.2 * (height - bottom):  # no room between the lines
        said = f"{100 * (top - chosen[0]):.0f} points not found"
        ax.annotate(said, (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8, color=TEXT_COLOUR)
        return
    x = float(curves["coverage"].k[-1]) * 0.93
    arrow = {"arrowstyle": "<->", "color": MUTED_COLOUR, "lw": 0.9, "shrinkA": 2, "shrinkB": 2}
    ax.annotate("", (x, top), (x, chosen[0]), arrowprops=arrow)
    ax.annotate(
        f"{100 * (top - chosen[0]):.0f} points\nnot found", (x, (top + chosen[0]) / 2), (-5, 0),
        textcoords="offset points", ha="right", va="center", fontsize=8, color=TEXT_COLOUR,
    )  # fmt: skip
