"""Tools in chat completions: forced and free calls, whole and streamed, and results in the history."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.served_models import ServedModel, ServedModels
from serve.live_server import live_server
from serve.scripted_policy import ADD_CALL, ScriptedPolicy, tool_models

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def caller():
    twice = ServedModel("twice", ScriptedPolicy({"": f"{ADD_CALL}\n{ADD_CALL}"}))
    with live_server(ServedModels([*tool_models().models.values(), twice])) as running:
        yield running


def message_of(reply):
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    return choice["message"], choice["finish_reason"]


def joined(chunks):
    """The message that a client puts together from chunks."""
    message, reason = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["type"] == "function" and call["id"] and call["function"]["name"]
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, reason


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("model", ["plain", "thinker"])
def test_forced_call_follows_its_schema_and_streams_to_the_same(server, model, choice):
    fields = {"model": model, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 500, "seed": 2}
    whole, reason = message_of(server.chat(**fields))
    (call,) = whole["tool_calls"]
    assert reason == "tool_calls" and whole["content"] is None
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    streamed, streamed_reason = joined(server.chat(**fields, stream=True).chunks)
    assert streamed["tool_calls"] == [call["function"]] and streamed_reason == reason
    assert streamed["content"] == "" and streamed["reasoning_content"] == whole.get("reasoning_content", "")
    assert bool(streamed["reasoning_content"]) == (model == "thinker")


def test_cut_call_ends_by_length(server):
    message, reason = message_of(server.chat(tools=[WEATHER], tool_choice="required", max_tokens=3))
    assert reason == "length" and "tool_calls" not in message


def test_free_call_is_parsed_from_the_answer(caller):
    fields = {"content": "add 2 and 3", "model": "caller", "tools": [ADD]}
    message, reason = message_of(caller.chat(**fields))
    assert message["content"] == "I add." and reason == "tool_calls"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 3}
    streamed, _ = joined(caller.chat(**fields, stream=True).chunks)
    assert streamed["content"] == "I add." and streamed["tool_calls"][0]["name"] == "add"


@pytest.mark.parametrize("fields", [{}, {"tools": [ADD], "tool_choice": "none"}, {"tools": [WEATHER]}])
def test_marks_are_content_where_no_such_tool_is_on_offer(caller, fields):
    message, reason = message_of(caller.chat("add 2 and 3", model="caller", **fields))
    assert message["content"] == f"I add.\n{ADD_CALL}" and reason == "stop" and "tool_calls" not in message


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_tool_calls(caller, parallel):
    message, _ = message_of(caller.chat(model="twice", tools=[ADD], parallel_tool_calls=parallel))
    assert len(message["tool_calls"]) == (2 if parallel else 1)
    assert len({call["id"] for call in message["tool_calls"]}) == len(message["tool_calls"])


def test_result_in_the_history_is_answered(caller):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    messages = [
        {"role": "user", "content": "add 2 and 3"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    reply = caller.post("/v1/chat/completions", {"model": "caller", "messages": messages, "tools": [ADD]})
    assert message_of(reply) == (
        {"role": "assistant", "content": "The sum is 5.", "refusal": None, "annotations": []},
        "stop",
    )


def test_each_choice_has_its_own_calls(caller):
    reply = caller.chat("add 2 and 3", model="caller", tools=[ADD], n=3)
    calls = [choice["message"]["tool_calls"][0] for choice in reply.json["choices"]]
    assert len({call["id"] for call in calls}) == 3


STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


def test_strict_tool_with_auto_is_answered(server):
    for fields in ({}, {"reasoning_effort": "medium"}, {"stream": True}):
        reply = server.chat(tools=[STRICT], max_completion_tokens=24, seed=4, model="thinker", **fields)
        assert reply.status == 200, reply.body


def test_strict_tool_is_refused_for_a_strategy_that_builds_answers_from_steps(server):
    reply = server.chat(tools=[STRICT], strategy={"name": "mcts", "cut": "tokens:4"}, max_completion_tokens=24)
    assert reply.status == 400 and reply.json["error"]["param"] == "tools", reply.body


def test_strict_tool_whose_schema_cannot_be_used_is_a_400(server):
    broken = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"$ref": "#/nowhere"}}}
    reply = server.chat(tools=[broken], max_completion_tokens=24)
    assert reply.status == 400 and "schema" in reply.json["error"]["message"], reply.body
