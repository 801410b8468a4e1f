"""A match of several games between two players, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.measure.statistics.intervals import MeanInterval, bootstrap_mean, wilson
from ponder.reason.games.game import Game
from ponder.reason.games.judged_game import GameEvent, GameRecord, IllegalMoveRule, PlayerCounts, play_judged_game
from ponder.reason.games.player_specs import PlayerResources, PlayerSpec

MAX_OPENING_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Match:
    """Two players and how they meet. They begin in turns: player 0 the first game, player 1 the second.

    With `opening`, the two games of a pair begin with the same so many random moves.
    """

    game: Game[Any]
    players: tuple[PlayerSpec, PlayerSpec]
    games: int = 1
    illegal: IllegalMoveRule = "forfeit"
    opening: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.games < 1:
            raise UsageError(f"games is {self.games}; a match has at least 1")
        if self.opening < 0:
            raise UsageError(f"opening is {self.opening}; it is a number of moves, 0 or more")

    async def play(
        self, index: int, resources: PlayerResources, on_move: Callable[[GameEvent], None] | None = None
    ) -> PlayedGame:
        """Play the game with this index."""
        starter = index % 2
        built = [spec.build(self.game, self._seed(index, side), resources) for side, spec in enumerate(self.players)]
        record = await play_judged_game(
            self.game, built[starter], built[1 - starter], opening=self.opening_moves(index), illegal=self.illegal,
            seed=self._seed(index, 2), on_move=on_move,
        )  # fmt: skip
        return PlayedGame(starter, record)

    def opening_moves(self, index: int) -> list[int]:
        """Random moves that do not end the game."""
        rng = random.Random(f"opening {self.seed} {index // 2}")
        for _ in range(MAX_OPENING_TRIES):
            state, moves = self.game.start(), list[int]()
            while len(moves) < self.opening and self.game.outcome(state) is None:
                moves.append(rng.choice(self.game.moves(state)))
                state = self.game.play(state, moves[-1])
            if self.game.outcome(state) is None:
                return moves
        raise UsageError(f"{self.game.name} is over before {self.opening} random moves: give a shorter --opening")

    def _seed(self, index: int, part: int) -> int:
        return random.Random(f"{self.seed} {index} {part}").getrandbits(31)


@dataclass(frozen=True, slots=True)
class PlayedGame:
    starter: int  # the player who began
    record: GameRecord

    @property
    def outcome(self) -> float:
        """Of player 0: 1 won, 0 drawn, -1 lost."""
        return self.record.outcome if self.starter == 0 else -self.record.outcome

    def counts(self, player: int) -> PlayerCounts:
        return self.record.counts[0 if player == self.starter else 1]

    @property
    def forfeited_by(self) -> int | None:
        """The player who lost by an illegal move."""
        side = self.record.forfeited_by
        return None if side is None else self.starter if side == 0 else 1 - self.starter

    def to_json(self) -> dict[str, Any]:
        return {
            "starter": self.starter,
            "outcome": self.outcome,
            "forfeited_by": self.forfeited_by,
            "moves": self.record.moves,
            "counts": [asdict(self.counts(0)), asdict(self.counts(1))],
        }


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The games that were finished, counted for player 0."""

    games: Sequence[PlayedGame]

    @property
    def won(self) -> int:
        return sum(g.outcome > 0 for g in self.games)

    @property
    def drawn(self) -> int:
        return sum(g.outcome == 0 for g in self.games)

    @property
    def lost(self) -> int:
        return sum(g.outcome < 0 for g in self.games)

    @property
    def points(self) -> MeanInterval:
        """Points per game, a draw being half a point, with the bootstrap's interval over games."""
        return bootstrap_mean([(1 + g.outcome) / 2 for g in self.games])

    @property
    def distinct(self) -> int:
        """Different games. Two players who draw no random numbers play the same two again and again."""
        return len({(g.starter, tuple(g.record.moves), g.forfeited_by) for g in self.games})

    def counts(self, player: int) -> PlayerCounts:
        return sum((g.counts(player) for g in self.games), PlayerCounts())

    def forfeits(self, player: int) -> int:
        return sum(g.forfeited_by == player for g in self.games)

    def to_json(self) -> dict[str, Any]:
        if not self.games:
            return {"games": 0, "won": 0, "drawn": 0, "lost": 0, "played": []}
        points, total = self.points, len(self.games)
        return {
            "games": total, "won": self.won, "drawn": self.drawn, "lost": self.lost, "distinct_games": self.distinct,
            "points": points.mean, "points_interval": [points.low, points.high],
            "won_interval": list(wilson(self.won, total)), "drawn_interval": list(wilson(self.drawn, total)),
            "lost_interval": list(wilson(self.lost, total)),
            "counts": [{**asdict(self.counts(p)), "forfeits": self.forfeits(p)} for p in (0, 1)],
            "played": [g.to_json() for g in self.games],
        }  # fmt: skip
