"""The tool protocol: markers around a call, a function to run, and a template for the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ToolCall(NamedTuple):
    """The text between the markers, and the result."""

    arguments: str
    result: str


class Tool(Protocol):
    @property
    def start_marker(self) -> str: ...

    @property
    def end_marker(self) -> str: ...

    @property
    def result_template(self) -> str:
        """The text inserted for a result, with a {result} slot."""
        ...

    @property
    def description(self) -> str:
        """How the prompt describes the tool."""
        ...

    async def __call__(self, arguments: str, earlier: Sequence[ToolCall]) -> str:
        """The result or the error as text; it does not raise. `earlier`: the tool's earlier calls in this chain."""
        ...


def has_open_call(text: str, tool: Tool) -> bool:
    """Is there a call without its end marker?"""
    start = text.rfind(tool.start_marker)
    return start >= 0 and tool.end_marker not in text[start + len(tool.start_marker) :]


def last_complete_call(text: str, tool: Tool) -> str | None:
    """The last call in a text; None if there is none, or it is not complete."""
    start = text.rfind(tool.start_marker)
    if start < 0:
        return None
    arguments, end, _ = text[start + len(tool.start_marker) :].partition(tool.end_marker)
    return arguments if end else None
