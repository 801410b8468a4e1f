"""Connect four in turns against one of ponder's own players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder import event_loop
from ponder.errors import UsageError
from ponder.reason.games.connect_four import Bitboards, ConnectFourGame
from ponder.tasks.environments.board_game import BoardGameTask, tree_search_player
from ponder.tasks.generated.generated_task import require_at_least

GOLD_SIMULATIONS = 200  # of the tree search that plays gold
MAX_EXACT_CELLS = 16  # of a board that is searched to the end of the game


@dataclass(frozen=True, kw_only=True)
class ConnectFourTask(BoardGameTask):
    """Connect four in turns against `opponent`, on `columns` x `rows` cells: 1 for a win, 0.5 for a draw."""

    LEVELS = (
        {"columns": 5, "rows": 4, "opponent": "random", "max_turns": 20},
        {"columns": 7, "rows": 6, "opponent": "random", "max_turns": 42},
        {"columns": 7, "rows": 6, "opponent": "lookahead:2", "max_turns": 42},
        {"columns": 7, "rows": 6, "opponent": "mcts:100", "max_turns": 42},
    )

    columns: int = 7
    rows: int = 6
    max_turns: int = 42

    def check(self) -> None:
        require_at_least(4, columns=self.columns, rows=self.rows)
        if self.columns > 9:
            raise UsageError(f"columns is {self.columns}; a column has one digit, so there are at most 9")
        super().check()
        if self.opponent == "alphabeta" and self.columns * self.rows > MAX_EXACT_CELLS:
            raise UsageError(
                f"alphabeta searches to the end of the game, which a board of {self.columns} x {self.rows} is too large"
                " for: take mcts:400, or 4 columns and 4 rows"
            )

    @property
    def name(self) -> str:
        return "connect-four"

    @property
    def game(self) -> ConnectFourGame:
        return ConnectFourGame(self.columns, self.rows)

    def board_text(self, state: Bitboards) -> str:
        return self.game.board(state)

    def gold_move(self, played: Sequence[int]) -> int:
        """The move of a tree search, which is good and not always the best."""
        return event_loop.run(self._search(played))

    async def _search(self, played: Sequence[int]) -> int:
        return await tree_search_player(self.game, GOLD_SIMULATIONS, 0)(played)
