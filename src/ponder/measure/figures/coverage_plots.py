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
    set_cost_axis,
    set_headline,
    set_k_axis,
    set_percent_axis,
    shorten_name,
)
from ponder.measure.figures.costs import COST_LABELS, CostUnit, sample_cost
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS, MUTED_COLOUR, TEXT_COLOUR
from ponder.measure.readers.attempts import LOGPROB_COLUMNS, SCORE_COLUMN, Attempts, ProblemAttempts
from ponder.measure.statistics.answer_selection import SubsetScheme, selection_curve
from ponder.measure.statistics.coverage import coverage_curve
from ponder.measure.statistics.intervals import FEW_PROBLEMS
from ponder.measure.statistics.sample_curve import SampleCurve
from ponder.reason.operators.vote import stated_answers

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
    "logprob_sum": 5,
    "one sample": 7,
}  # of COLOURS, everywhere
StyledCurve = tuple[str, int, SampleCurve, float]  # its name, its colour and mark, and what one sample costs
LineLabels = list[tuple[float, str, str]]  # where a line ends, its name and colour
CURVE_LABELS = {"coverage": "any right (pass@k)", "majority": "majority", "best": "best score",
          "weighted": "weighted vote",
          "logprob": "likeliest per token", "logprob_sum": "likeliest", "one sample": "one sample"}  # fmt: skip


@dataclass(frozen=True)
class JudgedSystem:
    """One system on the problems that have a verdict, and the most samples that all of them have."""

    system: Attempts
    max_k: int


def judged_system(system: Attempts) -> JudgedSystem:
    graded = system.on_problems([g.problem for g in system.groups if g.mean is not None])
    max_k = int(graded.counts[0].min())
    if max_k < 2:
        raise UsageError(
            f"{system.name} has a problem with {max_k} judged sample: a curve over k needs 2 or more of each"
        )
    return JudgedSystem(graded, max_k)


def rule_curve(system: Attempts, rule: str, ks: Sequence[int]) -> SampleCurve:
    """Accuracy over k samples: of the majority's answer, or of any (coverage). Exact up to MAX_EXACT_SAMPLES."""
    if rule == "coverage":
        return coverage_curve(*system.counts, ks)
    groups = [g for g in system.groups if g.size]
    how: SubsetScheme = "exact" if max(ks) <= MAX_EXACT_SAMPLES else "subsets"
    return selection_curve("majority", [g.answers or () for g in groups], [g.correct for g in groups], ks, how=how)


def _curves(graded: JudgedSystem, how: SubsetScheme, notes: list[str], subsets: int = 100) -> dict[str, SampleCurve]:
    """Every rule that a system's data allow. A rule whose choices have no verdict is left out, with a note."""
    out = _computable_curves(graded, how, subsets)
    if unknown := [rule for rule, curve in out.items() if np.isnan(curve.mean).any()]:
        rules = " and ".join(CURVE_LABELS[rule] for rule in unknown)
        notes.append(
            f"{graded.system.name}: no {rules}, since choices fall on attempts without a verdict on every problem"
        )
    return {rule: curve for rule, curve in out.items() if rule not in unknown}


def _computable_curves(graded: JudgedSystem, how: SubsetScheme, subsets: int) -> dict[str, SampleCurve]:
    system, ks = graded.system, log_spaced_ints(graded.max_k)
    out = {"coverage": coverage_curve(*system.counts, ks)}
    if any(g.sample_counts for g in system.groups):
        return out
    right = [g.correct for g in system.groups]
    answers = [g.answers or () for g in system.groups]
    own = [_attempts_to_choose(g) for g in system.groups]
    if system.has_answers:
        votes: SubsetScheme = how if graded.max_k <= MAX_EXACT_SAMPLES else "subsets"
        out["majority"] = selection_curve("majority", answers, right, ks, how=votes, subsets=subsets)
    if scorer := default_scorer(system):
        scores = [g.scores[scorer] for g in system.groups]
        out["best"] = selection_curve("best", own, right, ks, scores, how, subsets, "abstain")
        if system.has_answers:
            out["weighted"] = selection_curve("weighted", answers, right, ks, scores, "subsets", subsets, "abstain")
    for name in (column for column in LOGPROB_COLUMNS if column in system.scorers):
        scores = [g.scores[name] for g in system.groups]
        out[name] = selection_curve("best", own, right, ks, scores, how, subsets, "abstain")
    return out


