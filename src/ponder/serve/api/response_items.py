"""Items of the Responses API as messages for a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ponder.pictures.message_parts import text_part
from ponder.serve.api.picture_parts import read_picture_url
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
            if role == "user":
                messages.append({"role": role, "content": _read_user_content(item)})
            elif role == "assistant":
                messages.append(_assistant(_parts_text(item, "content"), thought))
            else:
                messages.append({"role": "system", "content": _parts_text(item, "content")})
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


def _read_user_content(item: Fields) -> str | list[dict[str, Any]]:
    """A text, or a list of parts where there are pictures among them."""
    value = item.raw("content")
    shows = isinstance(value, list) and any(isinstance(p, Mapping) and p.get("type") == "input_image" for p in value)
    if not shows:
        return _parts_text(item, "content")
    return [_read_image(p) if p.text("type", None, 64) == "input_image" else text_part(_part_text(p))
            for p in item.objects("content", MAX_ITEMS) or []]  # fmt: skip


def _read_image(part: Fields) -> dict[str, Any]:
    """A picture, as a data URL: this server stores no files."""
    part.ignore("detail")
    if part.raw("file_id") is not None:
        raise part.error("file_id", "left out: this server stores no files; give the picture in image_url")
    return read_picture_url(part, "image_url")


def _parts_text(item: Fields, field: str) -> str:
    """The text of a field that is a string or a list of parts."""
    if item.raw(field) is None or isinstance(item.raw(field), str):
        return item.text(field, "") or ""
    return "".join(_part_text(part) for part in item.objects(field, MAX_ITEMS) or [])


def _part_text(part: Fields) -> str:
    kind = part.text("type", None, 64)
    if kind not in _TEXT_PARTS:
        raise invalid(
            f"{part.path} has the type {kind!r}: this server reads text, and pictures of a user (input_image)",
            part.name("type"),
            "unsupported_type",
        )
    return part.required_text(_TEXT_PARTS[kind])
