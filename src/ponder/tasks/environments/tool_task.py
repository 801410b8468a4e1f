"""Any task with tools: its problems are played in turns, and its own verifier grades the last one."""

from __future__ import annotations

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

DEFAULT_MAX_TURNS = 8


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
        """What fine-tuning imitates: a call of the calculator with the problem's expression, and the gold answer."""
        expression = problem.tags.get("expression")
        if "calculator" not in self.tools or not isinstance(expression, str):
            raise NoGoldAnswer(
                f"the task {self.name} says nothing about how its problems are answered with these tools; arithmetic"
                " does, with the calculator"
            )
        return call_text("calculator", {"expression": expression}), self.task.gold(problem)

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
