"""`serve.api.response_items`: a Responses conversation as messages."""

from __future__ import annotations

import pytest

from ponder.serve.api.response_items import item_messages, read_input
from ponder.serve.errors import ApiError
from ponder.serve.json_body import Fields


def test_string_is_one_message_of_the_user():
    items = read_input(Fields({"input": "hello"}))
    assert item_messages(items, "Be brief.") == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    )


def test_items_become_messages_with_calls_and_thoughts():
    items = [
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": [{"type": "input_text", "text": "1 + "}, {"type": "input_text", "text": "1?"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Add."}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I add.", "annotations": []}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
        {"type": "reasoning", "id": "rs2", "summary": [{"type": "summary_text", "text": "Again."}]},
        {"type": "function_call", "call_id": "c3", "name": "add", "arguments": "{}"},
    ]  # fmt: skip
    system, user, assistant, one, two, again = item_messages(items)
    assert system == {"role": "system", "content": "Use tools."} and user == {"role": "user", "content": "1 + 1?"}
    assert assistant["content"] == "I add." and assistant["reasoning_content"] == "Add."
    assert [c["id"] for c in assistant["tool_calls"]] == ["c1", "c2"]
    assert assistant["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert one == {"role": "tool", "tool_call_id": "c1", "content": "2"} and two["content"] == "3"
    assert again["reasoning_content"] == "Again." and again["tool_calls"][0]["id"] == "c3"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "input"),
        ([], "input"),
        (3, "input"),
        ([3], "input[0]"),
        ([{"role": "user", "content": 3}], "input[0].content"),
        ([{"role": "wizard", "content": "x"}], "input[0].role"),
        ([{"content": "x"}], "input[0].role"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"type": 3}], "input[0].type"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].image_url"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}], "input[0].content[0].file_id"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "input[0].content[0].type"),
        ([{"role": "assistant", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"type": "function_call", "name": "add"}], "input[0].call_id"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
    ],
)
def test_bad_items_are_named(value, param):
    with pytest.raises(ApiError) as caught:
        item_messages(read_input(Fields({"input": value})))
    assert (caught.value.status, caught.value.param) == (400, param)
