"""Tools for a job's task: functions that the model may call while it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from ponder.common_settings import MAX_TURNS_HELP, TOOLS_HELP
from ponder.reason.tools.function_tool import tool_code
from ponder.runs.trust import names_code
from ponder.settings import When
from ponder.tasks.environments.tool_task import import_paths, with_tools

ToolNames = tuple[str | Callable[..., Any], ...]


@dataclass(frozen=True, kw_only=True)
class ToolFields:
    """A job with tools has its task as a `ToolTask`."""

    TASK_FIELD: ClassVar[str] = "task"

    tools: Annotated[ToolNames, TOOLS_HELP] = field(default=(), metadata=names_code(tool_code))
    max_turns: Annotated[int, MAX_TURNS_HELP, When("tools")] = 8

    def add_tools(self) -> None:
        """Give the tools to the job's task, when the job is made."""
        if not self.tools:
            return
        object.__setattr__(self, "tools", import_paths(self.tools))
        task: Any = getattr(self, self.TASK_FIELD)
        object.__setattr__(self, self.TASK_FIELD, with_tools(task, self.tools, self.max_turns))
