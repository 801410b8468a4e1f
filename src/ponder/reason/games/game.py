"""Games as problems for a search: `GamePolicy` is the policy, `RandomPlayoutScorer` or `LearnedValueScorer` the guide.

A position is the sequence of moves that led to it, so the tokens of a trace are moves.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from ponder.errors import UsageError
from ponder.types import Completion, Cost, Ids, Message, Problem, Sampling, Score, StopReason, Trace, ids, user_messages

S = TypeVar("S")


class Game(Protocol[S]):
    """The rules of a game. A state is plain data; a move is an integer of 0 or more."""

    @property
    def name(self) -> str: ...

    @property
    def players(self) -> int:
        """1, or 2 in a zero-sum game with alternating moves."""
        ...

    def start(self) -> S: ...

    def moves(self, state: S) -> Sequence[int]:
        """The legal moves of a state that is not final."""
        ...

    def play(self, state: S, move: int) -> S: ...

    def outcome(self, state: S) -> float | None:
        """None before the end; then, for the last mover, 1 won, 0 drawn, -1 lost; with one player 1 solved, 0 not."""
        ...

    def move_text(self, state: S, move: int) -> str:
        """A move as text."""
        ...


class MovePrior(Protocol):
    """The prior probability of each move (0: not proposed), and its cost."""

    async def __call__(self, game: Game[Any], state: Any, moves: Sequence[int]) -> tuple[Sequence[float], Cost]: ...


@dataclass(frozen=True, slots=True)
class UniformPrior:
    async def __call__(self, game: Game[Any], state: Any, moves: Sequence[int]) -> tuple[Sequence[float], Cost]:
        return [1 / len(moves)] * len(moves), Cost()


def game_problem(game: Game[Any], played: Sequence[int] = ()) -> Problem:
    """The problem of finding the next move after these."""
    return Problem(f"{game.name}/{'-'.join(map(str, played)) or 'start'}", user_messages(" ".join(map(str, played))))


def state_after(game: Game[S], played: Sequence[int]) -> S:
    """The position that moves lead to."""
    state = game.start()
    for move in played:
        state = game.play(state, int(move))
    return state


def random_playout(game: Game[S], state: S, rng: random.Random) -> float:
    """Play random moves to the end; returns the outcome for the last mover before them."""
    sign = 1
    while (outcome := game.outcome(state)) is None:
        state = game.play(state, rng.choice(game.moves(state)))
        sign = -sign
    return outcome * sign if game.players == 2 else outcome


@dataclass(frozen=True, slots=True)
class GamePolicy:
    """A `Policy` over a game. With max_tokens of 1 it returns the legal moves, each once, the likeliest first; with
    more it plays random moves to the end."""

    game: Game[Any]
    prior: MovePrior = UniformPrior()
    seed: int = 0

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.tokens(str(messages[-1]["content"]))

    def tokens(self, text: str) -> Ids:
        try:
            return ids([int(word) for word in text.split()])
        except ValueError:
            raise UsageError(f"{text!r} are no moves of {self.game.name}; write move numbers, like '3 0 4'") from None

    def text(self, tokens: Ids) -> str:
        return " ".join(map(str, tokens.tolist()))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        played: list[int] = prefix.tolist()
        state = state_after(self.game, played)
        if self.game.outcome(state) is not None:
            return []
        if sampling.max_tokens == 1:
            return await self._propose_moves(state, n)
        rng = random.Random(f"{self.seed} {sampling.seed} {played}")
        return [self._play_randomly(state, sampling.max_tokens, rng) for _ in range(n)]

    async def _propose_moves(self, state: Any, n: int) -> list[Completion]:
        legal = list(self.game.moves(state))
        weights, cost = await self.prior(self.game, state, legal)
        ranked = sorted(((w, m) for w, m in zip(weights, legal, strict=True) if w > 0), key=lambda x: -x[0])[:n]
        out = []
        for place, (weight, move) in enumerate(ranked):
            over = self.game.outcome(self.game.play(state, move)) is not None
            out.append(
                _completion(self.game.move_text(state, move), [move], [math.log(weight)], "eos" if over else "stop")
            )
            if not place and cost != Cost():
                out[0] = Completion(out[0].text, out[0].token_ids, out[0].logprobs, out[0].stop, 0, cost)
        return out

    def _play_randomly(self, state: Any, most: int, rng: random.Random) -> Completion:
        moves: list[int] = []
        texts: list[str] = []
        logprobs: list[float] = []
        while len(moves) < most and self.game.outcome(state) is None:
            legal = self.game.moves(state)
            moves.append(rng.choice(legal))
            logprobs.append(-math.log(len(legal)))
            texts.append(self.game.move_text(state, moves[-1]))
            state = self.game.play(state, moves[-1])
        over = self.game.outcome(state) is not None
        return _completion("".join(texts), moves, logprobs, "eos" if over else "length")


@dataclass(frozen=True, slots=True)
class RandomPlayoutScorer:
    """A guide: the outcome of a finished game, else the mean outcome of n random playouts."""

    game: Game[Any]
    n: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        return "playouts"

    @property
    def two_player(self) -> bool:
        """Are its scores for the player who moved? A two-player search requires that."""
        return self.game.players == 2

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(_from_first_mover(self.game, trace, i, self._value(trace.token_ids(i)))) for i in steps]

    def _value(self, played: Ids) -> float:
        state = state_after(self.game, played.tolist())
        if (over := self.game.outcome(state)) is not None:
            return over
        rng = random.Random(zlib.crc32(played.tobytes(), self.seed))
        return sum(random_playout(self.game, state, rng) for _ in range(self.n)) / self.n


class PositionValue(Protocol):
    """Values of positions for the player to move."""

    def __call__(self, states: Sequence[Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class LearnedValueScorer:
    """A guide: the outcome of a finished game, else a learned value."""

    game: Game[Any]
    value: PositionValue

    @property
    def name(self) -> str:
        return "value"

    @property
    def two_player(self) -> bool:
        """Are its scores for the player who moved? A two-player search requires that."""
        return self.game.players == 2

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        states = [state_after(self.game, trace.token_ids(i).tolist()) for i in steps]
        ends = [self.game.outcome(s) for s in states]
        going = [s for s, end in zip(states, ends, strict=True) if end is None]
        sign = -1.0 if self.game.players == 2 else 1.0
        estimates = iter(self.value(going) if going else ())
        values = [sign * float(next(estimates)) if end is None else end for end in ends]
        return [Score(_from_first_mover(self.game, trace, i, v)) for i, v in zip(steps, values, strict=True)]


def _from_first_mover(game: Game[Any], trace: Trace, step: int, value: float) -> float:
    """Convert a value for the last mover to one for the player who made the step's first move."""
    moves = len(trace.steps[step].token_ids)
    return -value if game.players == 2 and moves % 2 == 0 else value


def _completion(text: str, moves: list[int], logprobs: list[float], stop: StopReason) -> Completion:
    cost = Cost(generated_tokens=len(moves))
    return Completion(text, ids(moves), np.array(logprobs, np.float32), stop, 0, cost)
