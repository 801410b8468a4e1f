"""Environments of the user's: a class with ponder's methods or with TRL's, or a function that makes an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ponder.errors import UsageError
from ponder.protocols import Environment
from ponder.registry import import_object
from ponder.tasks.environments.trl_environment import TRLEnvironment, check_trl_environment, sum_rewards
from ponder.validate import short_repr

UserEnvironment = str | Callable[[], Any]  # "file.py:name", a class, or a function without arguments


def open_user_environment(
    given: UserEnvironment,
    max_turns: int | None = None,
    rewards: Sequence[str | Callable[..., Any]] = (),
    weights: Sequence[float] = (),
) -> Environment:
    """A new environment. `rewards`: functions in TRL's form, of which TRL's classes take the sum."""
    factory = load_environment(given)
    if not _is_trl(factory):
        environment = factory()
        if not callable(getattr(environment, "act", None)):
            made = f"{short_repr(given)} made an object of {type(environment).__name__}"
            raise UsageError(f"{made}: an environment has reset and act{_gym_hint(environment)}")
        return environment
    functions = [import_object(reward) if isinstance(reward, str) else reward for reward in rewards]
    return TRLEnvironment(factory, max_turns, sum_rewards(functions, weights) if functions else None)


def check_user_environment(given: UserEnvironment, has_rewards: bool) -> None:
    """Raise for what is no environment; makes none."""
    factory = load_environment(given)
    if _is_trl(factory):
        try:
            check_trl_environment(factory)
        except UsageError as why:
            raise UsageError(f"{why}{_gym_hint(factory)}") from None
    elif has_rewards:
        raise UsageError(f"{short_repr(given)} rewards its turns itself: leave out the reward functions")


def load_environment(given: UserEnvironment) -> Any:
    """The class or function that makes an environment."""
    factory = import_object(given) if isinstance(given, str) else given
    if not callable(factory):
        raise UsageError(f"{short_repr(given)} is {type(factory).__name__}: give a class, or a function that makes one")
    return factory


def _gym_hint(thing: Any) -> str:
    wrapper = "GymEnvironment(environment, parse_action, render_observation)"
    is_gym = callable(getattr(thing, "step", None))
    return f". If it is one of gymnasium: name a function that returns {wrapper}" if is_gym else ""


def _is_trl(factory: Any) -> bool:
    return isinstance(factory, type) and not callable(getattr(factory, "act", None))
