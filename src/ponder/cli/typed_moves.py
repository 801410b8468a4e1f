"""Moves that a person types."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1
MAX_LINE_BYTES = 4096
QUIT_WORDS = ("q", "quit", "exit")


class EndOfInput(Exception):
    """The person left, or there is nothing more to read."""


class TypedMoves:
    """Asks until a legal move is typed. `check` raises where the command was asked to stop meanwhile."""

    def __init__(self, out: Any, check: Callable[[], None]) -> None:
        self.out, self.check = out, check
        self._pending = b""

    def __call__(self, game: Any, state: Any) -> int:
        legal = game.moves(state)
        while True:
            print(f"your move ({', '.join(str(m + 1) for m in legal)}; q to stop): ", end="", file=self.out, flush=True)
            line = self._read_line()
            if line is None or line.strip().lower() in QUIT_WORDS:
                print(file=self.out)
                raise EndOfInput
            move = game.parse_move(line)
            if move is not None and move in legal:
                return int(move)
            print(f"{line.strip()[:40]!r} is no move here", file=self.out)

    def _read_line(self) -> str | None:
        """One line of standard input; None at its end. A stop is noticed while it waits."""
        try:
            fd = sys.stdin.fileno()
        except (OSError, ValueError, AttributeError):  # no file: a test's, or a notebook's
            return sys.stdin.readline() or None
        while b"\n" not in self._pending and len(self._pending) < MAX_LINE_BYTES:
            self.check()
            if not select.select([fd], [], [], POLL_SECONDS)[0]:
                continue
            more = os.read(fd, 4096)
            if not more:
                line, self._pending = self._pending, b""
                return line.decode("utf-8", "replace") or None
            self._pending += more
        first, _, self._pending = self._pending.partition(b"\n")
        return first.decode("utf-8", "replace")
