"""Connect four: a move is a column. A state is two whole numbers, the stones of who is to move and of the other.

Column c takes the bits from c (rows + 1), its lowest cell first; the bit above its top stays empty, so that no line
runs over from one column into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.reason.games.move_reader import read_number

Bitboards = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConnectFourGame:
    columns: int = 7
    rows: int = 6
    _tops: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())
    _full: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if not (self.columns >= 1 and self.rows >= 1 and self.columns * (self.rows + 1) <= 64):
            raise UsageError(f"a board of {self.columns} columns and {self.rows} rows does not fit into 64 bits")
        height = self.rows + 1
        object.__setattr__(self, "_tops", tuple(1 << (c * height + self.rows - 1) for c in range(self.columns)))
        object.__setattr__(self, "_full", sum(((1 << self.rows) - 1) << (c * height) for c in range(self.columns)))

    @property
    def name(self) -> str:
        return "connect-four"

    @property
    def players(self) -> int:
        return 2

    def start(self) -> Bitboards:
        return 0, 0

    def moves(self, state: Bitboards) -> Sequence[int]:
        taken = state[0] | state[1]
        return [c for c, top in enumerate(self._tops) if not taken & top]

    def play(self, state: Bitboards, move: int) -> Bitboards:
        mine, other = state
        taken = mine | other
        if not 0 <= move < self.columns or taken & self._tops[move]:
            raise UsageError(f"column {move} cannot be played; those that are not full are {self.moves(state)}")
        foot = move * (self.rows + 1)
        stone = (taken + (1 << foot)) & (((1 << self.rows) - 1) << foot)  # the carry stops at the first empty cell
        return other, mine | stone

    def outcome(self, state: Bitboards) -> float | None:
        stones = state[1]
        for step in (1, self.rows, self.rows + 1, self.rows + 2):  # up, down right, right, up right
            pairs = stones & (stones >> step)
            if pairs & (pairs >> (2 * step)):
                return 1.0
        return 0.0 if (state[0] | stones) == self._full else None

    def move_text(self, state: Bitboards, move: int) -> str:
        return f"{move + 1} "

    def board(self, state: Bitboards) -> str:
        """The board for a terminal, with the numbers of the columns below it."""
        rows = [" ".join(row) for row in self._signs(state)]
        return "\n".join([*rows, " ".join(str(c + 1) for c in range(self.columns))])

    def question(self, state: Bitboards) -> str:
        """A position as a question to a language model."""
        who = "X" if state[0].bit_count() == state[1].bit_count() else "O"
        legal = ", ".join(str(c + 1) for c in self.moves(state))
        return (
            f"You play {who} in a game of connect four, and it is your turn. A stone falls to the lowest empty cell of"
            " its column; four of yours in a row, a column or a diagonal win. Dots are empty, and the last line has the"
            f" columns' numbers.\n{self.board(state)}\nThe columns that are not full are {legal}. Which column do you"
            " play?"
            " Answer with its number only."
        )

    def parse_move(self, text: str) -> int | None:
        """The column that an answer names, full or not."""
        number = read_number(text, 1, self.columns)
        return None if number is None else number - 1

    def _signs(self, state: Bitboards) -> list[list[str]]:
        """X, O or a dot for each cell, the top row first. X begins."""
        x, o = state if state[0].bit_count() == state[1].bit_count() else (state[1], state[0])
        places = [[c * (self.rows + 1) + r for c in range(self.columns)] for r in reversed(range(self.rows))]
        return [["X" if x >> bit & 1 else "O" if o >> bit & 1 else "." for bit in row] for row in places]

    def features(self, states: Sequence[Bitboards]) -> NDArray[np.float32]:
        """For each line of four that is still open to one side only: has it 1, 2 or 3 stones there?"""
        lines = _lines(self.columns, self.rows)
        bits = np.array(states, dtype=np.uint64).view(np.uint8).reshape(len(states), 2, 8)
        stones = np.unpackbits(bits, axis=2, bitorder="little")[:, :, : self.columns * (self.rows + 1)]
        counts = stones.astype(np.float32) @ lines.T  # [states, side, lines]
        mine, other = counts[:, 0], counts[:, 1]
        parts = [(a == k) & (b == 0) for a, b in ((mine, other), (other, mine)) for k in (1, 2, 3)]
        return np.concatenate(parts, axis=1).astype(np.float32)


_LINES: dict[tuple[int, int], NDArray[np.float32]] = {}


def _lines(columns: int, rows: int) -> NDArray[np.float32]:
    """Every line of four as the bits it covers."""
    if (columns, rows) not in _LINES:
        cells = [
            [(c + i * dc) * (rows + 1) + r + i * dr for i in range(4)]
            for c in range(columns)
            for r in range(rows)
            for dc, dr in ((0, 1), (1, 0), (1, 1), (1, -1))
            if 0 <= c + 3 * dc < columns and 0 <= r + 3 * dr < rows
        ]
        lines = np.zeros((len(cells), columns * (rows + 1)), np.float32)
        for place, line in enumerate(cells):
            lines[place, line] = 1
        _LINES[columns, rows] = lines
    return _LINES[columns, rows]
