"""LangChain's ChatOpenAI against a live server, over chat and over Responses."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

pytest.importorskip("langchain_openai", reason="langchain-openai is not installed: pip install -e '.[serve-dev]'")
pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

import langchain_openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from serve.live_server import live_server
from serve.scripted_policy import tool_models

BOTH = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def caller():
    with live_server(tool_models()) as running:
        yield running


def chat_model(server, responses, model="plain", **fields):
    settings = {"max_tokens": 300, "max_retries": 0, "api_key": "none", **fields}
    return langchain_openai.ChatOpenAI(model=model, base_url=server.url, use_responses_api=responses, **settings)


@BOTH
def test_invoke_and_stream_agree(server, responses):
    model = chat_model(server, responses, extra_body={"seed": 3}, max_tokens=20, stream_usage=True)
    messages = [SystemMessage("Be brief."), HumanMessage("2+2?")]
    whole, streamed = model.invoke(messages), None
    for chunk in model.stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    assert whole.text and streamed.text == whole.text
    assert whole.usage_metadata["output_tokens"] <= 20
    assert streamed.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


def test_async_batch(server):
    async def run():  # one event loop: the client's connections stay in it
        models = [chat_model(server, responses, max_tokens=6) for responses in (False, True)]
        return [reply for model in models for reply in await model.abatch(["one", "two", "three"])]

    replies = asyncio.run(run())
    assert len(replies) == 6 and all(reply.text for reply in replies)


@pytest.mark.parametrize("stream", [False, True])
def test_thought_is_a_reasoning_block_over_responses(server, stream):
    settings = {"model": "thinker", "reasoning": {"summary": "auto"}, "max_tokens": 30}
    model = chat_model(server, True, **settings, output_version="responses/v1")
    if stream:
        reply = None
        for chunk in model.stream("2+2?"):
            reply = chunk if reply is None else reply + chunk
    else:
        reply = model.invoke("2+2?")
    thoughts = [block for block in reply.content if block["type"] == "reasoning"]
    assert thoughts[0]["summary"][0]["text"] and reply.text
    assert reply.usage_metadata["output_token_details"]["reasoning"] > 0


@BOTH
def test_structured_output(server, responses):
    model = chat_model(server, responses, max_tokens=400)
    for method in ("json_schema", "function_calling"):
        assert model.with_structured_output(City, method=method).invoke("A city?").city in ("Rome", "Oslo")


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_agent_loop_with_tools(caller, responses, stream):
    model = chat_model(caller, responses, "caller").bind_tools([add])
    messages = [HumanMessage("add 2 and 3")]
    for _ in range(3):
        if stream:
            reply = None
            for chunk in model.stream(messages):
                reply = chunk if reply is None else reply + chunk
        else:
            reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            break
        assert reply.tool_calls[0]["args"] == {"a": 2, "b": 3}
        messages += [add.invoke(call) for call in reply.tool_calls]
    assert isinstance(messages[-2], ToolMessage) and isinstance(messages[-1], AIMessage)
    assert messages[-1].text == "The sum is 5."


def test_previous_response_is_used(caller):
    model = chat_model(caller, True, "caller", use_previous_response_id=True)
    first = model.invoke("add 2 and 3")
    second = model.invoke([HumanMessage("add 2 and 3"), first, HumanMessage("thanks")])
    assert second.response_metadata["id"] != first.response_metadata["id"] and second.text


@BOTH
def test_reasoning_effort_and_logprobs_are_taken(server, responses):
    effort = {"reasoning": {"effort": "low"}} if responses else {"reasoning_effort": "low"}
    assert chat_model(server, responses, model="thinker", max_tokens=20, **effort).invoke("2+2?").text
    if not responses:
        reply = chat_model(server, False, max_tokens=4, logprobs=True, top_logprobs=2).invoke("2+2?")
        assert len(reply.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
