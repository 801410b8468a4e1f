"""Who plays, and a game between two of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ponder.errors import PonderError
from ponder.protocols import Policy, Scorer
from ponder.reason.games.game import Game, game_problem, state_after
from ponder.reason.operators.cut import CUTS
from ponder.reason.operators.tree_policy import UCT
from ponder.reason.strategies.mcts import MCTS
from ponder.types import Sampling, prompt_trace

# One token is one move; the search tries every legal move; the game is zero-sum.
GAME_SEARCH = MCTS(
    width=64, cut=CUTS["token"], sampling=Sampling(max_tokens=512), selection=UCT(1.0), two_player=True,
    virtual_loss=-1.0, complete_answer=False,
)  # fmt: skip


class Player(Protocol):
    async def __call__(self, played: Sequence[int]) -> int:
        """The next move after these."""
        ...


@dataclass(frozen=True, slots=True)
class SearchPlayer:
    """Runs a new tree search before each move."""

    game: Game[Any]
    search: MCTS
    policy: Policy
    guide: Scorer

    async def __call__(self, played: Sequence[int]) -> int:
        problem = game_problem(self.game, played)
        trace = prompt_trace(problem, self.policy.encode(problem.messages))
        await self.search(trace, self.policy, self.guide)
        child = self.search.best_child(trace, 0)
        if child is None:
            raise PonderError(f"no move was found after {list(played)}: {trace.failed or 'the search has no visit'}")
        return int(trace.steps[child].token_ids[0])


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    game: Game[Any]
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    async def __call__(self, played: Sequence[int]) -> int:
        return self.rng.choice(self.game.moves(state_after(self.game, played)))


async def play_match(
    game: Game[Any], first: Player, second: Player, opening: Sequence[int] = ()
) -> tuple[float, list[int]]:
    """Play one game after an opening; returns the first player's outcome (1, 0 or -1) and the moves."""
    played = list(opening)
    state = state_after(game, played)
    while (end := game.outcome(state)) is None:
        player = first if len(played) % 2 == 0 else second
        move = await player(played)
        state = game.play(state, move)
        played.append(move)
    return (end if len(played) % 2 == 1 else -end), played
