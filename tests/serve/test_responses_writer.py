"""`serve.api.responses_stream`: stream events and responses, held against OpenAI's schemas."""

from __future__ import annotations

import json

import pytest

from ponder.serve.api.response_frame import ResponseSettings, response_frame
from ponder.serve.api.responses_stream import ResponseWriter
from ponder.serve.events import Content, Finished, Reasoning, Started, ToolCallDelta
from ponder.serve.usage import Usage
from serve.openai_schemas import check_schema

USAGE = Usage(prompt_tokens=10, completion_tokens=7, reasoning_tokens=4, cached_tokens=3)
THINK = (Reasoning("Let me"), Reasoning(" see."))
ANSWER = (Content("Four", (4,)), Content("", (5,)), Content("!", (6,)))
CALLS = (
    ToolCallDelta(0, "call_1", "add", '{"a"'),
    ToolCallDelta(0, arguments=": 1}"),
    ToolCallDelta(1, "call_2", "add", "{}"),
)
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}}}


def write(*events, reason="stop", summary=False, logprobs=None, settings=None):
    frame = response_frame("resp_1", "tiny", 1_700_000_000, settings or ResponseSettings())
    writer, out = ResponseWriter(frame, summary, logprobs), []
    for event in (Started(), *events, Finished((reason,), USAGE)):
        out += [json.loads(json.dumps(each)) for each in writer.write(event)]
    assert out[-1]["response"] == json.loads(json.dumps(writer.response))
    return out


def kinds(stream):
    return [event["type"].removeprefix("response.") for event in stream]


def test_stream_of_thought_and_answer_has_openais_order():
    assert kinds(write(*THINK, *ANSWER)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_response_has_items_usage_and_status():
    response = write(*THINK, *ANSWER)[-1]["response"]
    thought, message = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}] and thought["summary"] == []
    assert message["content"] == [{"type": "output_text", "text": "Four!", "annotations": [], "logprobs": []}]
    assert response["status"] == message["status"] == thought["status"] == "completed"
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 7, 17)
    assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 4}


def test_summary_has_the_thought_where_it_is_asked_for():
    stream = write(*THINK, *ANSWER, summary=True)
    assert stream[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert "content" not in stream[-1]["response"]["output"][0]
    assert kinds(stream)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]


def test_cut_answer_is_incomplete_by_max_output_tokens():
    stream = write(*THINK, *ANSWER, reason="length")
    assert kinds(stream)[-1] == "incomplete"
    response = stream[-1]["response"]
    assert response["status"] == response["output"][-1]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "completed"


def test_calls_are_items_of_their_own():
    response = write(Content("I add."), *CALLS, Content("Done."), reason="tool_calls")[-1]["response"]
    assert [(i["type"], i.get("arguments")) for i in response["output"]] == [
        ("message", None),
        ("function_call", '{"a": 1}'),
        ("function_call", "{}"),
        ("message", None),
    ]
    assert response["output"][1]["call_id"] == "call_1"
    assert len({item["id"] for item in response["output"]}) == 4
    assert response["status"] == "completed"


def test_empty_answer_is_an_empty_message():
    (message,) = write()[-1]["response"]["output"]
    assert message["content"][0]["text"] == ""


def test_logprobs_of_tokens_without_text_are_not_lost():
    def entry(event):
        return [{"token": str(t), "logprob": -1.0, "bytes": [48 + t], "top_logprobs": []} for t in event.token_ids]

    stream = write(Content("Fo", (4,)), Content("", (5,)), Content("ur", (6,)), Content("", (7,)), logprobs=entry)
    (message,) = stream[-1]["response"]["output"]
    assert [e["token"] for e in message["content"][0]["logprobs"]] == ["4", "5", "6", "7"]
    deltas = [e for e in stream if e["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in d["logprobs"]] for d in deltas] == [["4"], ["5", "6"]]


@pytest.mark.parametrize("summary", [False, True])
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("events", [(), ANSWER, (*THINK, *ANSWER), (*THINK, *CALLS), (*ANSWER, *CALLS, *ANSWER)])
def test_stream_builds_the_response_and_follows_openais_schemas(events, reason, summary):
    settings = ResponseSettings("Be brief.", None, {"a": "b"}, tools=(TOOL,), effort="xhigh", summary="auto")
    stream = write(*events, reason=reason, summary=summary, settings=settings)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert rebuild(stream) == stream[-1]["response"]["output"]
    for event in stream:
        check_schema("ResponseStreamEvent", event)
        if "response" in event:
            check_schema("Response", event["response"])


def rebuild(stream):
    """The output as a client puts it together from deltas."""
    items = {}
    for event in stream:
        kind, at = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            items[at] = dict(event["item"], text="")
        elif kind.endswith(".delta"):
            items[at]["text"] += event["delta"]
        elif kind == "output_item.done":
            done, text = event["item"], items[at]["text"]
            parts = done.get("content") or done.get("summary") or [{"text": done.get("arguments")}]
            assert text == parts[0]["text"] and done["id"] == items[at]["id"]
            items[at] = done
    return [items[at] for at in sorted(items)]


def test_failure_is_an_event_of_its_own():
    writer = ResponseWriter(response_frame("resp_1", "tiny", 1, ResponseSettings()))
    writer.write(Started())
    (event,) = writer.fail("server_error", "it failed")
    assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
    check_schema("ResponseStreamEvent", event)


def test_schemas_refuse_what_is_not_a_response():
    response = write(*ANSWER)[-1]["response"]
    for broken in ({}, {**response, "status": "done"}, {**response, "output": [{"type": "message"}]}):
        with pytest.raises(AssertionError):
            check_schema("Response", broken)
