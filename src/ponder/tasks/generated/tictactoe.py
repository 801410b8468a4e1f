"""Find a best move in tic-tac-toe."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ponder import verify
from ponder.errors import UsageError
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
ROTATED = (6, 3, 0, 7, 4, 1, 8, 5, 2)  # where each cell of the board turned by 90 degrees comes from
FLIPPED = (2, 1, 0, 5, 4, 3, 8, 7, 6)


@dataclass(frozen=True, kw_only=True)
class TicTacToe(QuestionTask[str]):
    """Positions with `min_empty` to `max_empty` empty cells, in which not every move is as good as the best."""

    ANSWER_SPEC = AnswerSpec("the number of the cell", ("tag", "boxed"), allow_bare=False)
    LEVELS = (
        {"min_empty": 2, "max_empty": 3},
        {"min_empty": 3, "max_empty": 5},
        {"min_empty": 5, "max_empty": 8},
    )

    min_empty: int = 2
    max_empty: int = 8

    def check(self) -> None:
        if not 2 <= self.min_empty <= self.max_empty <= 8:
            raise UsageError(
                f"positions have {self.min_empty} to {self.max_empty} empty cells; give a range within 2 to 8"
            )

    @property
    def name(self) -> str:
        return "tic-tac-toe"

    @property
    def verifier(self) -> verify.TicTacToeVerifier:
        return verify.TicTacToeVerifier()

    def draw(self, rng: random.Random) -> str:
        while True:
            board = "." * 9
            for _ in range(9 - rng.randint(self.min_empty, self.max_empty)):
                board = apply_move(board, rng.choice(empty_cells(board)))
                if winner(board):
                    break
            else:
                if 0 < len(best_moves(board)) < board.count("."):
                    return board

    def key(self, item: str) -> str:
        """The same for a board turned or seen in a mirror."""
        seen = [item]
        for _ in range(3):
            seen.append("".join(seen[-1][i] for i in ROTATED))
        return min([*seen, *("".join(board[i] for i in FLIPPED) for board in seen)])

    def question(self, item: str) -> str:
        rows = "\n".join(" ".join(item[i : i + 3]) for i in (0, 3, 6))
        return (
            f"You are {player_to_move(item)} in this game of tic-tac-toe, and it is your turn. The cells are numbered"
            f" 1 to 9 row by row; dots are empty.\n{rows}\nWhich move leads to the best outcome against best play?"
        )

    def answer(self, item: str) -> Mapping[str, str]:
        return {"board": item, "turn": player_to_move(item)}

    def tags(self, item: str) -> dict[str, Any]:
        return {"empty": item.count(".")}

    def solution(self, problem: Problem) -> str:
        return str(best_moves(problem.answer["board"])[0] + 1)


def player_to_move(board: str) -> str:
    """X begins."""
    return "X" if board.count("X") == board.count("O") else "O"


def empty_cells(board: str) -> list[int]:
    return [i for i, sign in enumerate(board) if sign == "."]


def apply_move(board: str, cell: int) -> str:
    return board[:cell] + player_to_move(board) + board[cell + 1 :]


def winner(board: str) -> str | None:
    return next((board[a] for a, b, c in LINES if board[a] != "." and board[a] == board[b] == board[c]), None)


def best_moves(board: str) -> list[int]:
    """The moves after which the other can reach least."""
    values = {cell: minimax_value(apply_move(board, cell)) for cell in empty_cells(board)}
    return [cell for cell, reached in values.items() if reached == min(values.values())]


@cache  # at most 5,478 positions
def minimax_value(board: str) -> int:
    """What the player to move can reach: 1 a win, 0 a draw, -1 a loss."""
    if winner(board):
        return -1  # the other has just won
    return max((-minimax_value(apply_move(board, cell)) for cell in empty_cells(board)), default=0)
