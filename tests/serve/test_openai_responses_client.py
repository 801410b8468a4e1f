"""openai-python's Responses client against a live server: whole, streamed, parsed, with tools, stored."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest

pytest.importorskip("openai", reason="openai-python is not installed")
pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

import openai
import pydantic

from serve.live_server import live_server
from serve.scripted_policy import tool_models


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]


class Add(pydantic.BaseModel):
    a: int
    b: int


@pytest.fixture(scope="module")
def client():
    with live_server() as server, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def caller():
    with live_server(tool_models()) as server:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            yield client


def test_create_returns_text_thought_and_usage(client):
    response = client.responses.create(model="thinker", input="2+2?", max_output_tokens=40, extra_body={"seed": 1})
    assert response.output_text and response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].type == "reasoning" and response.output[0].content[0].text
    usage = response.usage
    assert usage.output_tokens <= 40 and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens > 0 and usage.input_tokens_details.cached_tokens >= 0
    assert response._request_id == response.id


def test_stream_gives_the_events_of_the_whole_response(client):
    with client.responses.stream(model="plain", input="2+2?", max_output_tokens=300, extra_body={"seed": 4}) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    whole = client.responses.create(model="plain", input="2+2?", max_output_tokens=300, extra_body={"seed": 4})
    assert whole.output_text == text


def test_raw_stream_ends_with_the_response(client):
    events = list(client.responses.create(model="plain", input="2+2?", max_output_tokens=5, stream=True))
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_async_client_streams(client):
    async def run():
        async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="none") as other:
            stream = await other.responses.create(model="plain", input="2+2?", max_output_tokens=5, stream=True)
            return [event.type async for event in stream]

    assert asyncio.run(run())[0] == "response.created"


def test_parse_returns_an_object(client):
    response = client.responses.parse(model="plain", input="A city?", text_format=City, max_output_tokens=400)
    assert response.output_parsed.city in ("Rome", "Oslo")


def test_parsed_stream_returns_an_object(client):
    with client.responses.stream(model="plain", input="?", text_format=City, max_output_tokens=400) as stream:
        assert stream.get_final_response().output_parsed.city in ("Rome", "Oslo")


def test_forced_tool_is_parsed(client):
    tool = openai.pydantic_function_tool(City, name="weather")["function"]
    response = client.responses.parse(
        model="plain", input="?", tools=[{"type": "function", **tool}], tool_choice="required", max_output_tokens=400
    )
    (call,) = response.output
    assert call.name == "weather" and json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    assert call.parsed_arguments


def test_agent_loop_with_tools(caller):
    tool = {"type": "function", "name": "add", "parameters": Add.model_json_schema(), "strict": False}
    items = [{"role": "user", "content": "add 2 and 3"}]
    for _ in range(3):
        response = caller.responses.create(model="caller", input=items, tools=[tool])
        calls = [item for item in response.output if item.type == "function_call"]
        items += response.output
        if not calls:
            break
        for call in calls:
            result = str(sum(json.loads(call.arguments).values()))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    assert response.output_text == "The sum is 5."


def test_streamed_tool_call_accumulates(caller):
    tool = {"type": "function", "name": "add", "parameters": Add.model_json_schema(), "strict": False}
    with caller.responses.stream(model="caller", input="add 2 and 3", tools=[tool]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads(pieces[-1].snapshot) == {"a": 2, "b": 3}
    assert [item.type for item in final.output] == ["message", "function_call"]


def test_previous_response_retrieve_list_and_delete(caller):
    first = caller.responses.create(model="caller", input="add 2 and 3")
    second = caller.responses.create(model="caller", input="thanks", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert caller.responses.retrieve(first.id).output_text == first.output_text
    assert [item.content[0].text for item in caller.responses.input_items.list(first.id)] == ["add 2 and 3"]
    caller.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        caller.responses.retrieve(first.id)


def test_error_has_message_param_and_code(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="plain", input="x", extra_body={"no_such_field": 1})
    assert caught.value.param == "no_such_field" and caught.value.code == "unknown_parameter"
    assert "no_such_field" in caught.value.message


def test_chat_tools_whole_and_streamed(caller):
    tool = {"type": "function", "function": {"name": "add", "parameters": Add.model_json_schema()}}
    messages = [{"role": "user", "content": "add 2 and 3"}]
    reply = caller.chat.completions.create(model="caller", messages=messages, tools=[tool])
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls" and message.content == "I add."
    (call,) = message.tool_calls
    with caller.chat.completions.stream(model="caller", messages=messages, tools=[tool]) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls[0].function.arguments == call.function.arguments
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    final = caller.chat.completions.create(model="caller", messages=messages, tools=[tool])
    assert final.choices[0].message.content == "The sum is 5." and final.choices[0].finish_reason == "stop"


def test_chat_parses_tools(client):
    tool = openai.pydantic_function_tool(City, name="weather")
    messages = [{"role": "user", "content": "?"}]
    choice = {"type": "function", "function": {"name": "weather"}}
    reply = client.chat.completions.parse(
        model="plain", messages=messages, tools=[tool], tool_choice=choice, max_tokens=400
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.parsed_arguments.city in ("Rome", "Oslo")
