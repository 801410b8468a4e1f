"""The real openai-python client against a real server: chat, stream, parse, tools, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.guard import GuardSettings
from serve.live_server import LiveServer, live_server

openai = pytest.importorskip("openai", reason="the openai client is not installed")
pydantic = pytest.importorskip("pydantic")

KEY = "sk-local"
ASK: list[Any] = [{"role": "user", "content": "2+2?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(guard=GuardSettings((KEY,))) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["plain", "thinker"]
    assert client.models.retrieve("plain").owned_by == "ponder"


def test_chat_returns_answer_thought_and_usage(client: Any) -> None:
    reply = client.chat.completions.create(model="thinker", messages=ASK, max_completion_tokens=40, seed=3)
    choice = reply.choices[0]
    assert choice.message.content and choice.message.reasoning_content == choice.message.reasoning
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    details = reply.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < reply.usage.completion_tokens <= 40
    assert reply._request_id == reply.id


def test_stream_gives_the_same_text_and_usage(client: Any) -> None:
    settings: dict[str, Any] = {"model": "thinker", "messages": ASK, "max_completion_tokens": 40, "seed": 3}
    whole = client.chat.completions.create(**settings)
    stream = client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == whole.choices[0].message.reasoning_content
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert [u.completion_tokens for u in usages] == [whole.usage.completion_tokens]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_stream_helper_accumulates_the_message(client: Any) -> None:
    with client.chat.completions.stream(model="plain", messages=ASK, max_completion_tokens=400, seed=3) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and kinds[-1] == "content.done" and final.choices[0].message.content


def test_parse_returns_an_object_of_the_schema(client: Any) -> None:
    class Sum(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        right: bool

    reply = client.chat.completions.parse(
        model="thinker", messages=ASK, response_format=Sum, max_completion_tokens=200, seed=1
    )
    assert isinstance(reply.choices[0].message.parsed, Sum)
    assert set(json.loads(reply.choices[0].message.content)) == {"right"}


def test_forced_tool_call_has_a_name_and_arguments_of_its_schema(client: Any) -> None:
    parameters = {
        "type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"],
        "additionalProperties": False,
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    settings: dict[str, Any] = {
        "model": "plain", "messages": ASK, "tools": tools, "max_completion_tokens": 300, "seed": 2,
        "tool_choice": {"type": "function", "function": {"name": "add"}},
    }  # fmt: skip
    choice = client.chat.completions.create(**settings).choices[0]
    (call,) = choice.message.tool_calls
    assert call.function.name == "add" and isinstance(json.loads(call.function.arguments)["sure"], bool)
    with client.chat.completions.stream(**settings) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    history = [
        *ASK, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "4"},
    ]  # fmt: skip
    again = client.chat.completions.create(model="plain", messages=history, max_completion_tokens=5, seed=2)
    assert again.choices[0].finish_reason in ("stop", "length")


def test_logprobs_are_of_the_answers_tokens(client: Any) -> None:
    reply = client.chat.completions.create(
        model="plain", messages=ASK, max_completion_tokens=6, logprobs=True, top_logprobs=3, seed=3
    )
    entries = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries if entry.token != "<eos>") == reply.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        assert bytes(entry.bytes).decode() == entry.token


def test_completions_continue_a_text(client: Any) -> None:
    reply = client.completions.create(model="plain", prompt="1 + 1 =", max_tokens=5, seed=3, logprobs=1)
    assert reply.choices[0].text and len(reply.choices[0].logprobs.tokens) == reply.usage.completion_tokens
    chunks = client.completions.create(model="plain", prompt="1 + 1 =", max_tokens=5, seed=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == reply.choices[0].text


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [({"model": "nope"}, "NotFoundError", "model"), ({"extra_body": {"foo": 1}}, "BadRequestError", "foo"),
     ({"temperature": 3}, "BadRequestError", "temperature"), ({"n": 0}, "BadRequestError", "n")],
)  # fmt: skip
def test_errors_keep_their_text_and_field(client: Any, fields: dict[str, Any], error: str, param: str) -> None:
    settings: dict[str, Any] = {"model": "plain", "messages": ASK, **fields}
    for stream in (False, True):
        with pytest.raises(getattr(openai, error)) as raised:
            client.chat.completions.create(**settings, stream=stream)
        assert raised.value.param == param and raised.value.body["message"]


def test_wrong_key_is_an_authentication_error_with_its_text(server: LiveServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="key is missing or wrong"):
            client.models.list()


def test_async_client_runs_many_requests_at_once(server: LiveServer) -> None:
    import asyncio

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY) as client:
            asks = (
                client.chat.completions.create(model="thinker", messages=ASK, max_completion_tokens=9, seed=i % 4)
                for i in range(24)
            )
            return list(await asyncio.gather(*asks))

    replies = asyncio.run(main())
    texts = [reply.choices[0].message.content for reply in replies]
    assert all(texts) and all(texts[i] == texts[i % 4] for i in range(24))
