"""Strength at connect four: looking plies ahead, a net that learned by TD, and search over simulations, 0 included."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.atomic_write import write_atomically
from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    held_above,
    markdown_table,
    paint_seeds,
)
from ponder.book.visited_positions import count_positions, paint_visited, visited_lines
from ponder.measure import elo_ratings
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.reason.games import (
    GAME_SEARCH,
    ConnectFourGame,
    GamePolicy,
    LearnedValueScorer,
    RandomPlayoutScorer,
    SearchPlayer,
    ValueNet,
    play_match,
    train_value_net,
)
from ponder.reason.games.alpha_beta import AlphaBetaPlayer, AlphaBetaSearch
from ponder.reason.games.players import Player, RandomPlayer
from ponder.reason.games.value_net import ValueNetPlayer

GAME = ConnectFourGame()
TRAINING_GAMES = 2000
PLIES = (1, 2, 4)
SIMULATIONS = (4, 16, 64)
OPENINGS = 8  # of four random moves; each is played twice, with either side first
ANCHOR = "random"  # at 0 Elo
PRIOR_GAMES = 1.0  # drawn, of each against an average player: a clean sweep stays finite
LEARNED_FROM = (0, 100, 200, 500, 1000, 2000)  # games of training; 0 is a net as it begins
TEACHERS = ("random", "1 ply", "2 ply")  # who the net plays then
LEARNING_OPENINGS = 16
NET, PLAYOUTS = "net", "playouts"
LABELS = {NET: "value net (TD)", PLAYOUTS: "random playouts"}
PAIRS = (
    ("random", "1 ply"), ("1 ply", "2 ply"), ("2 ply", "4 ply"),
    ("1 ply", "playouts 4"), ("playouts 4", "playouts 16"), ("playouts 16", "playouts 64"),
    ("1 ply", "net 0"), ("2 ply", "net 0"), ("net 0", "net 4"), ("net 4", "net 16"), ("net 16", "net 64"),
    ("playouts 16", "net 16"), ("playouts 64", "net 64"), ("2 ply", "playouts 16"), ("4 ply", "net 16"),
)  # fmt: skip


class ConnectFour:
    name = "connect-four"
    title = "Strength at connect four over plies and simulations"
    source = (
        "Tesauro 1995 (TD-Gammon: a net that learns from its own games, and looks a few plies ahead); Silver et al."
        " 2017, Nature 550 (a net alone is far weaker than the net with search); Jones 2021, arXiv:2104.03113 (Elo"
        " grows with the logarithm of test-time compute); Knuth and Moore 1975 (alpha-beta: the value of minimax from"
        " far fewer positions)"
    )
    claim = (
        "A ply more or more simulations make a stronger player; a learned value is worth many random playouts; and the"
        " same net is much stronger with search than alone (0 simulations). Alpha-beta finds the value of minimax in"
        " far fewer positions."
    )
    settings = (
        "No setting was chosen by results of this figure. Net and TD learning have the defaults of `ponder play`'s net,"
        " the search those of its players, and games, plies and simulations had one value; from how many tries the"
        " defaults came was not kept"
    )
    models: tuple[str, ...] = ()

    def run(self, run: FigureRun) -> dict[str, Any]:
        run.folder.mkdir(parents=True, exist_ok=True)
        net = trained_net(run.folder / "net.npz", run.seed)
        points = {}
        for number, (first, second) in enumerate(PAIRS):
            points[f"{first} - {second}"] = play_pair(first, second, net, run.seed * len(PAIRS) + number, run.folder)
        return {
            "seed": run.seed, "training games": TRAINING_GAMES, "points": points, "elo": ratings(points),
            "learning": learning_curve(run.seed, run.folder), "visited": count_positions(GAME, run.seed),
        }  # fmt: skip

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        data = list(seeds.values())
        rows: list[dict[str, Any]] = []

        def line(axes: Any, x: Sequence[float], names: Sequence[str], i: int, label: str) -> None:
            each = [[d["elo"][name] for name in names] for d in data]
            axes.plot(x, np.mean(each, axis=0), color=COLOURS[i], marker=MARKERS[i], ms=4, label=label)
            for own in each if len(each) > 1 else ():
                axes.plot(x, own, color=COLOURS[i], lw=0.6, alpha=0.4)
            rows.extend({"player": n, "elo": float(m)} for n, m in zip(names, np.mean(each, axis=0), strict=True))

        def paint(figure: Any, panels: list[Any]) -> None:
            axes = panels[0]
            line(axes, [1, *SIMULATIONS], ["net 0", *(f"net {n}" for n in SIMULATIONS)], 0, LABELS[NET])
            line(axes, SIMULATIONS, [f"playouts {n}" for n in SIMULATIONS], 1, LABELS[PLAYOUTS])
            axes.set_xscale("log", base=2)
            axes.set_xticks([1, *SIMULATIONS], ["0", *map(str, SIMULATIONS)])
            axes.set_xlabel("simulations a move")
            axes.set_ylabel("Elo, random play at 0")
            axes.legend(fontsize=7)
            line(panels[1], [0, *PLIES], ["random", *(f"{n} ply" for n in PLIES)], 2, "alpha-beta")
            panels[1].axhline(
                np.mean([d["elo"]["net 0"] for d in data]), color=COLOURS[0], ls=":", label=f"{LABELS[NET]} alone"
            )
            panels[1].set_xticks([0, *PLIES])
            panels[1].set_xlabel("plies looked ahead")
            panels[1].set_ylabel("Elo, random play at 0")
            panels[1].legend(fontsize=7)
            for axes in panels[:2]:
                axes.set_ylim(*_elo_limits(data))
            if whole:
                _paint_learning(panels[2], data, rows)
                paint_visited(panels[3], data, rows)

        whole = all("visited" in d and "learning" in d for d in data)
        return FigureWithData(make_panels(4 if whole else 2, paint, ""), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        data = list(seeds.values())
        names = sorted(data[0]["elo"], key=lambda name: -np.mean([d["elo"][name] for d in data]))
        rows = [[name, format_interval([d["elo"][name] for d in data], 1, 0)] for name in names]
        shares = [
            [pair, format_interval([d["points"][pair] for d in data], bounds=SHARE)] for pair in data[0]["points"]
        ]

        def gain(after: str, before: str) -> list[float]:
            return [d["elo"][after] - d["elo"][before] for d in data]

        checks = [
            ("2 plies against 1", gain("2 ply", "1 ply")), ("4 plies against 2", gain("4 ply", "2 ply")),
            ("playouts, 64 simulations against 4", gain("playouts 64", "playouts 4")),
            ("the net with 64 simulations against 4", gain("net 64", "net 4")),
            ("the net with 4 simulations against the net alone", gain("net 4", "net 0")),
            ("the net with 64 simulations against the net alone", gain("net 64", "net 0")),
            ("the net against playouts, 16 simulations each", gain("net 16", "playouts 16")),
        ]  # fmt: skip
        lines = []
        for label, each in checks:
            lines.append(f"- {label}: {format_interval(each, 1, 0, sign=True)} Elo. Stronger: **{held_above(each)}**")
        return [
            f"A net of 32 hidden units learns by TD(0.8) from {data[0]['training games']:,} games against itself, anew"
            f" for each seed. {len(PAIRS)} pairings of {2 * OPENINGS} games after {OPENINGS} random openings of four"
            " moves. Elo is Bradley and Terry's fit, with one drawn game of each against an average player, so that a"
            " clean sweep stays finite. Over seeds with a 95 % interval. Simulations search a tree with UCT.",
            *markdown_table(["player", "Elo"], rows),
            "What the first of a pairing got, in % of the points:",
            *markdown_table(["pairing", "points of the first"], shares),
            "**Held?**",
            "",
            *lines,
            "",
            f"The net alone looks at every one of the {GAME.columns} moves; {SIMULATIONS[0]} simulations cannot.",
            "",
            *_learning_lines(data),
            *visited_lines(data),
        ]


def learning_curve(seed: int, folder: Path) -> dict[str, list[float]]:
    """The points of the net alone against fixed players, after fewer games of training."""
    out: dict[str, list[float]] = {name: [] for name in TEACHERS}
    for number, games in enumerate(LEARNED_FROM):
        place = folder / f"after-{games}"
        place.mkdir(exist_ok=True)
        net = trained_net(place / "net.npz", seed, games)
        for k, other in enumerate(TEACHERS):
            own = (seed * len(LEARNED_FROM) + number) * len(TEACHERS) + k
            out[other].append(play_pair("net 0", other, net, own, place, LEARNING_OPENINGS))
    return out


def _elo_limits(data: Sequence[SeedData]) -> tuple[float, float]:
    """Both panels of Elo have one scale."""
    every = [elo for d in data for elo in d["elo"].values()]
    return min(every) - 50, max(every) + 50


def _paint_learning(axes: Any, data: Sequence[SeedData], rows: list[dict[str, Any]]) -> None:
    for i, other in enumerate(TEACHERS):
        each = [[100 * x for x in d["learning"][other]] for d in data]
        mean = np.mean(each, axis=0)
        axes.plot(LEARNED_FROM, mean, color=COLOURS[i], marker=MARKERS[i], ms=4, label=f"against {other}")
        paint_seeds(axes, LEARNED_FROM, each, COLOURS[i])
        rows.extend(
            {"player": f"net 0 after {n} games against {other}", "points": float(m)}
            for n, m in zip(LEARNED_FROM, mean, strict=True)
        )
    axes.set_xscale("symlog", linthresh=LEARNED_FROM[1])
    axes.set_xticks(LEARNED_FROM, [f"{n:,}" for n in LEARNED_FROM], fontsize=7)
    axes.set_ylim(0, 102)
    axes.set_xlabel("games of training")
    axes.set_ylabel("points of the net alone, %")
    axes.legend(fontsize=7)


def _learning_lines(data: Sequence[SeedData]) -> list[str]:
    if not all("learning" in d for d in data):
        return []
    rows = [
        [f"{games:,}", *(format_interval([d["learning"][other][k] for d in data], bounds=SHARE) for other in TEACHERS)]
        for k, games in enumerate(LEARNED_FROM)
    ]
    first, last = LEARNED_FROM[1], LEARNED_FROM[-1]
    gains = {other: [d["learning"][other][-1] - d["learning"][other][1] for d in data] for other in TEACHERS}
    cells = "; ".join(
        f"against {other} {format_interval(each, sign=True)} points: **{held_above(each)}**"
        for other, each in gains.items()
    )
    return [
        f"The net alone after fewer games of training, anew for each number: its points in %, {2 * LEARNING_OPENINGS}"
        " games against each:",
        *markdown_table(["games of training", *(f"against {other}" for other in TEACHERS)], rows),
        f"- {last:,} games of training against {first:,}, stronger? {cells}",
        "",
    ]


def trained_net(path: Path, seed: int, games: int = TRAINING_GAMES) -> ValueNet:
    """The net of a seed, trained once."""
    if not path.exists():
        partly = path.with_suffix(".part")
        train_value_net(GAME, games, seed=seed).save(partly)
        partly.replace(path)
    return ValueNet.load(GAME, path)


def make_player(name: str, net: ValueNet, seed: int) -> Player:
    """random, `2 ply`, `net 0` (no search), `net 16`, `playouts 16`."""
    if name == ANCHOR:
        return RandomPlayer(GAME, random.Random(seed))
    kind, _, number = name.partition(" ")
    if number == "ply":
        return AlphaBetaPlayer(AlphaBetaSearch(GAME), int(kind), random.Random(seed))
    if kind == NET and number == "0":
        return ValueNetPlayer(GAME, net)
    guide = LearnedValueScorer(GAME, net) if kind == NET else RandomPlayoutScorer(GAME, seed=seed)
    return SearchPlayer(GAME, replace(GAME_SEARCH, simulations=int(number)), GamePolicy(GAME), guide)


def play_pair(first: str, second: str, net: ValueNet, seed: int, folder: Path, openings: int = OPENINGS) -> float:
    """The first player's share of the points, from every opening with either side first. It is kept for a resume."""
    kept = folder / f"{first} - {second}.json"
    if kept.exists():
        return float(json.loads(kept.read_text()))

    async def play() -> float:
        total = 0.0
        for number in range(openings):
            rng = random.Random(f"{seed} {number}")
            opening = [rng.randrange(GAME.columns) for _ in range(4)]  # four stones end no game
            one, other = (make_player(name, net, rng.randrange(2**30)) for name in (first, second))
            won, _ = await play_match(GAME, one, other, opening)
            lost, _ = await play_match(GAME, other, one, opening)
            total += (2 + won - lost) / 4
        return total / openings

    share = event_loop.run(play())
    write_atomically(kept, json.dumps(share))
    return share


def ratings(points: Mapping[str, float]) -> dict[str, float]:
    """Elo from the shares of all pairings."""
    games: list[tuple[str, str, float]] = []
    for pair, share in points.items():
        first, _, second = pair.partition(" - ")
        halves = round(share * 4 * OPENINGS)  # half points of the first
        scores = [1.0] * (halves // 2) + [0.5] * (halves % 2)
        games += [(first, second, score) for score in scores + [0.0] * (2 * OPENINGS - len(scores))]
    fitted = {r.player: r.rating for r in elo_ratings(games, prior=PRIOR_GAMES)}
    assert all(map(math.isfinite, fitted.values()))
    return {name: round(value - fitted[ANCHOR], 1) for name, value in fitted.items()}


FIGURE = ConnectFour()
