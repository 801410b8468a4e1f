"""Items of the Responses API as messages for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ponder.serve.errors import invalid
from ponder.serve.json_body import Fields
from ponder.serve.tools import MAX_CALL_ID_CHARS, history_call
from ponder.types import Message

MAX_ITEMS = 10_000
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "reasoning_text": "text",
               "summary_text": "text", "refusal": "refusal"}  # fmt: skip

Item = Mapping[str, Any]


def read_input(fields: Fields) -> tuple[Item, ...]:
    """The field `input`: a string is one message of the user. What each item holds is checked by `item_messages`."""
    if isinstance(fields.raw("input"), str):
        text = fields.required_text("input")
        return ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},)
    items = fields.objects("input", MAX_ITEMS)
    if not items:
        raise fields.error("input", "a string, or a list of at least one item")
    return tuple(item.body for item in items)


def item_messages(
    items: Sequence[Item], instructions: str | None = None, history: Sequence[Item] = ()
) -> tuple[Message, ...]:
    """The conversation of these items, after those of `history`. Calls and thoughts become parts of the assistant's
    message that they belong to; `instructions` become the system message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    thought = ""
    for index, body in enumerate((*history, *items), start=-len(history)):
        item = Fields(body, f"input[{index}]")
        kind = item.text("type", "message", 64)
        if kind == "reasoning":
            thought = _parts_text(item, "content") or _parts_text(item, "summary")
        elif kind == "function_call_output":
            call_id = item.required_text("call_id", MAX_CALL_ID_CHARS)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": _parts_text(item, "output")})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant" or thought:
                messages.append(_assistant("", thought))
            thought = ""
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        elif kind == "message":
            role = item.choice("role", _ROLES)
            if role is None:
                raise item.error("role", f"one of {', '.join(_ROLES)}")
            text = _parts_text(item, "content")
            plain = {"role": "system" if role == "developer" else role, "content": text}
            messages.append(_assistant(text, thought) if role == "assistant" else plain)
            thought = ""
        else:
            known = "message, reasoning, function_call or function_call_output"
            raise item.error("type", f"{known}: this server has no others")
    return tuple(messages)


def _assistant(text: str, thought: str) -> dict[str, Any]:
    """A message of the assistant; templates that repeat thoughts read `reasoning_content`."""
    return {"role": "assistant", "content": text, **({"reasoning_content": thought} if thought else {})}


def _call(item: Fields) -> dict[str, Any]:
    call_id = item.required_text("call_id", MAX_CALL_ID_CHARS)
    return history_call(call_id, item.required_text("name", 64), item.text("arguments", "{}") or "{}")


def _parts_text(item: Fields, field: str) -> str:
    """The text of a field that is a string or a list of parts."""
    if item.raw(field) is None or isinstance(item.raw(field), str):
        return item.text(field, "") or ""
    texts = []
    for part in item.objects(field, MAX_ITEMS) or []:
        kind = part.text("type", None, 64)
        if kind not in _TEXT_PARTS:
            raise invalid(
                f"{part.path} has the type {kind!r}: this server reads text only", part.name("type"), "unsupported_type"
            )
        texts.append(part.required_text(_TEXT_PARTS[kind]))
    return "".join(texts)
