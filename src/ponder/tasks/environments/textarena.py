"""The games of TextArena for one player (the extra `textarena`).

ponder eval textarena:Wordle-v0

They draw from the global `random`, so they are played in processes of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ponder.errors import MissingExtra, NoGoldAnswer, UnknownName, UsageError
from ponder.reason.episodes import EpisodeLimits
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.environments.process_environment import CALL_SECONDS, ProcessEnvironment
from ponder.types import Action, Message, Problem, Turn, user_messages

_GAME = -1  # who speaks, in an observation
_CLASS = "ponder.tasks.environments.textarena:TextArenaGame"


class TextArenaGame:
    """One game. The problem's answer names it; its reward comes with its end."""

    def reset(self, problem: Problem, seed: int) -> Turn:
        textarena = importlib.import_module("textarena")
        self.game = textarena.make(raw_name(problem.answer["game"]))
        self.game.reset(num_players=1, seed=seed)
        return Turn((self._message(),))

    def act(self, action: Action) -> Turn:
        done, _ = self.game.step(action.text)
        if not done:
            return Turn((self._message(),))
        rewards, info = self.game.close()
        reason = str(info.get(0, {}).get("reason", ""))
        return Turn((), (), float(rewards[0]), True, reason[:200])

    def _message(self) -> Message:
        _, observation = self.game.get_observation()
        if not isinstance(observation, str):  # without the policy's own words, which it has read
            observation = "\n".join(text for speaker, text, *_ in observation if speaker == _GAME)
        return {"role": "user", "content": observation}


@dataclass(frozen=True, kw_only=True)
class TextArena:
    """A game of TextArena for one player. Its reward is the game's own, from -1 or 0 to 1; problems are seeds."""

    PART_SETTING: ClassVar[str] = "game"
    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {"game": "one of the games below; textarena:NAME says the same"}

    game: str
    prompt: str = "Play this game."
    system: str | None = None
    train_size: int = 10_000
    test_size: int = 200
    max_turns: int = 16
    max_turn_tokens: int | None = None
    max_read_tokens: int = 8192
    max_seconds: float = 60.0
    call_seconds: float = CALL_SECONDS

    def __post_init__(self) -> None:
        if self.game not in game_names():
            raise UnknownName("TextArena game", self.game, game_names())
        if min(self.train_size, self.test_size) < 1 or not self.call_seconds > 0:
            raise UsageError("train_size, test_size and call_seconds must each be positive")
        if not self.prompt.strip():
            raise UsageError("the prompt is empty: say something before the game's own rules")
        self.limits  # noqa: B018  checks them

    @staticmethod
    def choices() -> list[str]:
        return game_names()

    @property
    def name(self) -> str:
        return f"textarena:{self.game}"

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns, self.max_turn_tokens, self.max_read_tokens, self.max_seconds)

    @property
    def verifier(self) -> EpisodeReward:
        return EpisodeReward(lambda: ProcessEnvironment(_CLASS, self.call_seconds), self.limits)

    @cached_property
    def train(self) -> list[Problem]:
        return [self._problem("train", number) for number in range(self.train_size)]

    @cached_property
    def test(self) -> list[Problem]:
        return [self._problem("test", number) for number in range(self.test_size)]

    def gold(self, problem: Problem) -> str:
        raise NoGoldAnswer(f"task {self.name!r} is played in turns, so no single text is its answer")

    def _problem(self, split: str, number: int) -> Problem:
        return Problem(f"{self.name}/{split}/{number}", user_messages(self.prompt, self.system), {"game": self.game})


def game_names() -> list[str]:
    """The games by their usual names, those for several players too."""
    return sorted(name for name in _registry() if not name.endswith(("-raw", "-train")))


def raw_name(game: str) -> str:
    """The game without TextArena's wrappers, which write its whole history into every observation."""
    return f"{game}-raw" if f"{game}-raw" in _registry() else game


def _registry() -> dict[str, Any]:
    if importlib.util.find_spec("textarena") is None:
        raise MissingExtra("a game of TextArena", "textarena", "textarena")
    registry: dict[str, Any] = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    return registry
