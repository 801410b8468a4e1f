"""The OpenAPI document of the server, for `GET /openapi.json`: bodies from the parsers themselves (`field_schemas`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ponder
from ponder.pictures.message_parts import data_url
from ponder.pictures.picture import Picture
from ponder.serve.api.chat_request import read_chat_request
from ponder.serve.api.chat_stream import read_stream_options
from ponder.serve.api.completions import read_completion_request
from ponder.serve.api.control import ACTIONS
from ponder.serve.api.episodes import read_episode_update
from ponder.serve.api.generate import read_generate
from ponder.serve.api.responses import read_response_request
from ponder.serve.field_schemas import Schema, record_schema
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModels

_FUNCTION = {"name": "f", "description": "x", "parameters": {"type": "object"}, "strict": False}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_PARTS = [{"type": "text", "text": "x"}]
_PICTURE = {"type": "image_url", "image_url": {"url": data_url(Picture(1, 1, bytes(3))), "detail": "auto"}}
_INPUT_IMAGE = {"type": "input_image", "image_url": data_url(Picture(1, 1, bytes(3))), "detail": "auto"}
_JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True, "description": "x"}}
# Bodies with every form that a nested field may have, so that the parsers read all of them.
_CHAT_EXAMPLES: Sequence[Mapping[str, Any]] = (
    {"messages": [{"role": "user", "content": "x"}]},
    {
        "messages": [
            {"role": "user", "content": _PARTS},
            {"role": "user", "content": [_PICTURE, *_PARTS]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        ],
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "chat_template_kwargs": {"enable_thinking": True},
        "response_format": _JSON_SCHEMA,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True, "include_steps": True},
    },
    {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "regex", "pattern": "x"}},
)
_RESPONSE_EXAMPLES: Sequence[Mapping[str, Any]] = (
    {"input": "x"},
    {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "user", "content": [_INPUT_IMAGE, {"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": {"type": "function", "name": "f"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
        "include": ["message.output_text.logprobs"],
    },
)
# Fields with forms of their own, which parsers read as a whole.
_SETTINGS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_WHOLE_FIELDS: dict[str, Schema] = {
    "strategy": {"anyOf": [{"type": "string"}, _SETTINGS, {"type": "null"}]},
    "logit_bias": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
    "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}}
_TEXT_OR_IDS: Schema = {"anyOf": [{"type": "string"}, _IDS]}
_MESSAGES: Schema = {
    "type": "array",
    "items": {"type": "object", "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
              "required": ["role", "content"]},
}  # fmt: skip


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    out: Schema = {"type": "object", "properties": properties}
    return {**out, "required": list(required)} if required else out


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_TOKENIZE = _object(
    model=_TEXT, prompt=_TEXT, messages=_MESSAGES, add_special_tokens=_FLAG, return_token_strs=_FLAG,
    add_generation_prompt=_FLAG,
)  # fmt: skip
_SCORE = _object(
    model=_TEXT, token_ids=_IDS, prompt=_TEXT_OR_IDS, messages=_MESSAGES, completion=_TEXT_OR_IDS,
    steps={"type": "array", "items": _TEXT_OR_IDS}, positions=_IDS, add_eos=_FLAG,
)  # fmt: skip
_CONTROL = _object(["id", "action"], id=_TEXT, action={"type": "string", "enum": list(ACTIONS)})


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One method of one path. `body`: the schema of its request; `streams`: it can reply in server-sent events."""

    path: str
    method: str
    summary: str
    body: Schema | None = None
    streams: bool = False
    query: Mapping[str, Schema] | None = None


