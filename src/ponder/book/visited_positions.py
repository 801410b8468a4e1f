"""How many positions a look ahead visits: plain minimax, alpha-beta, and alpha-beta with a table of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.reason.games.alpha_beta import WIN, AlphaBetaSearch
from ponder.reason.games.game import Game

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