def _attempts_to_choose(group: ProblemAttempts) -> list[int | None]:
    """By score an attempt is chosen, not an answer: each has its own verdict. One that states nothing is not chosen."""
    able = stated_answers(group.answers) if group.answers is not None else range(group.size)
    return [i if i in set(able) else None for i in range(group.size)]


def default_scorer(system: Attempts) -> str:
    """The score to go by: the log's own, or the one there is besides the verdict itself."""
    names = [s for s in system.scorers if s not in LOGPROB_COLUMNS and not _is_verdict(system, s)]
    return SCORE_COLUMN if SCORE_COLUMN in names else names[0] if len(names) == 1 else ""


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


def plot_coverage(systems: Sequence[Attempts], title: str = "", unit: CostUnit | None = None) -> FigureWithData:
    """Can it, and does one find it: pass@k beside what a vote or a score chooses, over k or over what k samples cost.

    A panel for each system; one for all where there is nothing to choose by, or where cost is the axis they share.
    """
    notes: list[str] = []
    graded = [judged_system(s) for s in systems]
    curves = [_curves(j, "exact", notes) for j in graded]
    together = len(graded) > 1 and (unit is not None or all(len(c) == 1 for c in curves))
    if together:
        curves = [{"coverage": c["coverage"]} for c in curves]
    costs = [1.0 if unit is None else sample_cost(j.system, unit) for j in graded]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        if together:
            lines = [
                (j.system.name, i, c["coverage"], cost)
                for i, (j, c, cost) in enumerate(zip(graded, curves, costs, strict=True))
            ]
            ends = [_paint_curves(axes[0], lines, "interval")]
            set_headline(axes[0], "share of problems solved by any of k samples, %")
            spans = [(min(costs), max(cost * j.max_k for j, cost in zip(graded, costs, strict=True)))]
        else:
            ends = [
                _paint_curves(ax, _labelled_curves(c, cost), "interval")
                for ax, c, cost in zip(axes, curves, costs, strict=True)
            ]
            spans = [(cost, cost * j.max_k) for j, cost in zip(graded, costs, strict=True)]
            for ax, j, c, cost in zip(axes, graded, curves, costs, strict=True):
                set_headline(ax, shorten_name(j.system.name) if len(graded) > 1 else "share of problems solved, %")
                if len(c) > 1:
                    _annotate_gap(ax, c, cost)
        for ax, (low, high) in zip(axes, spans, strict=True):
            set_k_axis(ax, int(high)) if unit is None else set_cost_axis(ax, low, high, _cost_axis_name(unit))
        for ax, names in zip(axes, ends, strict=True):  # when the height that panels share is known
            label_line_ends(ax, names)
        how = [] if unit is None else ["k samples cost k times the mean cost of one"]
        add_footnotes(figure, [*figure_notes(systems, "; ".join(["bars: 95 % intervals over problems", *how])), *notes])

    figure = make_panels(1 if together else len(graded), paint, title, sharey=True)
    rows = tuple(
        row if unit is None else {**row, "cost": row["k"] * cost, "in": unit}
        for j, c, cost in zip(graded, curves, costs, strict=True)
        for row in _rows(j.system.name, c)
    )
    return FigureWithData(figure, rows, tuple(notes))


def _cost_axis_name(unit: CostUnit) -> str:
    return f"{COST_LABELS[unit]} per problem"


