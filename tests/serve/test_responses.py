"""The Responses API over HTTP: whole, streamed, stored; held against OpenAI's schemas."""

from __future__ import annotations

import json
import threading

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.guard import GuardSettings
from serve.live_server import live_server, wait_until
from serve.openai_schemas import check_schema
from serve.scripted_policy import tool_models

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
WEATHER = {"type": "function", "name": "weather", "description": "The weather.", "parameters": CITY, "strict": True}


@pytest.fixture(scope="module")
def server():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def caller():
    with live_server(tool_models()) as running:
        yield running


def create(server, status=200, **fields):
    body = {"model": "plain", "input": "2+2?", "max_output_tokens": 8, "seed": 1, **fields}
    reply = server.post("/v1/responses", body)
    assert reply.status == status, reply.body
    return reply.json


def stream(server, **fields):
    """The events of a stream; each line `event:` names the type in its data."""
    body = {"model": "plain", "input": "2+2?", "max_output_tokens": 8, "seed": 1, "stream": True, **fields}
    reply = server.post("/v1/responses", body)
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream"), reply.body
    events = []
    for block in reply.body.decode().strip().split("\n\n"):
        if block.startswith(":"):  # keeps a silent stream alive
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def output_text(response):
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def without_ids(response):
    """What two runs of one request share."""
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    seconds = {**response["usage"]["search"], "seconds": 0, "flops": 0}  # the second run reads a cached prompt
    usage = {**response["usage"], "search": seconds, "input_tokens_details": {}}
    skipped = {"id": "", "created_at": 0, "completed_at": 0, "output": items, "usage": usage}
    return {**response, **skipped}


def test_whole_response_follows_the_schema(server):
    response = create(server, metadata={"a": "b"}, user="me")
    check_schema("Response", response)
    assert response["object"] == "response" and response["id"].startswith("resp_")
    assert output_text(response) and response["metadata"] == {"a": "b"} and response["user"] == "me"
    assert response["usage"]["output_tokens"] <= 8


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief."},
        {"model": "thinker", "max_output_tokens": 60},
        {"model": "thinker", "max_output_tokens": 60, "reasoning": {"summary": "auto"}},
        {"model": "thinker", "max_output_tokens": 40, "include_reasoning": False},
        {"model": "thinker", "reasoning": {"effort": "minimal"}, "max_output_tokens": 30},
        {"strategy": {"name": "majority-vote", "n": 3}, "max_output_tokens": 60},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY}}, "max_output_tokens": 200},
        {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 300},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}, "max_output_tokens": 300},
        {"tools": [WEATHER], "tool_choice": "none"},
    ],
)
def test_streamed_response_equals_the_whole_one_and_follows_the_schemas(server, fields):
    whole, events = create(server, **fields), stream(server, **fields)
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    check_schema("Response", whole)
    for event in events:
        check_schema("ResponseStreamEvent", event)
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == output_text(whole)


def test_cut_response_is_incomplete(server):
    response = create(server, model="thinker", max_output_tokens=12)
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert output_text(response) and response["usage"]["output_tokens"] <= 12
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_forced_call_is_an_item_with_valid_arguments(server):
    (call,) = create(server, tools=[WEATHER], tool_choice="required", max_output_tokens=400)["output"]
    assert call["type"] == "function_call" and call["name"] == "weather" and call["call_id"].startswith("call_")
    assert json.loads(call["arguments"])["city"] in ("Rome", "Oslo")


def test_json_schema_binds_the_answer(server):
    form = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    response = create(server, text={"format": form}, max_output_tokens=400)
    assert json.loads(output_text(response))["city"] in ("Rome", "Oslo")
    assert response["text"]["format"] == form


def test_model_calls_a_tool_and_answers_with_its_result(caller):
    add = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    first = create(caller, model="caller", input="add 2 and 3", tools=[add], max_output_tokens=200)
    message, call = first["output"]
    assert message["content"][0]["text"] == "I add." and json.loads(call["arguments"]) == {"a": 2, "b": 3}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    second = create(caller, model="caller", input=[result], tools=[add], previous_response_id=first["id"],
                    max_output_tokens=200)  # fmt: skip
    assert output_text(second) == "The sum is 5." and second["previous_response_id"] == first["id"]
    items = [{"role": "user", "content": "add 2 and 3"}, *first["output"], result]
    by_hand = create(caller, model="caller", input=items, tools=[add], max_output_tokens=200)
    assert output_text(by_hand) == "The sum is 5."


