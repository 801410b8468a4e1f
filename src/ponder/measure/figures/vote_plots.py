"""Votes: what the samples of each problem say, and Condorcet's theorem beside what votes do."""

from __future__ import annotations

from collections import Counter
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
    make_panels,
    set_headline,
    set_k_axis,
    set_percent_axis,
    shorten_name,
)
from ponder.measure.figures.coverage_plots import figure_notes, judged_system, rule_curve
from ponder.measure.figures.theme import COLOURS, DASHES, MARKERS, MUTED_COLOUR
from ponder.measure.readers.attempts import Attempts, ProblemAttempts
from ponder.measure.statistics.decision_rules import accuracy_of_values, apply_rule
from ponder.measure.statistics.plurality_vote import majority_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED_BARS = 24  # problems whose names are written below their bars
VOTE_PARTS = ("right", "leading wrong", "other wrong", "no answer")
PART_COLOURS = (COLOURS[2], COLOURS[1], COLOURS[4], "#d0d7de")
CONDORCET_RATES = (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7)  # chances of one sample
CONDORCET_SIZES = (1, 3, 9, 33, 129)  # samples in a vote


@dataclass(frozen=True)
class ProblemVotes:
    problem: str
    shares: tuple[float, ...]  # of VOTE_PARTS
    vote_right: float | None


def plot_votes(systems: Sequence[Attempts], title: str = "") -> FigureWithData:
    """A bar for each problem: the shares of its samples that are right, give the most frequent wrong answer, other
    wrong ones, or none. Problems in order of their share of right samples; a dot where the vote is wrong."""
    for s in systems:
        if not s.has_answers:
            raise UsageError(f"{s.name} has no answers to vote on; name their column with --column answer=NAME")
    tables = [_problem_votes(s) for s in systems]
    accuracies = [accuracy_of_values([v.vote_right for v in votes]) for votes in tables]

    def paint(figure: Figure, axes: list[Axes]) -> None:
        for ax, s, votes, accuracy in zip(axes, systems, tables, accuracies, strict=True):
            _paint_bars(ax, votes)
            name = f"{shorten_name(s.name)}: " if len(systems) > 1 else ""
            set_headline(ax, f"{name}votes right {100 * accuracy.mean:.1f} % [{100 * accuracy.low:.1f},"
                             f" {100 * accuracy.high:.1f}]")  # fmt: skip
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8.5)

    rows: list[FigureRow] = [
        {"system": s.name, "problem": v.problem, **dict(zip(VOTE_PARTS, v.shares, strict=True)),
         "vote_right": v.vote_right}
        for s, votes in zip(systems, tables, strict=True)
        for v in votes
    ]  # fmt: skip
    notes = tuple(f"{s.name}: majority {a}" for s, a in zip(systems, accuracies, strict=True))
    return FigureWithData(make_panels(len(systems), paint, title, size=(6.4, 3.2), sharey=True), tuple(rows), notes)


def _problem_votes(system: Attempts) -> list[ProblemVotes]:
    values = apply_rule(system, "majority")
    votes = [ProblemVotes(g.problem, _shares(g), v) for g, v in zip(system.groups, values, strict=True) if g.size]
    return sorted(votes, key=lambda v: (-v.shares[0], v.shares[1]))


def _shares(group: ProblemAttempts) -> tuple[float, ...]:
    right = sum(c == 1 for c in group.correct)
    silent = sum(a is None and c != 1 for a, c in zip(group.answers or (), group.correct, strict=True))
    wrong = Counter(a for a, c in zip(group.answers or (), group.correct, strict=True) if c != 1 and a is not None)
    first = wrong.most_common(1)[0][1] if wrong else 0
    return tuple(n / group.size for n in (right, first, sum(wrong.values()) - first, silent))


