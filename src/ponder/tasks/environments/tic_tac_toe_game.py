"""Tic-tac-toe in turns against one of ponder's own players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ponder.reason.games.game import state_after
from ponder.reason.games.tictactoe import TicTacToeGame
from ponder.tasks.environments.board_game import BoardGameTask, shared_search


@dataclass(frozen=True, kw_only=True)
class TicTacToeGameTask(BoardGameTask):
    """Tic-tac-toe in turns against `opponent`: 1 for a win, 0.5 for a draw. Perfect play draws against perfect play."""

    LEVELS = (
        {"opponent": "random"},
        {"opponent": "lookahead:2"},
        {"opponent": "mcts:100"},
        {"opponent": "alphabeta"},
    )

    max_turns: int = 10

    @property
    def name(self) -> str:
        return "tic-tac-toe-game"

    @property
    def game(self) -> TicTacToeGame:
        return TicTacToeGame()

    def board_text(self, state: str) -> str:
        """Signs in the cells that are taken, numbers in the empty ones."""
        cells = [sign if sign != "." else str(i + 1) for i, sign in enumerate(state)]
        return "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))

    def gold_move(self, played: Sequence[int]) -> int:
        """Of the best moves, the one after which a random opponent most often goes wrong."""
        state = state_after(self.game, played)
        best = shared_search(self.game).best_moves(state)
        return max(best, key=lambda move: mean_against_random(self.game.play(state, move)))


@cache  # at most 5,478 positions
def mean_against_random(state: str) -> float:
    """The mean outcome for who moved last, if the other moves at random and they play best moves."""
    game = TicTacToeGame()
    if (end := game.outcome(state)) is not None:
        return end
    return sum(_best_mean(game.play(state, reply)) for reply in game.moves(state)) / len(game.moves(state))


def _best_mean(state: str) -> float:
    game = TicTacToeGame()
    if (end := game.outcome(state)) is not None:
        return -end
    return max(mean_against_random(game.play(state, move)) for move in shared_search(game).best_moves(state))
