"""One game between two players, judged move by move: illegal moves, wins and blocks that were missed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol

from ponder.errors import UsageError
from ponder.reason.games.game import Game, state_after

IllegalMoveRule = Literal["forfeit", "random"]


class GameEvent(NamedTuple):
    """A move as it is made."""

    side: int  # 0: who began
    state: Any  # before the move
    named: int | None  # what the player named: legal, illegal or nothing
    move: int | None  # what was played; None: the game is forfeited


class MovePlayer(Protocol):
    """A player whose move may be illegal, or None if it names no move."""

    async def __call__(self, played: Sequence[int]) -> int | None: ...


@dataclass(slots=True)
class PlayerCounts:
    """What one player did. A chance to win: a move that wins at once. A chance to block: no move wins at once, some
    let the opponent win at once, and others do not."""

    moves: int = 0  # that it was asked for
    illegal: int = 0  # moves against the rules
    unreadable: int = 0  # answers that name no move
    win_chances: int = 0
    missed_wins: int = 0
    block_chances: int = 0
    missed_blocks: int = 0

    def __add__(self, other: PlayerCounts) -> PlayerCounts:
        return PlayerCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(slots=True)
class GameRecord:
    """A finished game. Index 0 is the player who began, 1 the other."""

    moves: list[int]  # those that stand on the board, the opening included
    outcome: float = 0.0  # of the player who began: 1 won, 0 drawn, -1 lost
    forfeited_by: int | None = None  # who lost by an illegal move
    counts: tuple[PlayerCounts, PlayerCounts] = field(default_factory=lambda: (PlayerCounts(), PlayerCounts()))


def winning_moves(game: Game[Any], state: Any) -> list[int]:
    """The moves that win at once."""
    return [m for m in game.moves(state) if game.outcome(game.play(state, m)) == 1.0]


def safe_moves(game: Game[Any], state: Any) -> list[int]:
    """The moves after which the opponent cannot win at once."""
    out = []
    for move in game.moves(state):
        after = game.play(state, move)
        end = game.outcome(after)
        if (end is None and not winning_moves(game, after)) or (end is not None and end >= 0):
            out.append(move)
    return out


def judge_move(game: Game[Any], state: Any, move: int | None, counts: PlayerCounts) -> None:
    """Count a move, or that none was named. An illegal one misses whatever there was to see."""
    legal = game.moves(state)
    counts.moves += 1
    counts.unreadable += move is None
    counts.illegal += move is not None and move not in legal
    wins = winning_moves(game, state)
    if wins:
        counts.win_chances += 1
        counts.missed_wins += move not in wins
        return
    safe = safe_moves(game, state)
    if 0 < len(safe) < len(legal):
        counts.block_chances += 1
        counts.missed_blocks += move not in safe


async def play_judged_game(
    game: Game[Any], first: MovePlayer, second: MovePlayer, *, opening: Sequence[int] = (),
    illegal: IllegalMoveRule = "forfeit", seed: int = 0, on_move: Callable[[GameEvent], None] | None = None,
) -> GameRecord:  # fmt: skip
    """Play one game after an opening that neither player chose.

    A player who makes no legal move loses ("forfeit"), or a legal move is drawn for it ("random").
    """
    if game.players != 2:
        raise UsageError(f"{game.name} is for {game.players} player: a match needs a game for two")
    rng = random.Random(f"illegal {seed}")
    record = GameRecord(list(opening))
    state = state_after(game, opening)
    while (end := game.outcome(state)) is None:
        side = len(record.moves) % 2
        named = await (first, second)[side](record.moves)
        judge_move(game, state, named, record.counts[side])
        legal = list(game.moves(state))
        move = named if named in legal else rng.choice(legal) if illegal == "random" else None
        if on_move is not None:
            on_move(GameEvent(side, state, named, move))
        if move is None:
            record.forfeited_by, record.outcome = side, -1.0 if side == 0 else 1.0
            return record
        record.moves.append(move)
        state = game.play(state, move)
    record.outcome = end if len(record.moves) % 2 else -end
    return record
