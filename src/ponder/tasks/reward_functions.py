"""Reward functions with TRL's signature, `f(completions, **columns) -> list[float | None]`, as a scorer.

They are called with the keywords that GRPOTrainer passes: `prompts`, `completions`, `completion_ids`,
`trainer_state` (None here) and every other column of the data set, each a list with one entry per completion. For a
plain prompt completions are strings, for a conversation `[{"role": "assistant", "content": ...}]`. A function that
does not take `**kwargs` gets what it names. A coroutine is awaited.

One call holds the completions of one prompt; TRL's may hold those of several. A function that judges each completion
by itself cannot tell. It runs in this process, as in TRL: text that nobody trusts belongs to the jailed scorers of
`ponder.verify`. Those can stand beside functions, or alone (`ponder.verify:Constraints`): a scorer judges by the
column of its own name, else by the column `answer`, else by all columns.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from ponder import user_calls
from ponder.errors import Interrupted, UsageError
from ponder.protocols import Scorer
from ponder.registry import import_object, import_path
from ponder.runs.trust import names_code
from ponder.runs.unsaved_code import callable_name
from ponder.types import Problem, Score, Trace
from ponder.user_errors import describe_error
from ponder.user_modules import module_of, normal_name
from ponder.verify.rewards.reward_registry import REWARDS, find_reward

RewardFunction = Callable[..., Any]

REWARD_NAME = "reward"  # the name under which the sum stands
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state")  # besides the columns


def as_functions(
    rewards: tuple[str | RewardFunction, ...] | str | RewardFunction,
) -> tuple[str | RewardFunction, ...]:
    """One function stands for a tuple of one."""
    return rewards if isinstance(rewards, tuple) else tuple(rewards) if isinstance(rewards, list) else (rewards,)


def reward_function_code(name: str) -> str:
    """The code that a name in a task's rewards stands for; empty for one of ponder's rewards."""
    return "" if name in REWARDS or name.startswith("language:") else name


@dataclass(frozen=True)
class RewardFunctions:
    """The weighted sum of what the functions say, each of which also stands by its name on the step.

    None means, as in TRL, that a function has nothing to say of this completion: it is left out of the sum. Where
    none says anything, or one breaks, gives no number or not one for each, the reward is undecided.
    """

    # as "module:name" or "file.py:name", which a saved job can load again, or themselves
    functions: tuple[str | RewardFunction, ...] = field(metadata=names_code(reward_function_code))
    weights: tuple[float, ...] = ()  # none given: 1 each

    def __post_init__(self) -> None:
        if not self.functions or isinstance(self.functions, str):
            raise UsageError("give at least one reward function, as a tuple of functions or of 'module:function'")
        object.__setattr__(self, "functions", tuple(map(import_path, self.functions)))
        if self.weights and len(self.weights) != len(self.functions):
            raise UsageError(f"{len(self.functions)} reward functions have {len(self.weights)} weights; give one each")
        if not all(math.isfinite(weight) for weight in self.weights):
            raise UsageError(f"weights are {self.weights}; each must be a finite number")
        self.functions_by_name  # noqa: B018  finds them, which says what is missing

    @property
    def name(self) -> str:
        return REWARD_NAME

    @cached_property
    def functions_by_name(self) -> dict[str, RewardFunction]:
        """Each function by its own name; a second one of that name is numbered."""
        functions: dict[str, RewardFunction] = {}
        for given in self.functions:
            function = _as_function_or_scorer(_find_function(given) if isinstance(given, str) else given, given)
            named = isinstance(function, Scorer)
            first = function.name if named else callable_name(function)
            names = [first, *(f"{first}_{n}" for n in range(2, len(self.functions) + 2))]
            functions[next(name for name in names if name not in functions and name != self.name)] = function
        return functions

    def required_columns(self) -> dict[str, list[str]]:
        """The columns that each function asks for by name and cannot do without."""
        return {
            name: [
                p.name
                for p in inspect.signature(function).parameters.values()
                if p.default is p.empty
                and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
                and p.name not in TRL_ARGUMENTS
            ]
            for name, function in self.functions_by_name.items()
            if not isinstance(function, Scorer)
        }

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        answer = trace.problem.answer
        if not isinstance(answer, Mapping) or "columns" not in answer:
            return [Score(None, "bad data: the problem holds no columns for reward functions")] * len(steps)
        columns: list[list[Score]] = []
        for name, function in self.functions_by_name.items():
            if isinstance(function, Scorer):
                scores = await _call_scorer(function, trace, steps)
            else:
                scores = await _call_function(name, function, _arguments(trace, steps), len(steps))
            for step, score in zip(steps, scores, strict=True):
                trace.steps[step].scores[name] = score
            columns.append(scores)
        return [self._weighted_sum(row) for row in zip(*columns, strict=True)]

    def _weighted_sum(self, scores: tuple[Score, ...]) -> Score:
        weights = self.weights or (1.0,) * len(scores)
        reasons: list[str] = []
        total = 0.0
        for name, weight, score in zip(self.functions_by_name, weights, scores, strict=True):
            if score.value is not None:
                total += weight * score.value
                reasons.append(f"{weight:g} x {name} {score.value:g}")
            elif score.reason != RETURNED_NONE:
                return Score(None, f"{name} is undecided: {score.reason}")
        return Score(total, " + ".join(reasons)) if reasons else Score(None, NOTHING_RETURNED)


RETURNED_NONE = "the function returned None"
NOTHING_RETURNED = "no reward function says anything of it"


@dataclass(frozen=True)
class FunctionReward:
    """One reward function by name, as a part of another task's reward.

    Its columns are those of the problem's row; of a problem without columns, `answer` and the problem's tags.
    """

    function: str = field(metadata=names_code())

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", normal_name(self.function))

    @property
    def name(self) -> str:
        return callable_name(self._loaded)

    @cached_property
    def _loaded(self) -> RewardFunction:
        return cast(RewardFunction, import_object(self.function))

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return await _call_function(self.name, self._loaded, _arguments(trace, steps), len(steps))


def _find_function(name: str) -> Any:
    return import_object(name) if reward_function_code(name) else find_reward(name)


def _as_function_or_scorer(value: Any, given: str | RewardFunction) -> Any:
    """A function as it is; of a class of scorers, one with its default settings."""
    if isinstance(value, type):
        try:
            instance = value()
        except TypeError as why:
            raise UsageError(f"{given!r} is a class that cannot be made without settings: {why}") from None
        if not isinstance(instance, Scorer):
            raise UsageError(f"{given!r} is a class, neither a reward function nor a scorer: give a function")
        return instance
    if not callable(value):
        raise UsageError(f"{given!r} is {type(value).__name__}, not a reward function")
    return value


async def _call_scorer(scorer: Scorer, trace: Trace, steps: Sequence[int]) -> list[Score]:
    """What a scorer says, with the column that it judges by as the problem's answer."""
    columns = trace.problem.answer["columns"]
    gold = columns.get(scorer.name, columns.get("answer", columns))
    seen = copy.copy(trace)
    seen.problem = replace(trace.problem, answer=gold)
    try:
        scores = list(await scorer(seen, steps))
    except (Exception, SystemExit) as error:  # a reward must never raise into the training loop
        return [Score(None, f"crashed: {describe_error(error)}")] * len(steps)
    if len(scores) != len(steps):
        return [Score(None, f"{scorer.name} gave {len(scores)} scores for {len(steps)} completions")] * len(steps)
    return scores