def plot_selection(systems: Sequence[Attempts], title: str = "", subsets: int = 100) -> FigureWithData:
    """What a rule chooses among k random samples, with its spread over random subsets."""
    notes: list[str] = []
    graded = [judged_system(s) for s in systems]
    curves = [_curves(j, "subsets", notes, subsets) for j in graded]
    for j, c in zip(graded, curves, strict=True):
        if len(c) < 2:
            why = notes[-1] if notes else f"{j.system.name} has neither answers nor scores to choose by"
            raise UsageError(f"{why}: draw its coverage instead")

    def paint(figure: Figure, axes: list[Axes]) -> None:
        ends = [_paint_curves(ax, _labelled_curves(c), "sd") for ax, c in zip(axes, curves, strict=True)]
        for ax, j, c, names in zip(axes, graded, curves, ends, strict=True):
            label_line_ends(ax, names)
            one_sample = float(c["coverage"].mean[0])
            ax.axhline(one_sample, color=MUTED_COLOUR, lw=0.9, ls=DASHES[2], zorder=1)
            set_headline(
                ax,
                shorten_name(j.system.name) if len(graded) > 1 else "share of problems whose chosen answer is right, %",
            )
            set_k_axis(ax, j.max_k)
        spread = f"bars: standard deviation over {subsets} random subsets; dotted: one sample"
        add_footnotes(figure, [*figure_notes(systems, spread), *notes])

    figure = make_panels(len(graded), paint, title, sharey=True)
    rows = tuple(r for j, c in zip(graded, curves, strict=True) for r in _rows(j.system.name, c))
    return FigureWithData(figure, rows, tuple(notes))


def _labelled_curves(curves: dict[str, SampleCurve], cost: float = 1.0) -> list[StyledCurve]:
    return [(CURVE_LABELS[rule], CURVE_STYLE_INDEX[rule], curve, cost) for rule, curve in curves.items()]


def _paint_curves(ax: Axes, curves: Sequence[StyledCurve], spread: str) -> LineLabels:
    """Each with its name and style. Bars at powers of two, set apart a little: bands would cover each other."""
    lows, highs, labels = [], [], []
    for place, (name, style, c, cost) in enumerate(curves):
        colour = COLOURS[style % len(COLOURS)]
        if spread == "interval":
            low, high = c.low, c.high
        else:
            low, high = (c.mean, c.mean) if c.sd is None else (c.mean - c.sd, c.mean + c.sd)
        marks = [i for i, k in enumerate(c.k.tolist()) if k & (k - 1) == 0 or i == len(c.k) - 1]
        shape = MARKERS[style % len(MARKERS)]
        x = c.k * cost
        ax.plot(x, c.mean, color=colour, lw=1.9, marker=shape, ms=4.2, markevery=marks, clip_on=False, zorder=3)
        apart = 2.0 ** (0.035 * (place - (len(curves) - 1) / 2))
        ax.vlines(x[marks] * apart, low[marks], high[marks], color=colour, lw=1.1, alpha=0.55, clip_on=False, zorder=2)
        labels.append((float(c.mean[-1]), name, colour))
        lows.append(float(np.nanmin([low, c.mean])))  # one problem has no interval
        highs.append(float(np.nanmax([high, c.mean])))
    before = ax.get_ylim() if not ax.get_autoscaley_on() else (1.0, 0.0)  # panels share their height
    set_percent_axis(ax, min(*lows, before[0]), max(*highs, before[1]))
    return labels


def _annotate_gap(ax: Axes, curves: dict[str, SampleCurve], cost: float = 1.0) -> None:
    """What is there and not found: the distance of coverage from the best choice at the largest k."""
    chosen = max((float(c.mean[-1]), rule) for rule, c in curves.items() if rule != "coverage")
    top = float(curves["coverage"].mean[-1])
    if top - chosen[0] < 0.03:
        return
    bottom, height = ax.get_ylim()
    if top - chosen[0] < 0.2 * (height - bottom):  # no room between the lines
        text = f"{100 * (top - chosen[0]):.0f} points not found"
        ax.annotate(text, (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8, color=TEXT_COLOUR)
        return
    x = float(curves["coverage"].k[-1]) * 0.93 * cost
    arrow = {"arrowstyle": "<->", "color": MUTED_COLOUR, "lw": 0.9, "shrinkA": 2, "shrinkB": 2}
    ax.annotate("", (x, top), (x, chosen[0]), arrowprops=arrow)
    ax.annotate(
        f"{100 * (top - chosen[0]):.0f} points\nnot found", (x, (top + chosen[0]) / 2), (-5, 0),
        textcoords="offset points", ha="right", va="center", fontsize=8, color=TEXT_COLOUR,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},  # a steep curve runs behind it
    )  # fmt: skip