def test_previous_response_continues_the_conversation(caller):
    first = create(caller, model="caller", input="add 2 and 3", instructions="Be kind.")
    second = create(caller, model="caller", input="and?", previous_response_id=first["id"])
    prompt = "[user] add 2 and 3\n[assistant] I add.\n<"  # the answer is cut after eight tokens
    assert second["usage"]["input_tokens"] >= len(prompt) - 1
    assert second["instructions"] is None


def test_stored_response_is_got_listed_and_deleted(server):
    response = create(server)
    path = f"/v1/responses/{response['id']}"
    assert server.get(path).json == response
    items = server.get(path + "/input_items").json
    check_schema("ResponseItemList", items)
    assert items["data"][0]["content"] == [{"type": "input_text", "text": "2+2?"}]
    assert server.send("DELETE", path).json == {"id": response["id"], "object": "response", "deleted": True}
    assert server.get(path).status == server.send("DELETE", path).status == 404
    create(server, 404, previous_response_id=response["id"])


def test_input_items_are_paged(server):
    items = [{"role": "user", "content": str(i)} for i in range(5)]
    path = f"/v1/responses/{create(server, input=items)['id']}/input_items"
    first = server.get(path + "?limit=2&order=asc").json
    second = server.get(f"{path}?limit=3&order=asc&after={first['last_id']}").json
    assert [item["content"][0]["text"] for page in (first, second) for item in page["data"]] == list("01234")
    assert first["has_more"] and not second["has_more"]
    assert [server.get(f"{path}?{query}").status for query in ("limit=0", "limit=x", "order=up")] == [400] * 3


def test_response_without_store_is_forgotten(server):
    response = create(server, store=False)
    assert response["store"] is False and server.get(f"/v1/responses/{response['id']}").status == 404


def test_another_key_sees_no_response():
    with live_server(guard=GuardSettings(api_keys=("one", "two"))) as server:
        mine = {"authorization": "Bearer one"}
        body = {"model": "plain", "input": "x", "max_output_tokens": 2}
        response = server.send("POST", "/v1/responses", body, mine).json
        path = f"/v1/responses/{response['id']}"
        assert server.send("GET", path, headers=mine).status == 200
        other = {"authorization": "Bearer two"}
        assert server.send("GET", path, headers=other).status == 404
        assert server.send("DELETE", path, headers=other).status == 404
        assert server.send("POST", path + "/cancel", b"", other).status == 404
        body["previous_response_id"] = response["id"]
        assert server.send("POST", "/v1/responses", body, other).status == 404
        assert server.send("POST", "/v1/responses", body, mine).status == 200


def test_running_response_is_cancelled(server):
    connection = server.connect()
    body = {"model": "plain", "input": "2+2?", "stream": True, "max_output_tokens": 400, "seed": 3}
    body["strategy"] = {"name": "majority-vote", "n": 200}
    connection.request("POST", "/v1/responses", json.dumps({**body, "max_output_tokens": 80_000}))
    reply = connection.getresponse()
    name, data = reply.readline(), reply.readline()
    assert name == b"event: response.created\n"
    path = f"/v1/responses/{json.loads(data.removeprefix(b'data: '))['response']['id']}"
    assert server.get(path).json["status"] == "in_progress"
    rest = []
    reader = threading.Thread(target=lambda: rest.append(reply.read()))
    reader.start()
    assert server.post(path + "/cancel", b"").json["status"] == "cancelled"
    reader.join(120)
    assert rest and b"request_cancelled" in rest[0]
    wait_until(lambda: not len(server.service.running))
    assert server.get(path).json["status"] == "cancelled"
    assert server.post(path + "/cancel", b"").status == 400
    connection.close()


def test_image_is_refused_by_name(server):
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    error = create(server, 400, input=[image])["error"]
    assert error["param"] == "input[0].content[0].image_url"
