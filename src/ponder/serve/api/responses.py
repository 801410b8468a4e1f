"""`/v1/responses`: reads a request of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ponder.reason.effort import EFFORTS
from ponder.serve.api.response_frame import ResponseSettings
from ponder.serve.api.response_items import Item, item_messages, read_input
from ponder.serve.api.sampling_fields import (
    MAX_TOP_LOGPROBS,
    read_max_tokens,
    read_sampling,
    read_seed,
    read_thinking,
)
from ponder.serve.errors import invalid, not_found
from ponder.serve.generation import GenerationRequest
from ponder.serve.json_body import BOOKKEEPING, Fields
from ponder.serve.limits import Limits
from ponder.serve.stored_responses import StoredResponse
from ponder.serve.tools import read_strict_tools, read_tool_choice, read_tools

MAX_METADATA, MAX_METADATA_KEY_CHARS, MAX_METADATA_CHARS = 16, 64, 512
MAX_ID_CHARS, MAX_MODEL_CHARS = 200, 1000
ANY_OBJECT = '{"type": "object"}'
LOGPROBS = "message.output_text.logprobs"
# What a client may ask to be included. Beside log-probabilities there is none of it here, so nothing is left out.
_INCLUDABLE = (
    LOGPROBS, "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url",
)  # fmt: skip

FindStored = Callable[[str], StoredResponse | None]


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request, and what its response repeats."""

    generation: GenerationRequest
    settings: ResponseSettings
    input_items: tuple[Item, ...]
    history: tuple[Item, ...]  # items of the responses before it
    stream: bool


def read_response_request(fields: Fields, limits: Limits, find_stored: FindStored) -> ResponseRequest:
    """A whole body. A field that would change the answer and is not known is refused by its name."""
    previous, history = _read_previous(fields, find_stored)
    items, instructions = read_input(fields), fields.text("instructions")
    offered = read_tools(fields, flat=True)
    tools, tool_choice = read_tool_choice(fields, offered)
    strict_tools = read_strict_tools(fields, tools, flat=True)
    text_format, grammar = _read_text(fields)
    effort, summary = _read_reasoning(fields)
    thinking = read_thinking(fields, limits, effort)
    include = _read_include(fields)
    top_logprobs = fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS) or 0
    answer = read_sampling(fields, top_logprobs)
    sampling, given = replace(answer.sampling, **grammar), answer.given | set(grammar)
    max_tokens = read_max_tokens(fields, limits, "max_output_tokens")
    if fields.flag("background"):
        raise invalid("background responses are not supported: leave out background, and stream", "background")
    fields.choice("truncation", ("disabled",))
    generation = GenerationRequest(
        model=fields.text("model", "", MAX_MODEL_CHARS) or "",
        messages=item_messages(items, instructions, history),
        prompt_field="input",
        sampling=sampling,
        given=given,
        seed=read_seed(fields),
        max_tokens=max_tokens,
        effort=thinking.effort,
        strategy=thinking.strategy,
        thinking_token_budget=thinking.thinking_token_budget,
        include_reasoning=thinking.include_reasoning,
        logprobs=LOGPROBS in include or top_logprobs > 0,
        top_logprobs=top_logprobs,
        tools=() if tool_choice == "none" else tools,
        strict_tools=strict_tools,
        tool_choice=tool_choice,
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        return_token_ids=thinking.return_token_ids,
        return_trace=thinking.return_trace,
    )
    settings = ResponseSettings(
        instructions=instructions,
        previous_response_id=previous,
        metadata=read_metadata(fields),
        store=fields.flag("store", True),
        temperature=sampling.temperature if "temperature" in given else None,
        top_p=sampling.top_p if "top_p" in given else None,
        top_logprobs=top_logprobs,
        max_output_tokens=max_tokens,
        effort=thinking.effort,
        summary=summary,
        text_format=text_format,
        tools=offered,
        strict_tools=strict_tools,
        tool_choice=fields.raw("tool_choice") or "auto",
        parallel_tool_calls=generation.parallel_tool_calls,
        user=fields.text("user", None, MAX_ID_CHARS),
    )
    stream = fields.flag("stream")
    fields.ignore("stream_options", "max_tool_calls")  # how a stream is padded; how often tools of ours may run
    fields.refuse_unread(BOOKKEEPING)
    return ResponseRequest(generation, settings, items, history, stream)


def _read_text(fields: Fields) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The field `text`: its format as the response repeats it, and the grammar of the answer."""
    text = fields.object("text")
    form = None if text is None else text.object("format")
    if text is not None:
        text.ignore("verbosity")
        text.refuse_unread(())
    if form is None:
        return {"type": "text"}, {}
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise form.error("type", "text, json_object or json_schema")
    if kind != "json_schema":
        form.refuse_unread(())
        return {"type": kind}, {"json_schema": ANY_OBJECT} if kind == "json_object" else {}
    form.required_text("name", 64)
    form.ignore("description", "strict")
    schema = form.raw("schema")
    if not isinstance(schema, dict):
        raise form.error("schema", "a JSON schema: an object")
    form.refuse_unread(())
    return dict(form.body), {"json_schema": json.dumps(schema)}


def _read_reasoning(fields: Fields) -> tuple[str | None, str | None]:
    """The field `reasoning`: effort and summary."""
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return None, None
    effort = reasoning.choice("effort", tuple(EFFORTS))
    summary = reasoning.choice("summary", ("auto", "concise", "detailed"))
    summary = reasoning.choice("generate_summary", ("auto", "concise", "detailed"), summary)
    reasoning.refuse_unread(())
    return effort, summary


def read_metadata(fields: Fields) -> Mapping[str, str]:
    value = fields.raw("metadata")
    if value is None:
        return {}
    fits = isinstance(value, dict) and len(value) <= MAX_METADATA
    if not fits or not all(
        len(key) <= MAX_METADATA_KEY_CHARS and isinstance(text, str) and len(text) <= MAX_METADATA_CHARS
        for key, text in value.items()
    ):
        raise fields.error(
            "metadata",
            f"an object of at most {MAX_METADATA} texts, each of at most {MAX_METADATA_CHARS} characters under a key of"
            f" at most {MAX_METADATA_KEY_CHARS}",
        )
    return dict(value)


def _read_include(fields: Fields) -> tuple[str, ...]:
    include = fields.array("include", 64) or []
    if unknown := [one for one in include if one not in _INCLUDABLE]:
        raise invalid(
            f"include has {unknown[0]!r:.100}; it may have {', '.join(_INCLUDABLE)}", "include", "invalid_value"
        )
    return tuple(include)


def _read_previous(fields: Fields, find_stored: FindStored) -> tuple[str | None, tuple[Item, ...]]:
    """The field `previous_response_id`, and the conversation up to there."""
    previous = fields.text("previous_response_id", None, MAX_ID_CHARS)
    if previous is None:
        return None, ()
    stored = find_stored(previous)
    if stored is None:
        raise not_found(
            f"no response {previous[:100]!r} is stored: it had store=false, was deleted or displaced by later ones",
            "previous_response_not_found",
            "previous_response_id",
        )
    return previous, tuple(stored.conversation)
