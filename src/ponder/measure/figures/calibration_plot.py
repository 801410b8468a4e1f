"""Reliability diagram: how often answers are right, by what their score promised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ponder.errors import UsageError
from ponder.measure.figures.canvas import (
    FigureRow,
    FigureWithData,
    add_footnotes,
    make_panels,
    set_headline,
    shorten_name,
)
from ponder.measure.figures.coverage_plots import default_scorer
from ponder.measure.figures.theme import COLOURS, DASHES, MUTED_COLOUR
from ponder.measure.readers.attempts import LOGPROB_COLUMNS, Attempts, ProblemAttempts
from ponder.measure.statistics.calibration import ReliabilityCurve, brier, fit_temperature, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VOTES_SCORER = "votes"  # the share of a problem's samples that gave the most frequent answer, as its confidence


def plot_reliability(systems: Sequence[Attempts], title: str = "", scorer: str | None = None) -> FigureWithData:
    """A panel for each system: accuracy against mean score in ten bins. Scores outside 0 to 1 are taken as logits."""
    panels = [(s.name, *_reliability(s, scorer)) for s in systems]
    notes = [note for _, _, note in panels]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, (name, curve, _) in zip(axes, panels, strict=True):
            ax.plot([0, 1], [0, 1], color=MUTED_COLOUR, lw=1, ls=DASHES[1], zorder=1)
            bars = np.maximum([curve.accuracy - curve.low, curve.high - curve.accuracy], 0)
            ax.errorbar(curve.confidence, curve.accuracy, bars, color=COLOURS[0], lw=1.6, marker="o", ms=5, capsize=2.5,
                        elinewidth=1.0, zorder=3)  # fmt: skip
            top = curve.count.max()
            ax.bar(curve.confidence, 0.18 * curve.count / top, width=0.035, color=COLOURS[5], alpha=0.6, zorder=0)
            ax.set_xlim(0, 1)
            ax.set_ylim(0, 1.02)
            ax.set_xlabel("score")
            ax.grid(axis="y")
            set_headline(ax, f"{shorten_name(name)}: share right, by score" if len(panels) > 1 else "share right")
        add_footnotes(figure, ["dashed: a score that keeps its promise; columns: how many samples; bars: 95 %", *notes])

    rows: list[FigureRow] = [
        {"system": name, "score": c.confidence[i], "accuracy": c.accuracy[i], "low": c.low[i], "high": c.high[i],
         "samples": int(c.count[i]), "ece": c.ece}
        for name, c, _ in panels
        for i in range(len(c.count))
    ]  # fmt: skip
    return FigureWithData(make_panels(len(panels), paint, title, size=(4.3, 3.8)), tuple(rows), tuple(notes))


def _reliability(system: Attempts, scorer: str | None) -> tuple[ReliabilityCurve, str]:
    name = scorer or default_scorer(system) or (VOTES_SCORER if system.has_answers else "")
    if name != VOTES_SCORER and name not in system.scorers:
        have = [*system.scorers, *([VOTES_SCORER] if system.has_answers else [])]
        lacking = f"no scores of {name!r}" if name else "several scorers, or none"
        raise UsageError(f"{system.name} has {lacking}: give --scorer, one of {', '.join(have) or 'none'}")
    pairs = [p for g in system.groups for p in scores_and_verdicts(g, name)]
    known = [(s, r) for s, r in pairs if s is not None and r is not None]
    if not known:
        raise UsageError(f"{system.name} has no sample with both a score of {name} and a verdict")
    scores, right = [s for s, _ in known], [r for _, r in known]
    parts = []
    if any(not 0 <= s <= 1 for s in scores):
        parts.append("scores taken as logits")
        try:
            parts.append(f"temperature {fit_temperature(scores, right):.2f} would fit best")
        except UsageError:  # nothing to fit: all alike, or told apart every time
            parts.append("no temperature fits best")
        scores = [1 / (1 + math.exp(-s)) if s > -700 else 0.0 for s in scores]
    curve = reliability(scores, right)
    parts = [f"ECE {curve.ece:.3f}, Brier {brier(scores, right):.3f}", *parts]
    if missing := len(pairs) - len(known):
        parts.append(f"{missing} samples without score or verdict left out")
    return curve, f"{shorten_name(system.name)}, {name}: {'; '.join(parts)}"


def scores_and_verdicts(group: ProblemAttempts, scorer: str) -> list[tuple[float | None, float | None]]:
    """Score and verdict of each attempt; for votes, share and verdict of the most frequent answer."""
    if scorer != VOTES_SCORER:
        column = group.scores.get(scorer, (None,) * group.size)
        as_chance = [None if s is None else math.exp(s) for s in column] if scorer in LOGPROB_COLUMNS else column
        return list(zip(as_chance, group.correct, strict=True))
    answers = [a for a in group.answers or () if a is not None]
    if not answers:
        return []
    answer, votes = Counter(answers).most_common(1)[0]
    return [(votes / group.size, group.correct[(group.answers or ()).index(answer)])]
