"""Environments with gymnasium's methods: `reset(seed=...) -> (observation, info)` and `step(action) -> (observation,
reward, terminated, truncated, info)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ponder.types import Action, Message, Problem, Turn


class GymEnvironment:
    """One episode of a gymnasium-style environment, which talks in texts.

    `parse_action` makes an action of what the policy wrote, and raises ValueError, KeyError or IndexError where it is
    none: the policy then reads why, which costs it a turn. `render_observation` makes the text of an observation.

        def make():
            lake = gymnasium.make("FrozenLake-v1", render_mode="ansi")
            return GymEnvironment(lake, {"left": 0, "down": 1, "right": 2, "up": 3}.__getitem__)
    """

    def __init__(
        self,
        environment: Any,
        parse_action: Callable[[str], Any] = int,
        render_observation: Callable[[Any], str] = str,
    ) -> None:
        self.environment, self.parse_action, self.render_observation = environment, parse_action, render_observation

    def reset(self, problem: Problem, seed: int) -> Turn:
        observation, _ = self.environment.reset(seed=seed)
        return Turn((self._message(observation),))

    def act(self, action: Action) -> Turn:
        try:
            move = self.parse_action(action.text.strip())
        except (ValueError, KeyError, IndexError) as error:
            return Turn(({"role": "user", "content": f"That is no action: {error}"},))
        observation, reward, terminated, truncated, _ = self.environment.step(move)
        if terminated or truncated:
            return Turn((), (), float(reward), True, "terminated" if terminated else "truncated")
        return Turn((self._message(observation),), (), float(reward) or None)

    def close(self) -> None:
        if callable(close := getattr(self.environment, "close", None)):
            close()

    def _message(self, observation: Any) -> Message:
        return {"role": "user", "content": self.render_observation(observation)}