def _arguments(trace: Trace, steps: Sequence[int]) -> dict[str, list[Any] | None]:
    """What every function is called with. Copies: no function can change the problem or what the next one sees."""
    row, conversational = _row_columns(trace.problem)
    texts = [trace.text(step) for step in steps]
    prompt: Any = [dict(m) for m in trace.problem.messages] if conversational else trace.problem.question
    columns = {name: [copy.deepcopy(value) for _ in steps] for name, value in row.items()}
    return {
        **columns,
        "prompts": [copy.deepcopy(prompt) for _ in steps],
        "completions": [[{"role": "assistant", "content": t}] for t in texts] if conversational else texts,
        "completion_ids": [[int(i) for s in trace.path(step)[1:] for i in trace.steps[s].token_ids] for step in steps],
        "trainer_state": None,
    }


def _row_columns(problem: Problem) -> tuple[Mapping[str, Any], bool]:
    """The columns of a problem's row, and whether its prompt is a conversation."""
    answer = problem.answer
    if isinstance(answer, Mapping) and "columns" in answer:
        return answer["columns"], bool(answer["conversational"])
    return {**problem.tags, "answer": answer}, False


async def _call_function(name: str, function: RewardFunction, arguments: dict[str, Any], count: int) -> list[Score]:
    """One score each, whatever the function does."""
    taken = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        arguments = {key: value for key, value in arguments.items() if key in taken}
    try:
        with user_calls.track(f"reward {_location(function, name)}", sync=True, is_user_code=True):
            rewards = function(**arguments)
            if not inspect.isawaitable(rewards):
                rewards = list(rewards)
        if inspect.isawaitable(rewards):
            with user_calls.track(f"reward {_location(function, name)}", is_user_code=True):
                rewards = await rewards
        values = list(rewards)
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:  # a reward must never raise into the training loop
        return [Score(None, f"crashed: {describe_error(error)}")] * count
    if len(values) != count:
        return [Score(None, f"{name} returned {len(values)} rewards for {count} completions; return one each")] * count
    return [_to_score(value) for value in values]


def _location(function: RewardFunction, name: str) -> str:
    """Where the user finds the function: `module:name`."""
    module = module_of(function)
    return f"{module}:{name}" if module else name


def _to_score(value: Any) -> Score:
    if value is None:
        return Score(None, RETURNED_NONE)
    if isinstance(value, str | bytes):
        return Score(None, f"{value[:40]!r} is text, not a number")
    try:
        return Score(float(value))
    except (TypeError, ValueError) as error:
        return Score(None, f"not a number: {error}"[:200])
