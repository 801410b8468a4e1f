"""The rule inside tree search: UCB1's regret on bandits, against its proven bound, greedy play and epsilon-greedy.

Shapes: R runs at once, A arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.book.figure import (
    FigureRun,
    SeedData,
    format_interval,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.reason.operators.tree_policy import UCT

Floats = NDArray[np.float64]
# Auer et al.'s first distributions, of two arms and of ten, with rewards 0 and 1.
BANDITS: dict[str, tuple[float, ...]] = {
    "0.9 and 0.6": (0.9, 0.6),
    "0.9 and nine of 0.6": (0.9, *[0.6] * 9),
    "0.9 and 0.8": (0.9, 0.8),
}
PLAYS = 20_000
RUNS = 100
MARKS = (10, 30, 100, 300, 1000, 3000, 10_000, 20_000)
RULES = {"ucb1": "UCB1", "epsilon": "epsilon-greedy, 0.1", "greedy": "greedy", "uniform": "at random"}
EPSILON = 0.1


class Bandits:
    name = "bandits"
    title = "UCB1's regret on bandits"
    source = "Auer, Cesa-Bianchi and Fischer 2002, Machine Learning 47 (UCB1); Kocsis and Szepesvári 2006 (UCT)"
    claim = (
        "UCB1's regret grows with the logarithm of the plays and stays below its bound, while playing greedily, or with"
        " a fixed share of random moves, loses in proportion to the plays."
    )
    settings = (
        "No setting was chosen by results. The arms are of Auer et al., the constant of UCB1 is that of the paper and"
        " of the search, and epsilon, plays and runs had one value"
    )
    models: tuple[str, ...] = ()

    def run(self, run: FigureRun) -> dict[str, Any]:
        return {
            "plays": PLAYS, "runs": RUNS, "marks": list(MARKS),
            "regret": {
                title: {rule: regret_curve(rule, arms, PLAYS, RUNS, run.seed) for rule in RULES}
                for title, arms in BANDITS.items()
            },
        }  # fmt: skip

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, (title, arms) in zip(panels, BANDITS.items(), strict=True):
                for i, (rule, name) in enumerate(RULES.items()):
                    mean = [
                        over_seeds([d["regret"][title][rule][k] for d in seeds.values()])[0] for k in range(len(MARKS))
                    ]
                    axes.plot(MARKS, mean, color=COLOURS[i], marker=MARKERS[i], ms=4, label=name)
                    each = [d["regret"][title][rule] for d in seeds.values()]
                    paint_seeds(axes, MARKS, each, COLOURS[i])
                    rows.extend(
                        {"arms": title, "rule": name, "plays": n, "regret": m} for n, m in zip(MARKS, mean, strict=True)
                    )
                axes.plot(MARKS, [ucb1_bound(arms, n) for n in MARKS], color=COLOURS[7], ls=":", label="UCB1's bound")
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.set_title(f"arms {title}", fontsize=9)
                axes.set_xlabel("plays")
            panels[0].set_ylabel("regret: reward lost to the best arm")
            panels[0].legend(fontsize=7)

        return FigureWithData(make_panels(len(BANDITS), paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        first = next(iter(seeds.values()))
        about = f"Regret after so many plays, mean of {first['runs']} runs a seed; over seeds with a 95 % interval;"
        out = [f"{about} thin lines are the seeds."]
        held = True
        for title, arms in BANDITS.items():
            rows = []
            for rule, name in RULES.items():
                of = [d["regret"][title][rule] for d in seeds.values()]
                cells = [format_interval([x[MARKS.index(n)] for x in of], 1) for n in (100, 1000, 10_000)]
                rows.append([name, *cells, format_interval([growth(x) for x in of], 1, 2)])
            rows.append(["UCB1's bound", *(f"{ucb1_bound(arms, n):.1f}" for n in (100, 1000, 10_000)), ""])
            head = ["rule", "100 plays", "1,000", "10,000", "1,000 to 10,000 by 100 to 1,000"]
            out += ["", f"Arms {title}:", *markdown_table(head, rows)]
            ours = [d["regret"][title]["ucb1"] for d in seeds.values()]
            below = all(x < ucb1_bound(arms, n) for regret in ours for x, n in zip(regret, MARKS, strict=True))
            held &= below and all(growth(x) < 5 for x in ours)
        out += [
            f"**Held?** UCB1 below its bound at every number of plays and in every seed, and growing far slower than in"
            f" proportion (a decade of plays costs less than 5 times the one before; in proportion it is 10):"
            f" **{'yes' if held else 'no'}**.",
            "",
        ]
        return out


def growth(regret: Sequence[float]) -> float:
    """What the plays from 1,000 to 10,000 cost, by those from 100 to 1,000: 1 for a logarithm, 10 for a line."""
    at = {n: regret[MARKS.index(n)] for n in (100, 1000, 10_000)}
    before = at[1000] - at[100]
    return (at[10_000] - at[1000]) / before if before > 0 else math.inf


def ucb1_bound(arms: Sequence[float], plays: int) -> float:
    """8 sum ln n / gap + (1 + pi^2 / 3) sum gap, over the arms that are not best (Auer et al. 2002, theorem 1)."""
    gaps = [max(arms) - mean for mean in arms if mean < max(arms)]
    return 8 * sum(math.log(plays) / gap for gap in gaps) + (1 + math.pi**2 / 3) * sum(gaps)


def regret_curve(rule: str, arms: Sequence[float], plays: int, runs: int, seed: int) -> list[float]:
    """The expected reward lost to the best arm after each of `MARKS` plays, mean over runs."""
    rng = np.random.default_rng([seed, len(arms), *map(ord, rule)])
    mean_A = np.array(arms)
    count_RA, total_RA = np.zeros((runs, len(arms))), np.zeros((runs, len(arms)))
    lost_R, rows, out = np.zeros(runs), np.arange(runs), []
    for play in range(plays):
        if play < len(arms) and rule != "uniform":
            chosen_R = np.full(runs, play)  # each arm once
        else:
            chosen_R = _choose(rule, count_RA, total_RA, rng)
        reward_R = rng.random(runs) < mean_A[chosen_R]
        count_RA[rows, chosen_R] += 1
        total_RA[rows, chosen_R] += reward_R
        lost_R += mean_A.max() - mean_A[chosen_R]
        if play + 1 in MARKS:
            out.append(round(float(lost_R.mean()), 3))
    return out


def _choose(rule: str, count_RA: Floats, total_RA: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    runs, arms = count_RA.shape
    if rule == "uniform":
        return np.asarray(rng.integers(arms, size=runs))
    value_RA = total_RA / count_RA
    if rule == "ucb1":
        value_RA = value_RA + uct_bonus(count_RA)
    chosen_R = np.asarray(value_RA.argmax(1))
    if rule == "epsilon":
        return np.where(rng.random(runs) < EPSILON, rng.integers(arms, size=runs), chosen_R)
    return chosen_R


def uct_bonus(count_RA: Floats) -> Floats:
    """What `UCT` adds to the value of an arm: c sqrt(ln N / n)."""
    log_N = np.log(1 + count_RA.sum(1, keepdims=True))
    return UCT().c * np.sqrt(log_N / count_RA)


FIGURE = Bandits()
