"""Playing with hidden cards: counterfactual regret minimisation on Kuhn's and Leduc poker, and subgame search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ponder.book.cfr import Floats, GameTree, SampledSolver, Solver, Variant
from ponder.book.figure import POSITIVE, FigureRun, SeedData, format_interval, markdown_table, over_seeds
from ponder.book.poker_games import kuhn, leduc
from ponder.book.subgame_search import search_all
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS

GAMES = {"kuhn": kuhn, "leduc": leduc}
TITLES = {"kuhn": "Kuhn poker", "leduc": "Leduc poker"}
# What the first player wins: exact for Kuhn (1950); for Leduc the published value, to its four digits.
GAME_VALUES = {"kuhn": -1 / 18, "leduc": -0.0856}
MARKS = (1, 3, 10, 30, 100, 300, 1000)
SAMPLED_MARKS = tuple(n for n in MARKS if n <= 100)  # sampled passes are slower
SOLVERS: tuple[Variant, ...] = ("cfr", "cfr+")
LINES: dict[str, str] = {"cfr": "CFR", "cfr+": "CFR+", "sampled": "external sampling"}
# Blueprints: the average strategy after so many iterations of CFR+ in Leduc.
BLUEPRINTS = (3, 10, 30, 100)
SEARCHES = {"blueprint": "blueprint alone", "unsafe": "unsafe search", "safe": "safe search (re-solving)"}
SEARCH_ITERATIONS = 100
NOT_WORSE = 1e-3  # a search is solved to about this, so that "not worse" allows for it


class Poker:
    name = "poker"
    title = "Poker by counterfactual regret, and subgame search"
    source = (
        "Kuhn 1950 (the value -1/18 and the family of equilibria); Zinkevich et al. 2007 (CFR); Lanctot et al. 2009"
        " (external sampling); Tammelin 2014, arXiv:1407.5042 (CFR+); Burch, Johanson and Bowling 2014,"
        " arXiv:1303.4441 (re-solving); Brown and Sandholm 2017, arXiv:1705.02955 (safe and unsafe search)"
    )
    claim = (
        "CFR's average strategy comes to an equilibrium at least as fast as 1 / sqrt(iterations), and CFR+ faster."
        " Solving a subgame again improves a rough blueprint; done unsafely it can spoil a good one, done safely"
        " it does not."
    )
    settings = (
        "No setting was chosen by results. Games, solvers and both ways to search are the papers', and iterations,"
        " blueprints and the limits below had one value"
    )
    models: tuple[str, ...] = ()

    def run(self, run: FigureRun) -> dict[str, Any]:
        out: dict[str, Any] = {"seed": run.seed, "marks": list(MARKS), "search iterations": SEARCH_ITERATIONS}
        for name, game in GAMES.items():
            out[name] = solve_game(GameTree(game()), run.seed)
        out["kuhn"]["equilibrium"] = kuhn_strategy(run.seed)
        out["blueprints"] = compare_searches(GameTree(leduc()), run.seed)
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, (game, title) in zip(panels, TITLES.items(), strict=False):
                for i, (solver, label) in enumerate(LINES.items()):
                    x = SAMPLED_MARKS if solver == "sampled" else MARKS
                    each = [[d[game][solver]["exploitability"][k] for d in seeds.values()] for k in range(len(x))]
                    _plot(axes, x, each, i, label)
                    rows.extend(
                        {"game": title, "strategy": label, "passes": n, "exploitability": over_seeds(e)[0]}
                        for n, e in zip(x, each, strict=True)
                    )
                first = np.mean([d[game]["cfr"]["exploitability"][0] for d in seeds.values()])
                axes.plot(MARKS, first / np.sqrt(MARKS), color=COLOURS[7], ls=":", label="as 1 / sqrt(iterations)")
                axes.set_title(title, fontsize=9)
                axes.set_xlabel("iterations, in passes over the whole tree")
            axes = panels[2]
            for i, (search, label) in enumerate(SEARCHES.items()):
                each = [[d["blueprints"][search][k] for d in seeds.values()] for k in range(len(BLUEPRINTS))]
                _plot(axes, BLUEPRINTS, each, i + 3, label)
                rows.extend(
                    {"game": TITLES["leduc"], "strategy": label, "passes": n, "exploitability": over_seeds(e)[0]}
                    for n, e in zip(BLUEPRINTS, each, strict=True)
                )
            axes.set_title("Leduc: the second round searched", fontsize=9)
            axes.set_xlabel("iterations of the blueprint")
            for axes in panels:
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.legend(fontsize=7)
            panels[0].set_ylabel("exploitability, antes a game")

        return FigureWithData(make_panels(3, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        out = [
            "Exploitability is what best responses win from both players, on average, in antes a game: 0 for an"
            " equilibrium. Each seed starts from its own random regrets between 0 and 1. An iteration updates both"
            " players; external sampling counts the nodes it visits, as a share of all. Over seeds with a 95 %"
            " interval (of exploitability, Student's of its logarithm).",
            "",
        ]
        shown = (10, 100, 1000)
        for game, title in TITLES.items():
            rows = []
            for solver, label in LINES.items():
                of = [d[game][solver]["exploitability"] for d in seeds.values()]
                known = SAMPLED_MARKS if solver == "sampled" else MARKS
                cells = [
                    format_interval([x[MARKS.index(n)] for x in of], 1, 4, bounds=POSITIVE) if n in known else ""
                    for n in shown
                ]
                rows.append([label, *cells, format_interval([d[game][solver]["value"] for d in seeds.values()], 1, 4)])
            rows.append(["equilibrium", *["0"] * len(shown), f"{GAME_VALUES[game]:.4f}"])
            head = [title, *(f"{n:,} iterations" for n in shown), "value to the first player at the end"]
            out += markdown_table(head, rows)
        return [*out, *self._equilibrium_lines(seeds), *self._search_lines(seeds), *self._verdict_lines(seeds)]

    def _equilibrium_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        rows = [
            [str(seed), *(f"{d['kuhn']['equilibrium'][key]:.3f}" for key in KUHN_MOVES)] for seed, d in seeds.items()
        ]
        rows.append(["Kuhn, for any a of 0 to 1/3", "a", "3a", "a + 1/3", "1/3", "1/3"])
        return [
            "Kuhn's equilibria are a family, with one free number a. Which one CFR+ comes to depends on its start:",
            *markdown_table(["seed", *KUHN_MOVES.values()], rows),
        ]

    def _search_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        rows = [
            [label, *(format_interval([d["blueprints"][search][k] for d in seeds.values()], 1, 4, bounds=POSITIVE)
                      for k in range(len(BLUEPRINTS)))]
            for search, label in SEARCHES.items()
        ]  # fmt: skip
        return [
            f"Leduc with a blueprint of so many iterations of CFR+, and all 15 subgames after the public card solved"
            f" again, {SEARCH_ITERATIONS} iterations of CFR+ each:",
            *markdown_table(["exploitability", *(f"{n} iterations" for n in BLUEPRINTS)], rows),
        ]

    def _verdict_lines(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        slopes = {(game, solver): [log_slope(d[game][solver]) for d in data] for game in GAMES for solver in SOLVERS}
        values = {game: all(abs(d[game]["cfr+"]["value"] - GAME_VALUES[game]) < 1e-3 for d in data) for game in GAMES}
        fast = all(over_seeds(each)[2] < -0.5 for (_, solver), each in slopes.items() if solver == "cfr")
        faster = all(
            p < c
            for d in data
            for game in GAMES
            for p, c in zip(d[game]["cfr+"]["exploitability"][4:], d[game]["cfr"]["exploitability"][4:], strict=True)
        )
        rough = all(d["blueprints"][s][0] < d["blueprints"]["blueprint"][0] for d in data for s in ("unsafe", "safe"))
        spoiled = all(d["blueprints"]["unsafe"][-1] > d["blueprints"]["blueprint"][-1] for d in data)
        safe = all(
            s < b + NOT_WORSE
            for d in data
            for s, b in zip(d["blueprints"]["safe"], d["blueprints"]["blueprint"], strict=True)
        )
        fits = "; ".join(
            f"{TITLES[game]}, {LINES[solver]} {format_interval(each, 1, 2)}" for (game, solver), each in slopes.items()
        )
        return [
            f"The exponent of exploitability over iterations, from 100 on (-0.5 is the proven rate): {fits}.",
            "",
            "**Held?**",
            "",
            f"- the value to the first player is Kuhn's -1/18 (**{_yes(values['kuhn'])}**) and Leduc's -0.0856"
            f" (**{_yes(values['leduc'])}**), within 0.001 after {MARKS[-1]:,} iterations of CFR+ in every seed",
            f"- CFR falls faster than 1 / sqrt(iterations): **{_yes(fast)}**; CFR+ is below CFR from 100 iterations on,"
            f" in every seed: **{_yes(faster)}**",
            f"- both searches improve the roughest blueprint: **{_yes(rough)}**",
            f"- unsafe search spoils the best blueprint: **{_yes(spoiled)}**; safe search is never worse than the"
            f" blueprint (by more than {NOT_WORSE}, to which subgames are solved): **{_yes(safe)}**",
            "",
        ]


# The moves that say which equilibrium of Kuhn's it is: information set and action.
KUHN_MOVES = {
    "J": "first player bets a jack", "K": "bets a king", "Qpb": "calls with a queen",
    "Jp": "second player bluffs a jack", "Qb": "calls with a queen ",
}  # fmt: skip


def kuhn_strategy(seed: int) -> dict[str, float]:
    """How often each of `KUHN_MOVES` is played after the last of `MARKS` iterations of CFR+."""
    tree = GameTree(kuhn())
    solver = Solver(tree, "cfr+", random_regrets(tree, seed))
    solver.run(MARKS[-1])
    average = solver.average()
    return {name: round(float(average[tree.infosets[name] + 1]), 4) for name in KUHN_MOVES}


def random_regrets(tree: GameTree, seed: int) -> Floats:
    return np.random.default_rng(seed).random(len(tree.owner_S))


def solve_game(tree: GameTree, seed: int) -> dict[str, Any]:
    """Exploitability at every one of `MARKS`, of each solver."""
    out: dict[str, Any] = {"nodes": len(tree.nodes), "information sets": len(tree.infosets)}
    for variant in SOLVERS:
        solver = Solver(tree, variant, random_regrets(tree, seed))
        exploitability = []
        for mark in MARKS:
            solver.run(mark - solver.iterations)
            exploitability.append(round(tree.exploitability(solver.average()), 6))
        out[variant] = {"passes": list(MARKS), "exploitability": exploitability}
        out[variant]["value"] = round(tree.value(solver.average()), 6)
    sampled = SampledSolver(tree, seed)
    exploitability = []
    for mark in SAMPLED_MARKS:
        while sampled.visited < mark * 2 * len(tree.nodes):  # two passes an iteration, one for each player
            sampled.run(1)
        exploitability.append(round(tree.exploitability(sampled.average()), 6))
    out["sampled"] = {"passes": list(SAMPLED_MARKS), "exploitability": exploitability}
    out["sampled"] |= {"value": round(tree.value(sampled.average()), 6), "iterations": sampled.iterations}
    return out


def compare_searches(tree: GameTree, seed: int) -> dict[str, list[float]]:
    """The exploitability of each blueprint alone, and with its subgames solved again."""
    out: dict[str, list[float]] = {search: [] for search in SEARCHES}
    solver = Solver(tree, "cfr+", random_regrets(tree, seed))
    for mark in BLUEPRINTS:
        solver.run(mark - solver.iterations)
        blueprint = solver.average()
        out["blueprint"].append(round(tree.exploitability(blueprint), 6))
        for mode in ("unsafe", "safe"):
            searched = search_all(tree, blueprint, mode, SEARCH_ITERATIONS)
            out[mode].append(round(tree.exploitability(searched), 6))
    return out


def log_slope(curve: Mapping[str, Sequence[float]]) -> float:
    """The exponent of exploitability over iterations, from 100 iterations on."""
    both = [(n, e) for n, e in zip(curve["passes"], curve["exploitability"], strict=True) if n >= 100]
    return float(np.polyfit(np.log([n for n, _ in both]), np.log([e for _, e in both]), 1)[0])


def _plot(axes: Any, x: Sequence[float], each: Sequence[Sequence[float]], i: int, label: str) -> None:
    mean = [over_seeds(e)[0] for e in each]
    axes.plot(x, mean, color=COLOURS[i], marker=MARKERS[i], ms=4, label=label)
    for seed in range(len(each[0]) if len(each[0]) > 1 else 0):
        axes.plot(x, [e[seed] for e in each], color=COLOURS[i], lw=0.6, alpha=0.4)


def _yes(held: bool) -> str:
    return "yes" if held else "no"


FIGURE = Poker()
