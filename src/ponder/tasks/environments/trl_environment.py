"""Environment classes in TRL's form (`GRPOTrainer(environment_factory=...)`), unchanged.

    class Wordle:
        def reset(self, **columns) -> str | None:  # the row's columns; what it returns is read after the prompt
        def guess(self, word: str) -> str:         # every public method is a tool, described by hints and docstring
            ...

The model calls tools until it answers without one. The reward is, in this order: what reward functions say, which take
`environments` as in TRL; what `get_reward()` returns; the attribute `reward`. A method that raises gives an error as
its result. The global `random` and `numpy.random` are seeded for each episode, so that a group has one beginning.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ponder.errors import UsageError
from ponder.reason.tools.function_schema import function_signature
from ponder.reason.tools.tool_environment import ToolEnvironment
from ponder.tasks.environments.random_stream import EpisodeRandom
from ponder.types import Action, Message, Problem, Turn

NOT_TOOLS = ("reset", "get_reward", "close")

RewardFunctionSum = Callable[[dict[str, Any]], float | None]


class TRLEnvironment:
    """One episode with an object of a TRL environment class.

    `reward`: the sum of reward functions, given the keywords that TRL passes. `max_turns`: the turns that the policy
    has; after the last one the reward is due.
    """

    def __init__(
        self, factory: Callable[[], Any], max_turns: int | None = None, reward: RewardFunctionSum | None = None
    ) -> None:
        self.factory, self.max_turns, self.reward = factory, max_turns, reward
        self._instance: Any = None
        self._turns = 0
        self._paid = 0.0  # by the attribute `reward`, in the turns so far
        self._messages: list[Message] = []

    async def reset(self, problem: Problem, seed: int) -> Turn:
        self._random = EpisodeRandom(seed)
        self._columns, self._prompt = columns_of(problem), [dict(message) for message in problem.messages]
        self._instance = await self._random.run(self.factory)
        row = self._columns | {"prompt": self._prompt}
        observation = await self._random.run(self._instance.reset, **_taken(self._instance.reset, row))
        if observation is not None and not isinstance(observation, str):
            raise UsageError(f"{type(self._instance).__name__}.reset returned {type(observation).__name__}, not text")
        methods = [getattr(self._instance, name) for name in tool_names(type(self._instance))]
        self._tools = ToolEnvironment([_with_stream(method, self._random) for method in methods])
        tools = self._tools.reset(problem, seed).tools
        return Turn(({"role": "user", "content": observation},) if observation else (), tools)

    async def act(self, action: Action) -> Turn:
        self._turns += 1
        turn = await self._tools.act(action)
        self._messages += [{"role": "assistant", "content": action.text}, *turn.messages]
        done = turn.done or self._turns == self.max_turns
        reward = await self._reward(done)
        return Turn(() if done else turn.messages, (), reward, done)

    async def truncate(self) -> Turn:
        """The reward of an episode that was cut, as TRL computes it: of what there is."""
        return Turn(reward=await self._reward(True), done=True)

    async def _reward(self, done: bool) -> float | None:
        """What this turn earned. A reward that is there at every turn is paid as it grows, so that an episode that is
        cut has what it earned so far."""
        if self.reward is not None:
            arguments = {"prompts": [self._prompt], "completions": [self._messages], "environments": [self._instance]}
            arguments |= {name: [value] for name, value in self._columns.items()}
            return await self._random.run(self.reward, arguments) if done else None
        if callable(get_reward := getattr(self._instance, "get_reward", None)):
            return _number(await self._random.run(get_reward), self._instance) if done else None
        total = getattr(self._instance, "reward", None)
        if total is None:
            return None
        earned, self._paid = _number(total, self._instance) - self._paid, _number(total, self._instance)
        return earned if earned or done else None

    async def close(self) -> None:
        if callable(close := getattr(self._instance, "close", None)):
            await self._random.run(close)


def tool_names(kind: type) -> list[str]:
    """The methods of a class that are tools, as they are written."""
    names = list(dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base)))
    return [
        name
        for name in names
        if not name.startswith("_") and name not in NOT_TOOLS and inspect.isfunction(getattr(kind, name, None))
    ]


def check_trl_environment(kind: type) -> None:
    """Raise for a class that is no environment, before one is made."""
    if not callable(getattr(kind, "reset", None)):
        raise UsageError(
            f"{kind.__name__} is no environment: it needs reset and act, or TRL's reset and public methods"
        )
    if not (names := tool_names(kind)):
        raise UsageError(f"{kind.__name__} has no public method besides reset: the model could do nothing in it")
    for name in names:
        function_signature(getattr(kind, name).__get__(object()))


def columns_of(problem: Problem) -> dict[str, Any]:
    """The columns of the row that a problem is from; else its tags and answer."""
    answer = problem.answer
    if isinstance(answer, Mapping) and "columns" in answer:
        return dict(answer["columns"])
    return {**problem.tags, "answer": answer}


def _with_stream(method: Callable[..., Any], stream: EpisodeRandom) -> Callable[..., Any]:
    """The method as a tool that draws from the episode's own stream."""

    @functools.wraps(method)
    async def call(**arguments: Any) -> Any:
        return await stream.run(method, **arguments)

    return call


def _taken(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


def _number(value: Any, environment: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        name = type(environment).__name__
        raise UsageError(f"the reward of {name} is {value!r:.60}; it must be a number") from None


def sum_rewards(functions: Sequence[Callable[..., Any]], weights: Sequence[float] = ()) -> RewardFunctionSum:
    """TRL's sum: of one completion, each function's weighted reward; None says nothing, and all None is None."""

    def reward(arguments: dict[str, Any]) -> float | None:
        values = [next(iter(function(**_taken(function, arguments)))) for function in functions]
        known = [w * v for w, v in zip(weights or [1.0] * len(values), values, strict=True) if v is not None]
        return float(sum(known)) if known else None

    return reward