def operations(models: ServedModels, limits: Limits) -> list[ApiOperation]:
    """All that clients may call."""
    model = next(iter(models.models), "")
    chat = _recorded(
        lambda fields: (read_stream_options(fields, is_chat=True), read_chat_request(fields, limits)), _CHAT_EXAMPLES
    )
    responses = _recorded(lambda fields: read_response_request(fields, limits, lambda _: None), _RESPONSE_EXAMPLES)
    episode = _recorded(lambda fields: read_episode_update(fields, limits.max_choices), ({"reward": 1.0},))
    completions: Schema = {"type": "object"}
    generate: Schema = {"type": "object"}
    if model:  # a server of scorers continues nothing
        completions = _recorded(
            lambda fields: (read_stream_options(fields), read_completion_request(fields, limits, models)),
            ({"prompt": "x", "model": model}, {"prompt": [0], "model": model}),
        )
        generate = _recorded(
            lambda fields: read_generate(fields, models, limits),
            ({"token_ids": [0], "model": model, "sampling_params": {"max_tokens": 1}},),
        )
    page: dict[str, Schema] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"type": "string", "enum": ["asc", "desc"]},
        "after": _TEXT,
    }
    return [
        ApiOperation("/health", "get", "Whether the server takes requests"),
        ApiOperation("/metrics", "get", "Counters, gauges and histograms in Prometheus' text format"),
        ApiOperation("/openapi.json", "get", "This document"),
        ApiOperation("/v1/models", "get", "The models of this server"),
        ApiOperation("/v1/models/{name}", "get", "One model"),
        ApiOperation("/v1/chat/completions", "post", "Answer a conversation", chat, True),
        ApiOperation("/v1/chat/completions/control", "post", "End the thinking of a request, or cancel it", _CONTROL),
        ApiOperation("/v1/completions", "post", "Continue a text", completions, True),
        ApiOperation("/v1/responses", "post", "Answer a conversation, by OpenAI's Responses API", responses, True),
        ApiOperation("/v1/responses/{id}", "get", "A stored response"),
        ApiOperation("/v1/responses/{id}", "delete", "Forget a stored response"),
        ApiOperation("/v1/responses/{id}/cancel", "post", "End a response that runs"),
        ApiOperation("/v1/responses/{id}/input_items", "get", "The input of a stored response", query=page),
        ApiOperation("/v1/episodes/{id}", "get", "An open episode of an outside agent"),
        ApiOperation("/v1/episodes/{id}", "post", "What an episode earned, and whether it is done", episode),
        ApiOperation("/v1/tokenize", "post", "Token ids of a text or of messages", _TOKENIZE),
        ApiOperation("/v1/detokenize", "post", "The text of token ids", _object(["tokens"], model=_TEXT, tokens=_IDS)),
        ApiOperation("/v1/tokenizer", "post", "The model's tokenizer", _object(model=_TEXT)),
        ApiOperation("/v1/score", "post", "Log-probabilities of a text; scores of a reward or value model", _SCORE),
        ApiOperation("/inference/v1/generate", "post", "Continue token ids", generate, True),
    ]  # fmt: skip


def _recorded(read: Callable[[Fields], object], examples: Sequence[Mapping[str, Any]]) -> Schema:
    schema = record_schema(read, examples)
    whole = {name: form for name, form in _WHOLE_FIELDS.items() if name in schema["properties"]}
    return {**schema, "properties": {**schema["properties"], **whole}}


def openapi_document(models: ServedModels, limits: Limits) -> dict[str, Any]:
    """The whole document, OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(models, limits):
        paths.setdefault(operation.path, {})[operation.method] = _operation_json(operation)
    error = _object(
        ["error"],
        error=_object(
            ["message", "type", "param", "code"],
            message=_TEXT, type=_TEXT, param={"type": ["string", "null"]}, code={"type": ["string", "null"]},
        ),
    )  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "ponder serve", "version": ponder.__version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation_json(operation: ApiOperation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    where: list[dict[str, Any]] = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    where += [{"name": name, "in": "query", "schema": schema} for name, schema in (operation.query or {}).items()]
    kind = "text/plain" if operation.path == "/metrics" else "application/json"
    content: dict[str, Any] = {kind: {}}
    if operation.streams:
        content["text/event-stream"] = {}
    out: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method} {operation.path}",
        "responses": {
            "200": {"description": "The reply", "content": content},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if where:
        out["parameters"] = where
    if operation.body is not None:
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return out