def _paint_bars(ax: Axes, votes: Sequence[ProblemVotes]) -> None:
    x = np.arange(len(votes))
    bottom = np.zeros(len(votes))
    for i, (part, colour) in enumerate(zip(VOTE_PARTS, PART_COLOURS, strict=True)):
        height = np.array([v.shares[i] for v in votes])
        ax.bar(x, height, width=0.92, bottom=bottom, color=colour, label=part, lw=0)
        bottom += height
    lost = [i for i, v in enumerate(votes) if v.vote_right is not None and v.vote_right < 1]
    ax.plot(lost, [1.035] * len(lost), "o", ms=2.8, color=COLOURS[6], label="vote wrong", clip_on=False)
    set_percent_axis(ax, 0.0, 1.0)
    ax.set_ylim(0, 1.06)
    ax.set_xlim(-0.6, len(votes) - 0.4)
    if len(votes) <= MAX_NAMED_BARS:
        ax.set_xticks(x, [shorten_name(v.problem)[:12] for v in votes], rotation=60, ha="right", fontsize=7)
    else:
        ax.set_xlabel(f"{len(votes)} problems, by their share of right samples")


def plot_condorcet(systems: Sequence[Attempts], title: str = "") -> FigureWithData:
    """Condorcet's theorem: a majority of N independent samples, each right with chance p, over N and over p; and what
    votes do on the problems of each log, whose wrong samples need not agree."""
    graded = [judged_system(s) for s in systems]
    if silent := [j.system.name for j in graded if not j.system.has_answers]:
        raise UsageError(f"{silent[0]} has no answers to vote on; name their column with --column answer=NAME")
    sizes = [max(n for n in CONDORCET_SIZES if n <= j.max_k) for j in graded]
    clouds = [_vote_by_rate(j.system, n) for j, n in zip(graded, sizes, strict=True)]
    ns = [2**i + (i > 0) for i in range(11)]
    rates = np.linspace(0, 1, 81)
    over_n = {p: [majority_accuracy(p, n) for n in ns] for p in CONDORCET_RATES}
    over_p = {n: [majority_accuracy(float(p), n) for p in rates] for n in CONDORCET_SIZES}

    def paint(figure: Figure, axes: list[Axes]) -> None:
        ax = axes[0]
        for i, values in enumerate(over_n.values()):
            ax.plot(ns, values, color=COLOURS[i % len(COLOURS)], lw=1.7)
        set_percent_axis(ax, 0.0, 1.0)
        set_k_axis(ax, ns[-1], "samples in the vote, N")
        labels = [(v[-1], f"p = {p:g}", COLOURS[i % len(COLOURS)]) for i, (p, v) in enumerate(over_n.items())]
        label_line_ends(ax, labels)
        set_headline(ax, "majority right, %, by the chance p of one sample")
        ax = axes[1]
        for i, (n, values) in enumerate(over_p.items()):
            ax.plot(rates, values, color=MUTED_COLOUR, lw=1.0 + 0.25 * i, ls=DASHES[i % len(DASHES)], label=f"N = {n}")
        for i, (j, n, cloud) in enumerate(zip(graded, sizes, clouds, strict=True)):
            ax.plot(*zip(*cloud, strict=True), MARKERS[i % len(MARKERS)], ms=4, alpha=0.6, lw=0,
                    color=COLOURS[i % len(COLOURS)], label=f"{shorten_name(j.system.name)}, N = {n}")  # fmt: skip
        set_percent_axis(ax, 0.0, 1.0)
        ax.set_xlim(-0.01, 1.01)
        ax.set_xlabel("p, share of right samples")
        ax.legend(fontsize=7.5, loc="lower right")
        set_headline(ax, "majority right, %: lines as if wrong samples agreed")
        add_footnotes(figure, figure_notes(systems, "points: problems, with the exact vote over all subsets of size N"))

    rows: list[FigureRow] = [
        *({"system": "theory", "n": n, "p": p, "majority": v[i]} for p, v in over_n.items() for i, n in enumerate(ns)),
        *({"system": j.system.name, "n": n, "p": p, "majority": m}
          for j, n, cloud in zip(graded, sizes, clouds, strict=True) for p, m in cloud),
    ]  # fmt: skip
    return FigureWithData(make_panels(2, paint, title, size=(5.0, 3.6)), tuple(rows))


def _vote_by_rate(system: Attempts, n: int) -> list[tuple[float, float]]:
    """Each problem's share of right samples, and how often the vote of n of them is right."""
    out = []
    for g in system.groups:
        vote = float(rule_curve(Attempts(system.name, (g,)), "majority", [n]).mean[0])
        if vote == vote and g.mean is not None:
            out.append((g.mean, vote))
    return out
