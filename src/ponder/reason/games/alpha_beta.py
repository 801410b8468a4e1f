"""Alpha-beta search: exact play, or a look so many plies ahead (Knuth and Moore 1975).

Values are whole numbers for the player to move: 0 a draw or an unknown end, `WIN` - k a win in k plies, k - `WIN` a
loss in k plies. So a quick win is better than a slow one, and a slow loss better than a quick one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ponder.errors import UsageError
from ponder.reason.games.game import Game, state_after

WIN = 10_000  # more than any game has plies
TO_THE_END = -1  # as a number of plies: no horizon
MAX_POSITIONS = 1_000_000  # in the table of one search; some hundred bytes and some ten microseconds each


@dataclass(slots=True)
class AlphaBetaSearch:
    """Negamax with a table of the positions that were looked at: of each, bounds on its value."""

    game: Game[Any]
    max_positions: int = MAX_POSITIONS
    table: dict[tuple[Any, int], tuple[int, int]] = field(default_factory=dict)

    def move_values(self, state: Any, plies: int = TO_THE_END) -> dict[int, int]:
        """The value of each legal move for the player who makes it. Those below the best are upper bounds."""
        values: dict[int, int] = {}
        best = -WIN
        for move in self.game.moves(state):
            # A window that begins one below the best: a move as good as the best has its exact value.
            after = self.game.play(state, move)
            values[move] = _one_ply_later(-self._value(after, _after(plies), -WIN, -_one_ply_earlier(best - 1)))
            best = max(best, values[move])
        return values

    def best_moves(self, state: Any, plies: int = TO_THE_END) -> list[int]:
        values = self.move_values(state, plies)
        return [move for move, value in values.items() if value == max(values.values())]

    def _value(self, state: Any, plies: int, alpha: int, beta: int) -> int:
        """The value for the player to move if it lies between alpha and beta; else a bound on that side."""
        end = self.game.outcome(state)
        if end is not None:
            return round(-end * WIN)
        if plies == 0:
            return 0
        low, high = self.table.get((state, plies), (-WIN, WIN))
        if low >= beta or low == high:
            return low
        if high <= alpha:
            return high
        alpha, beta = max(alpha, low), min(beta, high)
        best, bound = -WIN, alpha
        for move in self.game.moves(state):
            after = self.game.play(state, move)
            below = self._value(after, _after(plies), -_one_ply_earlier(beta), -_one_ply_earlier(bound))
            best = max(best, _one_ply_later(-below))
            bound = max(bound, best)
            if best >= beta:
                break
        self._store(state, plies, (low, best) if best <= alpha else (best, high) if best >= beta else (best, best))
        return best

    def _store(self, state: Any, plies: int, bounds: tuple[int, int]) -> None:
        if len(self.table) >= self.max_positions and (state, plies) not in self.table:
            raise UsageError(
                f"alpha-beta saw {self.max_positions:,} positions of {self.game.name} and no end of them: take"
                " lookahead:6 or mcts:800, or a smaller board"
            )
        self.table[state, plies] = bounds


def _after(plies: int) -> int:
    return plies if plies == TO_THE_END else plies - 1


def _one_ply_later(value: int) -> int:
    return value - (value > 0) + (value < 0)


def _one_ply_earlier(value: int) -> int:
    return value + (value > 0) - (value < 0)


@dataclass(frozen=True, slots=True)
class AlphaBetaPlayer:
    """Plays a best move by alpha-beta search, `plies` deep or to the end; among equals it draws one."""

    search: AlphaBetaSearch
    plies: int = TO_THE_END
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        if self.plies != TO_THE_END and self.plies < 1:
            raise UsageError(f"plies is {self.plies}; a look ahead has at least 1")

    async def __call__(self, played: Sequence[int]) -> int:
        return self.rng.choice(self.search.best_moves(state_after(self.search.game, played), self.plies))
