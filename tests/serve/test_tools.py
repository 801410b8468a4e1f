"""`serve.tools` and `serve.tool_events`: tools in requests, prompts and events."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import pytest

from fakes import char_policy
from ponder.models import chat_templates
from ponder.models.tokenizer import Tokenizer
from ponder.reason.tools.call_parser import parse_answer
from ponder.reason.tools.tool_messages import takes_tools, without_tool_roles
from ponder.serve.errors import ApiError
from ponder.serve.events import Content, Finished, Reasoning, Started, ToolCallDelta
from ponder.serve.generation import GenerationRequest
from ponder.serve.json_body import Fields
from ponder.serve.served_models import ServedModel
from ponder.serve.tool_events import separate_calls, with_call_grammar
from ponder.serve.tools import (
    call_schema,
    read_calls,
    read_strict_tools,
    read_tool_choice,
    read_tools,
    tool_names,
)
from ponder.serve.usage import Usage
from ponder.types import Sampling

ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CHAT_ADD = {"type": "function", "function": ADD}
WEATHER = {"type": "function", "function": {"name": "weather"}}


def test_read_tools_gives_one_form_for_both_apis():
    chat = read_tools(Fields({"tools": [CHAT_ADD, WEATHER]}))
    flat = read_tools(
        Fields({"tools": [{"type": "function", **ADD, "strict": True}, {"type": "function", "name": "weather"}]}),
        flat=True,
    )
    assert chat == flat and tool_names(chat) == ("add", "weather")
    assert chat[0]["function"] == ADD and chat[1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert read_tools(Fields({"tools": None})) == read_tools(Fields({"tools": []})) == ()


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("add", "tools"),
        ([3], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a" * 65}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "a", "code": "x"}}], "tools[0].function.code"),
        ([CHAT_ADD, CHAT_ADD], "tools[1].function.name"),
        ([WEATHER] * 129, "tools"),
    ],
)
def test_read_tools_names_the_field_at_fault(tools, param):
    with pytest.raises(ApiError) as caught:
        read_tools(Fields({"tools": tools}))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("choice", "names", "expected"),
    [
        (None, ("add", "weather"), "auto"),
        ("none", ("add", "weather"), "none"),
        ("required", ("add", "weather"), "required"),
        ({"type": "function", "function": {"name": "add"}}, ("add", "weather"), "add"),
        ({"type": "function", "name": "add"}, ("add", "weather"), "add"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]},
            ("add",),
            "required",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "function", "function": {"name": "add"}}]}},
            ("add",),
            "auto",
        ),
    ],
)
def test_read_tool_choice(choice, names, expected):
    tools, read = read_tool_choice(Fields({"tool_choice": choice}), (CHAT_ADD, WEATHER))
    assert (tool_names(tools), read) == (names, expected)


@pytest.mark.parametrize(
    "choice", ["any", 3, {}, {"type": "function"}, {"type": "function", "name": "x"}, {"type": "allowed_tools"}]
)
def test_read_tool_choice_refuses(choice):
    with pytest.raises(ApiError):
        read_tool_choice(Fields({"tool_choice": choice}), (CHAT_ADD,))
    with pytest.raises(ApiError):
        read_tool_choice(Fields({"tool_choice": "required"}), ())


def test_call_schema_keeps_references_of_each_tool():
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf"}},
        "additionalProperties": False,
        "$defs": {"leaf": {"type": "integer"}},
    }
    other = {"type": "object", "properties": {"leaf": {"$ref": "#/$defs/leaf"}}, "$defs": {"leaf": {"type": "string"}}}
    tools = [{"function": {"name": "tree", "parameters": tree}}, {"function": {"name": "other", "parameters": other}}]
    check = jsonschema.Draft202012Validator(json.loads(call_schema(tools, "required")))
    assert check.is_valid({"name": "tree", "arguments": {"left": {"left": {"leaf": 1}}}})
    assert check.is_valid({"name": "other", "arguments": {"leaf": "x"}})
    assert not check.is_valid({"name": "tree", "arguments": {"left": {"leaf": "x"}}})
    assert not check.is_valid({"name": "other", "arguments": {"leaf": 1}})
    assert not check.is_valid({"name": "third", "arguments": {}})
    one = jsonschema.Draft202012Validator(json.loads(call_schema(tools, "other")))
    assert one.is_valid({"name": "other", "arguments": {}}) and not one.is_valid({"name": "tree", "arguments": {}})


def test_read_calls_gives_arguments_as_objects():
    message = {
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "c2", "function": {"name": "add", "arguments": '{"a": '}},
        ]
    }
    first, second = read_calls(Fields(message))
    assert first == {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    assert second["function"]["arguments"] == '{"a": '


def test_template_without_tools_gets_them_in_texts():
    call = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
    ]
    plain = without_tool_roles(talk, (CHAT_ADD,))
    assert [m["role"] for m in plain] == ["system", "user", "assistant", "user"]
    assert plain[0]["content"].startswith("Be brief.") and json.dumps(ADD) in plain[0]["content"]
    assert plain[2] == {"role": "assistant", "content": CALL_TEXT}
    assert plain[3]["content"] == "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
    assert without_tool_roles(talk[1:2], (CHAT_ADD,))[0]["role"] == "system"
    assert chat_templates.render_chat("plain", plain)
    assert not takes_tools(chat_templates.PLAIN) and not takes_tools(None)
    assert takes_tools("{%- if tools %}{{ tools | tojson }}{%- endif %}")


async def _stream(events):
    for event in events:
        yield event


def separated(request, *events):
    async def run():
        return [event async for event in separate_calls(_stream(events), request, "chatcmpl-1")]

    return asyncio.run(run())


def test_separate_calls_moves_calls_out_of_the_content():
    request = GenerationRequest("m", tools=(CHAT_ADD,), n=2)
    events = separated(
        request,
        Started(),
        Reasoning("<tool_call>"),
        Content('Hm. <tool_call>{"name": "add", "argu', (1, 2)),
        Content("plain", (9,), choice=1),
        Content('ments": {"a": 1}}</tool_', (3,)),
        Content("call>", (4,)),
        Finished(("stop", "stop"), Usage()),
    )
    assert events[:2] == [Started(), Reasoning("<tool_call>")]
    assert events[2:4] == [Content("Hm.", (1, 2)), Content("plain", (9,), choice=1)]
    assert events[4] == Content("", (3,))
    call = events[5]
    assert isinstance(call, ToolCallDelta) and (call.index, call.name, call.arguments) == (0, "add", '{"a": 1}')
    assert call.id.startswith("call_")
    assert events[6] == Content("", (4,))
    assert events[7] == Finished(("tool_calls", "stop"), Usage()) and len(events) == 8


def test_separate_calls_leaves_answers_alone_without_tools():
    events = (Started(), Content("<tool_call>{}"), Finished(("length",), Usage()))
    assert separated(GenerationRequest("m"), *events) == list(events)
    assert separated(GenerationRequest("m", tools=(CHAT_ADD,), tool_choice="none"), *events) == list(events)


def test_cut_call_keeps_its_finish_reason():
    request = GenerationRequest("m", tools=(CHAT_ADD,))
    *_, call, finished = separated(
        request, Content('<tool_call>{"name": "add", "arguments": {"a'), Finished(("length",), Usage())
    )
    assert call.arguments == '{"a' and finished.finish_reasons == ("length",)


def test_forced_call_is_sampled_under_its_schema():
    request = GenerationRequest("m", tools=(CHAT_ADD,), tool_choice="required")
    assert with_call_grammar(request).sampling.json_schema == call_schema((CHAT_ADD,), "required")
    assert with_call_grammar(GenerationRequest("m", tools=(CHAT_ADD,))).sampling.json_schema == ""
    events = separated(request, Content('{"name": "add", "arguments": {"a": 1}}'), Finished(("stop",), Usage()))
    assert [type(e) for e in events] == [ToolCallDelta, Finished] and events[-1].finish_reasons == ("tool_calls",)


def test_strict_tools_are_bound_between_the_marks_of_a_call():
    add = {"name": "add", "parameters": {**ADD["parameters"], "required": ["a"], "additionalProperties": False}}
    body = {"tools": [{"type": "function", "function": {**add, "strict": True}}, WEATHER]}
    tools = read_tools(Fields(body))
    assert "strict" not in json.dumps(tools)  # templates show the tools as they are
    strict = read_strict_tools(Fields(body), tools)
    assert (
        strict
        == {"add"}
        == read_strict_tools(Fields({"tools": [{"type": "function", **add, "strict": True}]}), tools, flat=True)
    )
    request = with_call_grammar(GenerationRequest("m", tools=tools, strict_tools=strict))
    assert not request.sampling.json_schema and "structural_tag" in request.given
    tag = json.loads(request.sampling.structural_tag)
    (structure,) = tag["structures"]
    assert structure["begin"].startswith(tag["triggers"][0])
    check = jsonschema.Draft202012Validator(structure["schema"])
    assert check.is_valid({"name": "add", "arguments": {"a": 1}})
    assert not check.is_valid({"name": "add", "arguments": {"a": "x"}})
    assert check.is_valid({"name": "weather", "arguments": {"any": "thing"}})  # not strict
    assert not check.is_valid({"name": "other", "arguments": {}})
    text = structure["begin"] + '{"name": "add", "arguments": {"a": 1}}' + structure["end"]
    assert [call.name for call in parse_answer(text, tool_names(tools)).calls] == ["add"]


def test_tools_that_are_not_strict_and_a_response_format_leave_the_sampling_as_it_is():
    tools = read_tools(Fields({"tools": [CHAT_ADD]}))
    plain = GenerationRequest("m", tools=tools)
    with_format = GenerationRequest("m", tools=tools, strict_tools=frozenset({"add"}), sampling=Sampling(regex="a"))
    never = GenerationRequest("m", tools=tools, strict_tools=frozenset({"add"}), tool_choice="none")
    assert all(with_call_grammar(request) is request for request in (plain, with_format, never))


TOOL_TEMPLATE = """\
{%- if tools %}{{- 'Tools: ' + tools | map('tojson') | join('\\n') + '\\n' }}{% endif %}
{%- for message in messages %}
    {{- '[' + message.role + '] ' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"""


def test_template_with_tools_renders_them_as_transformers_does():
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.from_alphabet("".join(map(chr, range(32, 127))) + "\n")
    call = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    talk = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.inner)
    expected = theirs.apply_chat_template(
        talk, tools=[CHAT_ADD], chat_template=TOOL_TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    policy = char_policy()
    policy.tokenizer = chat_templates.with_chat_template(tokenizer, TOOL_TEMPLATE)
    model = ServedModel("m", policy)
    assert model.text(model.encode(talk, [CHAT_ADD]).tolist()) == expected
    assert expected.count('"name": "add"') == 2
    policy.engine.close()
