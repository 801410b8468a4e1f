"""A policy for episodes without a model: it writes its script turn by turn and knows the text between two turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fakes import FakePolicy
from ponder.types import Ids, Message


@dataclass
class TurnPolicy(FakePolicy):
    """Messages are `role: content` lines; `rewrites`: its template rewrites history, so there is no bridge."""

    rewrites: bool = False

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        names = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return self.tokens(names + "".join(_shown(message) for message in messages))

    def bridge(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), closed: bool = True) -> Any:
        return None if self.rewrites else self.tokens("\n" + "".join(_shown(message) for message in messages))

    def turn_content(self, text: str) -> str:
        return text

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))


def _shown(message: Message) -> str:
    if message["role"] == "tool":
        return f"<tool_response>\n{message['content']}\n</tool_response>\n"
    return f"{message['role']}: {message['content']}\n"


def call(name: str, arguments: str) -> str:
    """A tool call as a model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
