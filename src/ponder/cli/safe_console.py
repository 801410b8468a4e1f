"""A rich console that sends the codes of its own layout and styles, and none that stand in the texts it shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ponder.terminal import escape_controls, raw_stream


class SafeConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_controls(segment.text))


def console_on(stream: Any, **how: Any) -> SafeConsole:
    return SafeConsole(file=raw_stream(stream), **how)
