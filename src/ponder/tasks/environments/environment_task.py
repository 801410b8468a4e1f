"""The base class of generated tasks that are played in an environment."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from ponder.errors import NoGoldAnswer
from ponder.protocols import Environment
from ponder.reason.episodes import EpisodeLimits
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.generated.generated_task import GeneratedTask
from ponder.types import Problem

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class EnvironmentTask(GeneratedTask[Item]):
    """A task whose problems are played in turns. `max_turns`, `max_read_tokens` and `max_seconds` bound an episode,
    beside `max_tokens` of the sampling, which bounds what the policy writes in all turns together."""

    max_turns: int = 8
    max_turn_tokens: int | None = None
    max_read_tokens: int = 4096
    max_seconds: float = 60.0

    @abstractmethod
    def environment(self) -> Environment:
        """A new environment, which has not begun."""

    @property
    def verifier(self) -> EpisodeReward:
        limits = EpisodeLimits(self.max_turns, self.max_turn_tokens, self.max_read_tokens, self.max_seconds)
        return EpisodeReward(self.environment, limits)

    def gold(self, problem: Problem) -> str:
        raise NoGoldAnswer(f"task {self.name!r} is played in turns, so no single text is its answer")
