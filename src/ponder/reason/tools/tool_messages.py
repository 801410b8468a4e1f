"""Tools in a conversation: described in the prompt, called in the assistant's messages, answered in the role `tool`.

A tool is `{"type": "function", "function": {"name", "description", "parameters"}}`, the form that chat templates take.
A template that knows nothing of tools gets the same conversation in plain messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ponder.reason.tools.call_parser import END_MARK, START_MARK
from ponder.types import Message

ToolSchema = Mapping[str, Any]

_INSTRUCTION = """\
These functions are yours to call, one JSON object each:
{tools}
To call one, write a JSON object with its name and arguments between marks:
{start}
{{"name": "NAME", "arguments": {{...}}}}
{end}
Its result comes back between <tool_response> marks."""


def without_tool_roles(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Message]:
    """A conversation for a template that knows nothing of tools: they are described in the system message, and calls
    and results are part of the texts."""
    out: list[Message] = []
    for message in messages:
        role, text = message["role"], str(message.get("content") or "")
        if role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            if messages and out and out[-1].get("tool_response"):
                out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n{text}"}
            else:
                out.append({"role": "user", "content": text, "tool_response": True})
            continue
        calls = [_call_text(call) for call in message.get("tool_calls") or ()]
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        out.append({**plain, "content": "\n".join([*([text] if text or not calls else []), *calls])})
    if tools:
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        instruction = _INSTRUCTION.format(tools=described, start=START_MARK, end=END_MARK)
        if out and out[0]["role"] == "system":
            out[0] = {**out[0], "content": f"{out[0]['content']}\n\n{instruction}"}
        else:
            out.insert(0, {"role": "system", "content": instruction})
    return [{key: value for key, value in message.items() if key != "tool_response"} for message in out]


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{START_MARK}\n{{"name": {json.dumps(function["name"])}, "arguments": {written}}}\n{END_MARK}'


@lru_cache(maxsize=32)
def takes_tools(template: str | None) -> bool:
    """Whether a chat template knows of tools."""
    return template is not None and re.search(r"\btools\b", template) is not None
