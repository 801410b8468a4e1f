"""`reason.tools.call_parser`: calls in Hermes' marks, parsed whole and piece by piece."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.reason.tools.call_parser import (
    CallPiece,
    FunctionCall,
    ParsedAnswer,
    ToolCallParser,
    join_pieces,
    parse_answer,
)
from sizes import size

NAMES = {"add", "weather"}
_WORDS = st.text(alphabet='ab"\\{}[]<>/é\n\u2028😀', max_size=8)


def call(name="add", arguments='{"a": 1, "b": 2}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("hello", "hello", []),
        ("  hello \n", "  hello \n", []),
        ("", "", []),
        (call(), "", [("add", '{"a": 1, "b": 2}')]),
        ("I add.\n" + call() + "\n", "I add.", [("add", '{"a": 1, "b": 2}')]),
        (
            call() + "\n" + call("weather", "{}") + "  done ",
            "done ",
            [("add", '{"a": 1, "b": 2}'), ("weather", "{}")],
        ),
        ('<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "add"}</tool_call>', "", [
            ("add", '{"a": [1, {"b": "}"}]}')
        ]),
        ('<tool_call>{"name": "add", "parameters": {}}', "", [("add", "{}")]),
        ('<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
        ('<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", "{}")]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
        ('<tool_call>{"name": "add", "arguments": {"a": "</tool_call>"}}</tool_call>.', ".", [
            ("add", '{"a": "</tool_call>"}')
        ]),
        ('<tool_call>{"name": "add", "arguments": {"a": "x\\"}"}, "id": 3}</tool_call>', "", [
            ("add", '{"a": "x\\"}"}')
        ]),
        # cut inside the arguments: a call that is cut, too
        ('<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
        ('<tool_call>{"name": "add", "arguments": {"a": </tool_call>.', ".", [("add", '{"a": ')]),
        (call() + "</tool_", "", [("add", '{"a": 1, "b": 2}')]),
    ],
)  # fmt: skip
def test_parse_answer_splits_content_and_calls(text, content, calls):
    assert parse_answer(text, NAMES) == ParsedAnswer(content, tuple(FunctionCall(*c) for c in calls))


@pytest.mark.parametrize(
    "text",
    [
        call("launch"),  # not on offer
        "a <tool_call> b",
        "a\n<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "add", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": ["add"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add"',  # cut before the arguments
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',  # no name
        '<tool_call>{"name" "add"}</tool_call>',
        "ends in a mark <tool_ca",
        "</tool_call> alone",
    ],
)
def test_parse_answer_keeps_what_is_no_call_as_content(text):
    assert parse_answer(text, NAMES) == ParsedAnswer(text, ())


def test_parse_answer_finds_a_call_after_a_broken_one():
    assert parse_answer("<tool_call> <tool_call>" + call()[11:], NAMES) == ParsedAnswer(
        "<tool_call>", (FunctionCall("add", '{"a": 1, "b": 2}'),)
    )


def test_parse_answer_without_parallel_calls_ends_after_the_first():
    assert parse_answer("x" + call() + call("weather") + "y", NAMES, parallel=False) == ParsedAnswer(
        "x", (FunctionCall("add", '{"a": 1, "b": 2}'),)
    )


def test_parse_answer_reads_a_bare_call():
    assert parse_answer('{"name": "add", "arguments": {"a": 1}}', NAMES, bare=True) == ParsedAnswer(
        "", (FunctionCall("add", '{"a": 1}'),)
    )
    assert parse_answer("no call", NAMES, bare=True) == ParsedAnswer("no call", ())


def test_feed_passes_arguments_on_before_the_call_ends():
    parser = ToolCallParser(NAMES)
    assert parser.feed('Hm. <tool_call>\n{"name": "add", "argum') == ["Hm."]
    assert parser.feed('ents": {"a"') == [CallPiece(0, "add", '{"a"')]
    assert parser.feed(": 1") == [CallPiece(0, "", ": 1")]
    assert parser.feed("}}\n</tool_") == [CallPiece(0, "", "}")]
    assert parser.feed("call>") == parser.close() == []


_PARTS = [
    "<tool_call>", "</tool_call>", "<tool_", "call>", "</", "<", "\n", "  ", "hello", '{"name": "add"', '"name": "add"',
    '"name": "launch"', ', "arguments": ', '"arguments": {"a": 1}', '{"a": "<tool_call>"}', '{"b": [1, {"c": null}]}',
    "{", "}", "[", "]", '"', "\\", ",", ":", "3", "null", call(), call("weather", '{"city": "Zürich \\u0041"}'),
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(_PARTS), max_size=12), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_streamed_pieces_are_prefixes_of_the_whole_result(parts, rng, bare, parallel):
    text = "".join(parts)
    whole = parse_answer(text, NAMES, bare, parallel)
    parser, pieces, at = ToolCallParser(NAMES, bare, parallel), [], 0
    while at < len(text):
        size = rng.choice([1, 1, 2, 5, 40])
        pieces += parser.feed(text[at : at + size])
        at += size
        check_prefix(join_pieces(pieces), whole)
    pieces += parser.close()
    assert join_pieces(pieces) == whole
    assert all(piece if isinstance(piece, str) else piece.name or piece.arguments for piece in pieces)


def check_prefix(part, whole):
    assert whole.content.startswith(part.content)
    for mine, full in zip(part.calls, whole.calls, strict=False):
        assert mine.name == full.name and full.arguments.startswith(mine.arguments)
    assert len(part.calls) <= len(whole.calls)


@settings(max_examples=size(60, 150), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(NAMES)),
            st.dictionaries(
                _WORDS, st.recursive(st.none() | st.booleans() | st.integers() | _WORDS, st.lists, max_leaves=5)
            ),
        ),
        max_size=4,
    ),
    st.text(alphabet="abc é\n"),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_parse_answer_returns_what_json_dumps_wrote(calls, content, indent, ascii_only):
    written = [json.dumps({"name": n, "arguments": a}, indent=indent, ensure_ascii=ascii_only) for n, a in calls]
    parsed = parse_answer(content + "".join(f"<tool_call>{w}</tool_call>" for w in written), NAMES)
    assert [(c.name, json.loads(c.arguments)) for c in parsed.calls] == calls
    assert parsed.content == (re.sub(r"[ \n]+\Z", "", content) if calls else content)


def test_parser_ends_on_long_hostile_text():
    """Reading more than once what a model writes without end would take minutes here."""
    for text in ("<tool_call>{" * 3000, '<tool_call>{"a": "' * 2000, " " * 40_000, "<" * 40_000):
        parser = ToolCallParser(NAMES)
        pieces = [piece for at in range(0, len(text), 7) for piece in parser.feed(text[at : at + 7])]
        assert join_pieces([*pieces, *parser.close()]) == ParsedAnswer(text, ())


def test_random_text_never_raises():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice(_PARTS) for _ in range(rng.randrange(30)))
        parsed = parse_answer(text, NAMES)
        assert len(parsed.content) <= len(text)
