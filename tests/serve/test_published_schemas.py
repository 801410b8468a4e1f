"""Replies of chat, completions, models and errors follow OpenAI's published schemas."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.live_server import live_server
from serve.openai_schemas import check_schema

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CHATS = [
    {},
    {"n": 2},
    {"model": "thinker", "max_tokens": 40},
    {"logprobs": True, "top_logprobs": 2},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 300},
    {"strategy": {"name": "majority-vote", "n": 2}, "max_tokens": 40},
    {"return_token_ids": True, "return_trace": True},
]


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.mark.parametrize("fields", CHATS)
def test_chat_follows_the_schema(server, fields):
    reply = server.chat(**{"max_tokens": 8, "seed": 1, **fields})
    assert reply.status == 200, reply.body
    check_schema("CreateChatCompletionResponse", reply.json)


@pytest.mark.parametrize("fields", CHATS)
def test_chat_chunks_follow_the_schema(server, fields):
    reply = server.chat(**{"max_tokens": 8, "seed": 1, **fields}, stream=True, stream_options={"include_usage": True})
    for chunk in reply.chunks:
        check_schema("CreateChatCompletionStreamResponse", chunk)
    assert any(chunk.get("usage") for chunk in reply.chunks)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"n": 2}])
def test_completions_follow_the_schema(server, fields):
    body = {"model": "plain", "prompt": "2+2?", "max_tokens": 8, **fields}
    check_schema("CreateCompletionResponse", server.post("/v1/completions", body).json)
    *_, last = server.post("/v1/completions", {**body, "stream": True}).chunks
    check_schema("CreateCompletionResponse", last)  # those before have no finish_reason, for which there is no schema


def test_models_follow_the_schema(server):
    check_schema("ListModelsResponse", server.get("/v1/models").json)
    check_schema("Model", server.get("/v1/models/plain").json)


def test_errors_follow_the_schema(server):
    for path, body in (("/v1/chat/completions", {}), ("/v1/responses", {"input": 3}), ("/v1/nothing", {})):
        reply = server.post(path, body)
        assert reply.status >= 400
        check_schema("ErrorResponse", reply.json)
