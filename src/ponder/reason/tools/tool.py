"""What a tool is: marks that a call stands between, something to run, and how its result is put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ToolCall(NamedTuple):
    """What stood between the marks, and what came of it."""

    arguments: str
    result: str


class Tool(Protocol):
    @property
    def start_marker(self) -> str: ...

    @property
    def end_marker(self) -> str: ...

    @property
    def result_template(self) -> str:
        """How a result stands in the thought: a text with {result}."""
        ...

    @property
    def description(self) -> str:
        """What a policy is told of it."""
        ...

    async def __call__(self, said: str, earlier: Sequence[ToolCall]) -> str:
        """The result, or what went wrong, as text; it does not raise. `earlier`: its calls before, in this thought."""
        ...


def has_open_call(text: str, tool: Tool) -> bool:
    """Did a call begin that has not ended?"""
    start = text.rfind(tool.start_marker)
    return start >= 0 and tool.end_marker not in text[start + len(tool.start_marker) :]


def last_complete_call(text: str, tool: Tool) -> str | None:
    """The last call in a text; None where there is none, or it is not complete."""
    start = text.rfind(tool.start_marker)
    if start < 0:
        return None
    said, end, _ = text[start + len(tool.start_marker) :].partition(tool.end_marker)
    return said if end else None
