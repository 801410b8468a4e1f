"""Tool calls in an environment: how gold writes one, and what is wrong with one that cannot be run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.reason.tools.call_parser import END_MARK, START_MARK
from ponder.types import Action, FunctionCall, Message

MAX_CALLS = 4  # in one turn


def tool_schema(name: str, description: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """A tool whose parameters are texts, each with its description."""
    properties = {parameter: {"type": "string", "description": text} for parameter, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a policy writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{START_MARK}\n{call}\n{END_MARK}"


def tool_message(content: str) -> Message:
    return {"role": "tool", "content": content}


def is_unreadable_call(action: Action) -> bool:
    """Whether the turn tried to call a tool, and no call can be read from it."""
    return not action.tool_calls and START_MARK in action.text


def unreadable_call_message(names: Sequence[str]) -> Message:
    example = call_text(names[0], {})
    return tool_message(
        f"error: no call can be read. Write JSON with the name of a tool ({', '.join(names)}) and its arguments"
        f" between the marks, as in {' '.join(example.split())}"
    )


def text_argument(call: FunctionCall, parameter: str) -> tuple[str | None, str]:
    """One text out of a call's arguments; else None and what is wrong with them."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None, "error: the arguments are not JSON"
    value = arguments.get(parameter) if isinstance(arguments, dict) else None
    if not isinstance(value, str):
        return None, f'error: the arguments must be {{"{parameter}": "..."}}'
    return value, ""
