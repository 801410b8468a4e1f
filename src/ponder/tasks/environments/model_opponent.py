"""A model as the opponent in a game: it reads the game as the policy would on that side, and never learns.

The policy itself is handed in where a job runs (`ModelOpponentReward.against`): tasks load no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ponder.errors import UsageError
from ponder.protocols import Environment, Policy
from ponder.reason.games.game import state_after
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.types import Message, Sampling

if TYPE_CHECKING:
    from ponder.tasks.environments.board_game import BoardGameTask

MODEL_PREFIX = "model:"
MAX_MOVE_TOKENS = 32  # where the task does not bound a turn


@dataclass
class ModelOpponent:
    """One side of one game. Its draws are a function of the seed and of what it reads."""

    policy: Policy
    task: BoardGameTask
    seed: int
    messages: tuple[Message, ...] = ()

    async def move(self, played: Sequence[int], attempts: int) -> int | None:
        """The next move; None after so many answers in a row that name no legal one."""
        game, state = self.task.game, state_after(self.task.game, played)
        self.messages = (*self.messages, *self._news(played)) if self.messages else self.task.first_messages(played)
        legal = game.moves(state)
        for _ in range(attempts):
            text = await self._answer()
            move = game.parse_move(text)
            if move is not None and move in legal:
                return move
            self.messages = (*self.messages, {"role": "user", "content": self.task.refusal(move, legal)})
        return None

    def _news(self, played: Sequence[int]) -> tuple[Message, ...]:
        return ({"role": "user", "content": self.task.move_message(played)},)

    async def _answer(self) -> str:
        prompt = self.policy.encode(self.messages)
        drawn = hashlib.blake2b(prompt.tobytes() + self.seed.to_bytes(8), digest_size=4).digest()
        limit = self.task.max_turn_tokens or MAX_MOVE_TOKENS
        (answer,) = await self.policy.generate(prompt, Sampling(max_tokens=limit, seed=int.from_bytes(drawn)), 1)
        content = getattr(self.policy, "turn_content", str)(answer.text)
        self.messages = (*self.messages, {"role": "assistant", "content": content})
        return answer.text

    def copy(self) -> ModelOpponent:
        return replace(self)


@dataclass(frozen=True, slots=True)
class ModelOpponentReward(EpisodeReward):
    """The reward of games against a model. `opponent_model`: its name, for who loads it."""

    opponent_model: str = field(kw_only=True)

    def against(self, policy: Policy) -> EpisodeReward:
        """The same, with the opponent in place."""

        def open_environment() -> Environment:
            environment: Any = self.open_environment()
            environment.opponent_policy = policy
            return environment

        return EpisodeReward(open_environment, self.limits)


def missing_policy(opponent: str) -> UsageError:
    return UsageError(
        f"the opponent {opponent!r} is a model, which plays only where a job loads it (train, sft, eval): else give one"
        " of ponder's own players, such as mcts:100"
    )
