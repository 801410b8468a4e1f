"""How many positions a look ahead visits: plain minimax, alpha-beta, and alpha-beta with a table of positions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponder.book.figure import POSITIVE, SeedData, format_interval, markdown_table
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.reason.games.alpha_beta import WIN, AlphaBetaSearch
from ponder.reason.games.game import Game, state_after

PLIES = (1, 2, 4, 6)
OPENINGS = 8  # of four random moves
WAYS = ("minimax", "alpha-beta", "alpha-beta with a table")


@dataclass(slots=True)
class CountedGame:
    """A game that counts the positions that are visited: each is reached by a move."""

    game: Game[Any]
    visited: int = 0

    @property
    def name(self) -> str:
        return self.game.name

    @property
    def players(self) -> int:
        return self.game.players

    def start(self) -> Any:
        return self.game.start()

    def moves(self, state: Any) -> Sequence[int]:
        return self.game.moves(state)

    def play(self, state: Any, move: int) -> Any:
        self.visited += 1
        return self.game.play(state, move)

    def outcome(self, state: Any) -> float | None:
        return self.game.outcome(state)

    def move_text(self, state: Any, move: int) -> str:
        return self.game.move_text(state, move)


class NoTable(dict[Any, Any]):
    """A table that remembers nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def look_ahead(way: str, game: Game[Any], state: Any, plies: int) -> tuple[int, int]:
    """The value of a position for who is to move, and how many positions were visited to find it."""
    counted = CountedGame(game)
    if way == "minimax":
        value = minimax(counted, state, plies)
    else:
        search = AlphaBetaSearch(counted, table=NoTable() if way == "alpha-beta" else {})
        value = max(search.move_values(state, plies).values())
    return value, counted.visited


def minimax(game: Game[Any], state: Any, plies: int) -> int:
    """Every line so many plies deep (Shannon 1950), with the values of `AlphaBetaSearch`."""
    end = game.outcome(state)
    if end is not None:
        return round(-end * WIN)
    if plies == 0:
        return 0
    values = [-minimax(game, game.play(state, move), plies - 1) for move in game.moves(state)]
    best = max(values)  # one ply later: a quick win is better than a slow one
    return best - (best > 0) + (best < 0)


def count_positions(game: Any, seed: int) -> dict[str, dict[str, list[int]]]:
    """By plies and way, the positions visited for each opening's best value, which all ways agree on."""
    states = [state_after(game, drawn_opening(game, seed, number)) for number in range(OPENINGS)]
    out: dict[str, dict[str, list[int]]] = {}
    for plies in PLIES:
        found = {way: [look_ahead(way, game, state, plies) for state in states] for way in WAYS}
        values = {tuple(value for value, _ in each) for each in found.values()}
        assert len(values) == 1, "alpha-beta leaves out what cannot change the value"
        out[str(plies)] = {way: [visited for _, visited in each] for way, each in found.items()}
    return out


def drawn_opening(game: Any, seed: int, number: int) -> list[int]:
    rng = random.Random(f"positions {seed} {number}")
    return [rng.randrange(game.columns) for _ in range(4)]  # four stones end no game


def paint_visited(axes: Any, data: Sequence[SeedData], rows: list[dict[str, Any]]) -> None:
    for i, way in enumerate(WAYS):
        mean = [_mean_visited(data, plies, way) for plies in PLIES]
        axes.plot(PLIES, mean, color=COLOURS[i], marker=MARKERS[i], ms=4, label=way)
        rows.extend({"player": f"{way}, {n} ply", "positions": m} for n, m in zip(PLIES, mean, strict=True))
    axes.set_yscale("log")
    axes.set_xticks(PLIES)
    axes.set_xlabel("plies looked ahead")
    axes.set_ylabel("positions visited for a move")
    axes.legend(fontsize=7)


def _mean_visited(data: Sequence[SeedData], plies: int, way: str) -> float:
    return float(np.mean([d["visited"][str(plies)][way] for d in data]))


def visited_lines(data: Sequence[SeedData]) -> list[str]:
    if not all("visited" in d for d in data):
        return []
    rows = []
    for plies in PLIES:
        each = [[float(np.mean(d["visited"][str(plies)][way])) for d in data] for way in WAYS]
        ratios = [[a / b for a, b in zip(each[0], own, strict=True)] for own in each[1:]]
        rows.append([
            str(plies), *(f"{np.mean(own):,.0f}" for own in each),
            *(format_interval(own, 1, 1, bounds=POSITIVE) for own in ratios),
        ])  # fmt: skip
    head = ["plies", *(f"positions, {way}" for way in WAYS), *(f"times fewer, {way}" for way in WAYS[1:])]
    pairs = {n: [(a, b) for d in data for a, b in zip(*(d["visited"][str(n)][way] for way in WAYS[:2]), strict=True)]
             for n in PLIES}  # fmt: skip
    fewer = [str(n) for n, each in pairs.items() if all(b < a for a, b in each)]
    never_more = all(b <= a for each in pairs.values() for a, b in each)
    return [
        f"Positions visited for one move, after {OPENINGS} random openings of four moves a seed, moves from left to"
        " right. All three find the same value in every position; the table's positions are those of one search:",
        *markdown_table(head, rows),
        f"- alpha-beta visits fewer positions than minimax, in every position: **{_yes(bool(fewer))}**, at"
        f" {', '.join(fewer) or 'no'} plies; never more: **{_yes(never_more)}**. A player wants the exact value of"
        " every move that is as good as the best, so that two plies deep nothing is cut where no line ends",
        "",
    ]


def _yes(held: bool) -> str:
    return "yes" if held else "no"
