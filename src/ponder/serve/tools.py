"""Tools on offer: read from a request, written into the prompt, and called by force where the client wants that.

A tool is `{"type": "function", "function": {"name", "description", "parameters"}}`, the form that chat templates take.
Responses has the same without the inner object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ponder.models.structural_tag import Structure, structural_tag
from ponder.reason.tools.call_parser import END_MARK, START_MARK
from ponder.serve.errors import invalid
from ponder.serve.generation import ToolChoice
from ponder.serve.json_body import Fields

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARS = 100_000
MAX_CALL_ID_CHARS = 200
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

Tool = Mapping[str, Any]


def read_tools(fields: Fields, flat: bool = False) -> tuple[Tool, ...]:
    """The field `tools`. `flat`: in the form of Responses."""
    tools: dict[str, Tool] = {}
    for entry in fields.objects("tools", MAX_TOOLS) or []:
        if entry.raw("type") != "function":
            raise entry.error("type", '"function": this server has no tools of its own')
        inner = entry if flat else entry.object("function")
        if inner is None:
            raise entry.error("function", "an object with the function's name and parameters")
        tool = _read_function(inner)
        if not flat:
            entry.refuse_unread(())
        if tool["function"]["name"] in tools:
            raise inner.error("name", "unlike the other tools' names")
        tools[tool["function"]["name"]] = tool
    return tuple(tools.values())


def _read_function(inner: Fields) -> Tool:
    name = inner.required_text("name", 64)
    if not _NAME.fullmatch(name):
        raise inner.error("name", "1 to 64 letters, digits, '_', '-' and '.'")
    function: dict[str, Any] = {"name": name}
    if (description := inner.text("description", None, MAX_DESCRIPTION_CHARS)) is not None:
        function["description"] = description
    parameters = inner.object("parameters")
    function["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters.body
    inner.flag("strict")  # read by `read_strict_tools`
    inner.refuse_unread(("defer_loading", "allowed_callers"))
    return {"type": "function", "function": function}


def read_strict_tools(fields: Fields, tools: Sequence[Tool], flat: bool = False) -> frozenset[str]:
    """Names of the tools on offer that are marked `strict`. The mark is no part of what a template shows."""
    entries = fields.objects("tools", MAX_TOOLS) or []
    inner = entries if flat else [one for entry in entries if (one := entry.object("function")) is not None]
    return frozenset(one.required_text("name", 64) for one in inner if one.flag("strict")) & {*tool_names(tools)}


def tool_names(tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple(tool["function"]["name"] for tool in tools)


def read_tool_choice(fields: Fields, tools: Sequence[Tool]) -> tuple[tuple[Tool, ...], ToolChoice | str]:
    """The field `tool_choice`: the tools that it leaves on offer, and whether one must be called (or which)."""
    value, names = fields.raw("tool_choice"), tool_names(tools)
    if value is None or isinstance(value, str):
        choice = fields.choice("tool_choice", ("none", "auto", "required"), "auto")
        if choice == "required" and not tools:
            raise invalid("tool_choice is 'required', but there are no tools", "tool_choice", "invalid_value")
        return tuple(tools), choice or "auto"
    entry = fields.object("tool_choice")
    assert entry is not None
    kind = entry.choice("type", ("function", "allowed_tools"))
    if kind == "allowed_tools":
        inner = entry.object("allowed_tools") or entry
        mode = inner.choice("mode", ("auto", "required"), "auto") or "auto"
        allowed = [_named_function(one) for one in inner.objects("tools", MAX_TOOLS) or []]
        if not allowed or not set(allowed) <= set(names):
            raise inner.error("tools", f"a list of some of these: {', '.join(names)[:200]}")
        return tuple(tool for tool in tools if tool["function"]["name"] in allowed), mode
    name = _named_function(entry)
    if kind is None or name not in names:
        raise fields.error("tool_choice", f"none, auto, required, or one of these functions: {', '.join(names)[:200]}")
    return tuple(tools), name


def _named_function(entry: Fields) -> str:
    """`{"type": "function", "function": {"name": ...}}`, or the name without the inner object."""
    entry.raw("type")
    inner = entry.object("function") or entry
    return inner.required_text("name", 64)


def call_schema(tools: Sequence[Tool], choice: str) -> str:
    """The JSON schema of one call, of any tool or of the one that is chosen."""
    chosen = [tool["function"] for tool in tools if choice in ("required", tool["function"]["name"])]
    schemas = {f"arguments_{i}": _moved(f["parameters"], f"arguments_{i}") for i, f in enumerate(chosen)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": f["name"]}, "arguments": {"$ref": f"#/$defs/arguments_{i}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for i, f in enumerate(chosen)
    ]
    return json.dumps({**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": schemas})


def call_structural_tag(tools: Sequence[Tool], strict: Collection[str]) -> str:
    """A structural tag for calls of any tool between the marks of calls: of strict tools by their schemas, of others
    with any arguments."""
    known = [
        tool if tool["function"]["name"] in strict
        else {"function": {"name": tool["function"]["name"], "parameters": {"type": "object"}}}
        for tool in tools
    ]  # fmt: skip
    schema = json.loads(call_schema(known, "required"))
    return structural_tag([Structure(START_MARK + "\n", schema, "\n" + END_MARK)], [START_MARK])


def _moved(schema: Any, name: str) -> Any:
    """A schema that stands under `$defs` of another: its references to itself follow it."""
    if isinstance(schema, dict):
        return {
            key: f"#/$defs/{name}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, name)
            for key, value in schema.items()
            if key != "$schema"
        }
    return [_moved(entry, name) for entry in schema] if isinstance(schema, list) else schema


def read_calls(message: Fields) -> list[dict[str, Any]]:
    """The field `tool_calls` of an assistant's message, with arguments as objects: templates write them as JSON."""
    calls = []
    for entry in message.objects("tool_calls", MAX_TOOLS) or []:
        entry.choice("type", ("function",))
        inner = entry.object("function")
        if inner is None:
            raise entry.error("function", "an object with the function's name and arguments")
        name, arguments = inner.required_text("name", 64), inner.text("arguments", "{}") or "{}"
        calls.append(history_call(entry.text("id", "", MAX_CALL_ID_CHARS) or "", name, arguments))
    return calls


def history_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in a message, for a template."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    function = {"name": name, "arguments": parsed if isinstance(parsed, dict) else arguments}
    return {"type": "function", "id": call_id, "function": function}
