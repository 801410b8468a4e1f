"""A language model as a player: its answers are moves, alone or as the prior of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ponder.errors import UsageError
from ponder.protocols import Policy
from ponder.reason.games.game import Game, MovePrior, state_after
from ponder.types import Cost, Sampling, user_messages


class TextGame(Game[Any], Protocol):
    """A game whose positions can be described in text."""

    def question(self, state: Any) -> str: ...

    def parse_move(self, text: str) -> int | None:
        """The move in an answer, legal or not; None if there is none."""
        ...


def as_text_game(game: Game[Any]) -> TextGame:
    """The same game, or an error if its positions cannot be described in text."""
    if not (hasattr(game, "question") and hasattr(game, "parse_move")):
        raise UsageError(f"{game.name} cannot be described in text: it has no question(state) and parse_move(text)")
    return cast(TextGame, game)


@dataclass(frozen=True, slots=True)
class LanguageModelPrior:
    """A `MovePrior`: the share of the model's answers that name each legal move; uniform if none does."""

    model: Policy
    samples: int = 8
    sampling: Sampling = Sampling(max_tokens=8)
    answer_counts: Counter[str] = field(
        default_factory=Counter, compare=False
    )  # answers that were legal, illegal, no move

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"samples is {self.samples}; give at least 1")

    async def __call__(self, game: Game[Any], state: Any, moves: Sequence[int]) -> tuple[Sequence[float], Cost]:
        text_game = as_text_game(game)
        prompt = self.model.encode(user_messages(text_game.question(state)))
        completions = await self.model.generate(prompt, self.sampling, self.samples)
        votes: Counter[int] = Counter()
        for completion in completions:
            move = text_game.parse_move(completion.text)
            kind = "no move" if move is None else "legal" if move in moves else "illegal"
            self.answer_counts[kind] += 1
            if move is not None and move in moves:
                votes[move] += 1
        cost = sum((c.cost for c in completions), Cost())
        if not votes:
            return [1 / len(moves)] * len(moves), cost
        return [votes[m] / votes.total() for m in moves], cost


@dataclass(frozen=True, slots=True)
class GreedyPriorPlayer:
    """A player without search: the move with the highest prior, the first of equals."""

    game: Game[Any]
    prior: MovePrior

    async def __call__(self, played: Sequence[int]) -> int:
        state = state_after(self.game, played)
        moves = self.game.moves(state)
        weights, _ = await self.prior(self.game, state, moves)
        return max(zip(weights, moves, strict=True), key=lambda x: x[0])[1]


@dataclass(frozen=True, slots=True)
class LanguageModelPlayer:
    """A player that plays what most of the model's answers name, legal or not: the first of equals. None if no answer
    names a move."""

    game: TextGame
    model: Policy
    samples: int = 1
    sampling: Sampling = Sampling(max_tokens=16)
    on_answer: Callable[[str], None] | None = None  # gets each answer

    async def __call__(self, played: Sequence[int]) -> int | None:
        prompt = self.model.encode(user_messages(self.game.question(state_after(self.game, played))))
        votes: Counter[int] = Counter()
        for completion in await self.model.generate(prompt, self.sampling, self.samples):
            if self.on_answer is not None:
                self.on_answer(completion.text)
            if (move := self.game.parse_move(completion.text)) is not None:
                votes[move] += 1
        return votes.most_common(1)[0][0] if votes else None
