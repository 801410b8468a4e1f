"""What a tool is: marks that a call stands between, something to run, and how its result is put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Call(NamedTuple):
    """What stood between the marks, and what came of it."""

    said: str
    result: str


class Tool(Protocol):
    @property
    def begin(self) -> str: ...

    @property
    def end(self) -> str: ...

    @property
    def shown(self) -> str:
        """How a result stands in the thought: a text with {result}."""
        ...

    @property
    def about(self) -> str:
        """What a policy is told of it."""
        ...

    async def __call__(self, said: str, earlier: Sequence[Call]) -> str:
        """The result, or what went wrong, as text; it does not raise. `earlier`: its calls before, in this thought."""
        ...


def is_open(text: str, tool: Tool) -> bool:
    """Did a call begin that has not ended?"""
    start = text.rfind(tool.begin)
    return start >= 0 and tool.end not in text[start + len(tool.begin) :]


def last_call(text: str, tool: Tool) -> str | None:
    """The last call in a text; None where there is none, or it is not complete."""
    start = text.rfind(tool.begin)
    if start < 0:
        return None
    said, end, _ = text[start + len(tool.begin) :].partition(tool.end)
    return said if end else None
