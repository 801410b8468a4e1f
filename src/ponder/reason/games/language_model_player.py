"""A language model as a player: its answers are moves, alone or as the prior of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
        if not (hasattr(game, "question") and hasattr(game, "parse_move")):
            raise UsageError(f"{game.name} cannot be described in text: it has no question(state) and parse_move(text)")
        text_game = cast(TextGame, game)
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
