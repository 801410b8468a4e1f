"""`POST /v1/chat/completions`: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ponder.pictures.message_parts import text_part
from ponder.serve.api.picture_parts import read_picture_url
from ponder.serve.api.prompt_fields import read_template_kwargs
from ponder.serve.api.sampling_fields import (
    MAX_TOP_LOGPROBS,
    read_max_tokens,
    read_sampling,
    read_seed,
    read_thinking,
)
from ponder.serve.errors import invalid
from ponder.serve.generation import GenerationRequest
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.tools import read_calls, read_strict_tools, read_tool_choice, read_tools
from ponder.types import Message

MAX_MESSAGES = 10_000
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_chat_request(fields: Fields, limits: Limits) -> GenerationRequest:
    """The request in a body. `stream` and `stream_options` are the caller's to read."""
    logprobs = fields.flag("logprobs")
    tops = fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS) or 0
    if tops and not logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    thinking = read_thinking(fields, limits)
    max_tokens = read_max_tokens(fields, limits, "max_completion_tokens", "max_tokens")
    sampling = read_sampling(fields, tops)
    template = read_template_kwargs(fields)
    tools, tool_choice = read_tool_choice(fields, read_tools(fields))
    strict_tools = read_strict_tools(fields, tools)
    request = GenerationRequest(
        model=fields.text("model", "", 1000) or "",
        messages=read_messages(fields),
        sampling=sampling.sampling,
        given=sampling.given,
        n=fields.integer("n", 1, 1, limits.max_choices) or 1,
        seed=read_seed(fields),
        max_tokens=max_tokens,
        effort=thinking.effort,
        strategy=thinking.strategy,
        thinking=None if template is None else template.flag("enable_thinking", True),
        thinking_token_budget=thinking.thinking_token_budget,
        include_reasoning=thinking.include_reasoning,
        logprobs=logprobs,
        top_logprobs=tops,
        tools=() if tool_choice == "none" else tools,
        strict_tools=strict_tools,
        tool_choice=tool_choice,
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        template_fields={} if template is None else dict(template.body),
        return_token_ids=thinking.return_token_ids,
        return_trace=thinking.return_trace,
    )
    fields.refuse_unread()
    return request


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The conversation as chat templates take it: roles and texts. Thoughts of earlier turns may be there or not."""
    entries = fields.objects("messages", MAX_MESSAGES)
    if not entries:
        raise invalid("messages must be a list with at least one message", "messages", "missing_required_parameter")
    return tuple(_read_message(entry) for entry in entries)


def _read_message(entry: Fields) -> Message:
    role = entry.choice("role", _ROLES)
    if role is None:
        raise entry.error("role", f"one of {', '.join(_ROLES)}")
    out: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": _read_content(entry, role)}
    for name in ("name", "tool_call_id"):
        if (value := entry.text(name)) is not None:
            out[name] = value
    if calls := read_calls(entry):
        out["tool_calls"] = calls
    thought = entry.text("reasoning_content") or entry.text("reasoning")
    if thought:
        out["reasoning_content"] = thought
    entry.ignore("reasoning", "refusal", "annotations", "audio", "function_call", "thinking", "reasoning_details")
    entry.refuse_unread(())
    return out


def _read_content(entry: Fields, role: str) -> str | list[dict[str, Any]]:
    """A text; of a user, also a list of parts where there are pictures among them."""
    value = entry.raw("content")
    shows = isinstance(value, list) and any(isinstance(p, Mapping) and p.get("type") == "image_url" for p in value)
    if role != "user" or not shows:
        return read_text_content(entry)
    parts = entry.objects("content", MAX_MESSAGES) or ()
    return [_read_image(p) if p.text("type") == "image_url" else text_part(_read_text_part(p)) for p in parts]


def _read_image(part: Fields) -> dict[str, Any]:
    """A picture, as a data URL."""
    image = part.object("image_url")
    if image is None:
        raise part.error("image_url", "an object with a url")
    image.ignore("detail")
    return read_picture_url(image, "url")


def read_text_content(entry: Fields, field_name: str = "content") -> str:
    """A text, or a list of text parts, which are joined."""
    value = entry.raw(field_name)
    if value is None:
        return ""
    if isinstance(value, str):
        return entry.text(field_name) or ""
    return "".join(_read_text_part(part) for part in entry.objects(field_name, MAX_MESSAGES) or ())


def _read_text_part(part: Fields) -> str:
    kind = part.text("type", "text", 100)
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise invalid(f"{part.name('type')} is {kind!r:.50}; this server reads text, and pictures of the user",
                      part.name("type"), "unsupported_content")  # fmt: skip
    return part.required_text("refusal" if kind == "refusal" else "text")
