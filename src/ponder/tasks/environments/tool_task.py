"""Any task with tools: its problems are played in turns, and its own verifier grades the last one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder import registry
from ponder.errors import NoGoldAnswer, UsageError
from ponder.protocols import Environment, Task
from ponder.reason.episodes import EpisodeLimits
from ponder.reason.tools.function_tool import NAMED_TOOLS, ToolFunction, check_tools, tool_code
from ponder.reason.tools.tool_environment import GoldTurns, ToolEnvironment
from ponder.runs.trust import names_code
from ponder.tasks.answer_style import with_style
from ponder.tasks.environments.episode_reward import EpisodeAnswer
from ponder.tasks.environments.process_environment import ProcessEnvironment
from ponder.tasks.environments.tool_actions import call_text
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem
from ponder.user_modules import is_file, split_name
from ponder.verify import evaluate_arithmetic

DEFAULT_MAX_TURNS = 8
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_GOLD_CALLS: dict[str, Callable[[str], str]] = {
    "calculator": lambda expression: call_text("calculator", {"expression": expression}),
    "python": lambda expression: call_text("python", {"code": f"print({expression})"}),
}


@dataclass(frozen=True)
class ToolTask(WrappedTask):
    """A task whose problems are answered with tools: functions with type hints and a docstring, or names
    (`calculator`, `python`, `file.py:name`). `max_turns` bounds the policy's turns, the answer included."""

    task: Task
    tools: tuple[str | ToolFunction, ...] = field(metadata=names_code(tool_code))
    max_turns: int = DEFAULT_MAX_TURNS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", import_paths(self.tools))
        if not self.tools:
            raise UsageError("give at least one tool, as a function or a name")
        if hasattr(self.task.verifier, "episodes"):
            raise UsageError(f"the task {self.task.name} is played in an environment of its own: leave out the tools")
        check_tools(self.tools)
        self.limits  # noqa: B018  checks max_turns

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(self.max_turns)

    @property
    def verifier(self) -> EpisodeAnswer:
        return EpisodeAnswer(self.task.verifier, open_tools(self.tools, self.gold_turns), self.limits)

    def gold_turns(self, problem: Problem) -> tuple[str, ...]:
        """What fine-tuning imitates: a call with each expression of the problem's solution, and then the gold answer.
        The last turn of calls has those for which there are no turns left."""
        write_call, given = self._written_calls(problem)
        calls = [write_call(text) for text in given if evaluate_arithmetic(text, allow_decimals=True).value is not None]
        alone = self.max_turns - 2
        return (*calls[:alone], *(["\n".join(calls[alone:])] if calls[alone:] else []), self.task.gold(problem))

    def random_turns(self, problem: Problem, rng: random.Random) -> tuple[str, ...]:
        """What chance does: a call with the question's numbers in their order and random signs between them, and then
        its value as the answer (0, where it has none)."""
        write_call, _ = self._written_calls(problem)
        first, *others = _NUMBER.findall(str(problem.messages[-1]["content"]).replace(",", "")) or ["0"]
        expression = first + "".join(f" {rng.choice('+-*/')} {number}" for number in others)
        value = evaluate_arithmetic(expression, allow_decimals=True).value
        answered = replace(problem, answer=str(value or 0), tags={})
        return write_call(expression), self.task.gold(answered)

    def _written_calls(self, problem: Problem) -> tuple[Callable[[str], str], Sequence[str]]:
        """How an expression is written as a call, and the expressions of the problem's solution."""
        write_call = next((call for name, call in _GOLD_CALLS.items() if name in self.tools), None)
        single = problem.tags.get("expression")
        given = [single] if isinstance(single, str) else problem.tags.get("expressions")
        if write_call is None or given is None or self.max_turns < 2:
            raise NoGoldAnswer(
                f"the task {self.name} says nothing about how its problems are answered with these tools; arithmetic,"
                " gsm8k and svamp do, with the calculator or python"
            )
        return write_call, given

    def restyle(self, style: str) -> ToolTask:
        return replace(self, task=with_style(self.task, style))


def with_tools(task: Task, tools: Sequence[str | ToolFunction], max_turns: int = DEFAULT_MAX_TURNS) -> Task:
    """The task with these tools in place of any that it has; without any, the task as it is."""
    if not tools:
        return task
    return ToolTask(task.task if isinstance(task, ToolTask) else task, tuple(tools), max_turns)


def open_tools(tools: Sequence[str | ToolFunction], gold_turns: GoldTurns | None = None) -> Callable[[], Environment]:
    """What makes an environment with these tools. Where one is from a file (`file.py:name`), they run in worker
    processes: a tool that hangs ends its episode, and nothing else."""
    names = [tool for tool in tools if isinstance(tool, str)]
    if len(names) == len(tools) and any(is_file(split_name(name)[0]) for name in names):
        return lambda: ProcessEnvironment.of_tools(names)
    return lambda: ToolEnvironment(tools, gold_turns)


def import_paths(tools: Any) -> tuple[str | ToolFunction, ...]:
    """Each tool by the name under which it is found again, where there is one: that can be saved with a job."""
    given = (tools,) if isinstance(tools, str) or callable(tools) else tuple(tools)
    return tuple(_import_path(tool) for tool in given)


def _import_path(tool: str | ToolFunction) -> str | ToolFunction:
    own = next((name for name, function in NAMED_TOOLS.items() if tool in (name, function)), None)
    if own is not None:
        return own
    return registry.import_path(tool)
