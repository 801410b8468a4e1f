"""Hand-made bad requests. Each must get a 4xx in OpenAI's shape, and leave the server as it was."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

JSON = {"content-type": "application/json"}
HELLO = [{"role": "user", "content": "hello"}]

# The smallest good body of each route; a bad one differs in one thing.
GOOD = {
    "/v1/chat/completions": {"model": "plain", "messages": HELLO, "max_tokens": 4},
    "/v1/responses": {"model": "plain", "input": "hello", "max_output_tokens": 4},
    "/v1/completions": {"model": "plain", "prompt": "hello", "max_tokens": 4},
}


@dataclass(frozen=True)
class BadRequest:
    name: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))


def bad_requests() -> list[BadRequest]:
    cases = [*_bodies(), *_fields(), *_messages(), *_tools(), *_items(), *_routes(), *_encodings()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1][:5]
    return cases


def _changed(path: str, **changes: object) -> bytes:
    return json.dumps({**GOOD[path], **changes}).encode()


def _bodies() -> Iterator[BadRequest]:
    """Bodies that are no JSON object."""
    half = json.dumps("\ud800").encode()
    surrogate = b'{"messages": [{"role": "user", "content": %s}], "prompt": %s, "input": %s}' % (half, half, half)
    bodies = {
        "empty": b"",
        "blank": b"  \n ",
        "cut": b'{"model": "tiny", "mess',
        "cut string": b'{"model": "ti',
        "open brace": b"{",
        "list": b"[]",
        "number": b"3",
        "string": b'"hello"',
        "null": b"null",
        "true": b"true",
        "nan": b'{"temperature": NaN}',
        "infinity": b'{"temperature": Infinity}',
        "minus infinity": b'{"temperature": -Infinity}',
        "same key twice": b'{"model": "tiny", "model": "tiny"}',
        "byte order mark": b"\xef\xbb\xbf{}",
        "utf-16": '{"model": "tiny"}'.encode("utf-16"),
        "latin-1": '{"model": "é"}'.encode("latin-1"),
        "no utf-8": b'{"model": "\xff\xfe"}',
        "overlong utf-8": b'{"model": "\xc0\xaf"}',
        "half a surrogate pair": surrogate,
        "nul byte": b'{"model": "tiny\x00"}',
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 50_000,
        "deep and closed": b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        "huge integer": b'{"max_tokens": ' + b"9" * 50_000 + b"}",
        "huge float": b'{"temperature": 1e999999}',
        "trailing comma": b'{"model": "tiny",}',
        "trailing text": b'{"model": "tiny"} and more',
        "two objects": b"{}{}",
        "single quotes": b"{'model': 'tiny'}",
        "comment": b'{"model": "tiny" /* mine */}',
        "bare key": b'{model: "tiny"}',
        "form": b"model=tiny&messages=hello",
        "xml": b"<model>tiny</model>",
        "python": b"{'model': None}",
        "control character": b'{"model": "a\nb"}',
        "bad escape": b'{"model": "\\x41"}',
        "leading zero": b'{"max_tokens": 007}',
        "plus sign": b'{"max_tokens": +7}',
        "hexadecimal": b'{"max_tokens": 0x10}',
    }
    for path in GOOD:
        for name, body in bodies.items():
            yield BadRequest(f"{path} body: {name}", path, body)


_SAMPLING = {
    "temperature": ["hot", -1, 1e9, [], {}, True],
    "top_p": ["x", -0.1, 1.5, []],
    "seed": ["x", 1.5, -(2**200), []],
    "model": [3, [], {}, "", "no-such-model", "x" * 100_000, "plain:no-such-strategy", "../../etc/passwd"],
    "stream": ["yes", 3, []],
    "strategy": [3, [], {}, "no-such-strategy", {"name": 3}, {"name": "chain", "no_such": 1}],
    "no_such_field": [1],
}
_CHAT = {
    "max_tokens": ["x", -1, 0, 1.5, 10**30, [], True],
    "max_completion_tokens": ["x", -5, {}],
    "n": ["x", 0, -1, 10**9, 1.5, []],
    "stop": [3, [3], ["x"] * 1000, {}, "x" * 100_000],
    "logit_bias": ["x", [1], {"x": 1}, {"1": "x"}, {"-5": 1}, {"99999999999": 1}],
    "presence_penalty": ["x", 1e99, []],
    "frequency_penalty": ["x", 1e99, {}],
    "messages": [None, "hello", 3, {}, [], [3], [None], [[]]],
    "logprobs": ["x", 3],
    "top_logprobs": ["x", -1, 10**6, 1.5],
    "response_format": [
        "json", 3, [], {}, {"type": "no_such"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 3},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no_such_type"}}},
    ],
    "reasoning_effort": ["huge", 3, [], {}],
    "thinking_token_budget": ["x", -1, 1.5, []],
    "stream_options": ["x", 3, []],
    "functions": [[{"name": "f"}]],
    "audio": [{"voice": "x"}],
    "modalities": [["audio"]],
}  # fmt: skip
_RESPONSES = {
    "max_output_tokens": ["x", -1, 0, 1.5, 10**30, []],
    "input": [None, 3, {}, [], [3], [None], [[]]],
    "instructions": [3, [], {}],
    "previous_response_id": [3, [], "resp_none", "x" * 100_000],
    "store": ["yes", 3],
    "background": [True, "x"],
    "metadata": ["x", [], {"a": 3}, {"a": "x" * 10_000}, {str(i): "x" for i in range(1000)}],
    "reasoning": ["high", 3, [], {"effort": "huge"}, {"effort": 3}, {"summary": "long"}, {"no_such": 1}],
    "text": ["x", 3, {"format": 3}, {"format": {"type": "no_such"}}, {"format": {"type": "json_schema"}},
             {"format": {"type": "json_schema", "name": "x", "schema": 3}}, {"no_such": 1}],
    "include": ["x", [3], ["no_such"], {}],
    "truncation": ["auto", "x", 3],
    "conversation": ["conv_1", {"id": "x"}],
    "prompt": [{"id": "x"}],
    "top_logprobs": ["x", -1, 10**6],
    "parallel_tool_calls": ["x", 3],
}  # fmt: skip
_COMPLETIONS = {
    "max_tokens": ["x", -1, 1.5, 10**30, []],
    "prompt": [None, 3, {}, [[]], [{}], [None], [-1], [10**12], [1.5]],
    "n": ["x", 0, -1, 10**9],
    "logprobs": ["x", -1, 10**6],
    "echo": ["x", 3],
    "stop": [3, [3], {}],
}


def _fields() -> Iterator[BadRequest]:
    """One field of the wrong type, out of range, or unknown."""
    tables = (_CHAT, _RESPONSES, _COMPLETIONS)
    for path, table in zip(GOOD, tables, strict=True):
        for name, values in {**_SAMPLING, **table}.items():
            for i, value in enumerate(values):
                yield BadRequest(f"{path} {name} {i}", path, _changed(path, **{name: value}))


def _messages() -> Iterator[BadRequest]:
    path = "/v1/chat/completions"
    messages = [
        {}, {"role": "user"}, {"content": "x"}, {"role": 3, "content": "x"}, {"role": "wizard", "content": "x"},
        {"role": "user", "content": 3}, {"role": "user", "content": {}}, {"role": "user", "content": [3]},
        {"role": "user", "content": [{}]}, {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": 3}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]},
        {"role": "assistant", "tool_calls": "x"}, {"role": "assistant", "tool_calls": [3]},
        {"role": "assistant", "tool_calls": [{}]}, {"role": "assistant", "tool_calls": [{"function": {}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 3, "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "tool_calls": [{"type": "magic", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": 3, "tool_call_id": "x"}, {"role": ["user"], "content": "x"},
        {"role": None, "content": "x"}, {"role": "user", "content": None}, {"role": "user", "content": True},
    ]  # fmt: skip
    for i, message in enumerate(messages):
        yield BadRequest(f"message {i}", path, _changed(path, messages=[*HELLO, message]))


def _tools() -> Iterator[BadRequest]:
    function = {"type": "function", "function": {"name": "f"}}
    tools = [
        "x", 3, {}, [3], [None], [{}], [{"type": "function"}], [{"type": "web_search"}], [function] * 2,
        [{"type": "function", "function": {"name": ""}}], [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "é"}}], [{"type": "function", "function": {"name": "x" * 1000}}],
        [{"type": "function", "function": {"name": "f", "parameters": 3}}],
        [{"type": "function", "function": {"name": "f", "description": 3}}],
        [{"type": "function", "function": {"name": "f", "strict": "x"}}],
        [{"type": "function", "function": {"name": "f", "no_such": 1}}],
        [{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)],
    ]  # fmt: skip
    choices = ["any", 3, [], {}, {"type": "function"}, {"type": "function", "function": {"name": "g"}}, {"type": "x"}]
    path = "/v1/chat/completions"
    for i, value in enumerate(tools):
        yield BadRequest(f"tools {i}", path, _changed(path, tools=value))
    for i, value in enumerate(choices):
        yield BadRequest(f"tool choice {i}", path, _changed(path, tools=[function], tool_choice=value))
    yield BadRequest("tool choice without tools", path, _changed(path, tool_choice="required"))
    yield BadRequest("parallel tool calls", path, _changed(path, tools=[function], parallel_tool_calls="x"))
    flat = [[{"type": "function", "name": ""}], [{"type": "function", "function": {"name": "f"}}], [{"type": "mcp"}],
            [{"type": "file_search"}], [{"type": "function", "name": "f", "parameters": "x"}]]  # fmt: skip
    for i, value in enumerate(flat):
        yield BadRequest(f"flat tools {i}", "/v1/responses", _changed("/v1/responses", tools=value))


def _items() -> Iterator[BadRequest]:
    items = [
        {}, {"type": 3}, {"type": "no_such"}, {"type": "item_reference", "id": "x"}, {"role": "wizard", "content": "x"},
        {"role": "user", "content": 3}, {"role": "user", "content": [3]}, {"role": "user", "content": [{"type": "x"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
        {"role": "user", "content": [{"type": "input_text", "text": 3}]},
        {"type": "function_call"}, {"type": "function_call", "call_id": "c", "name": 3},
        {"type": "function_call", "call_id": 3, "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}},
        {"type": "function_call_output"}, {"type": "function_call_output", "call_id": "c", "output": 3},
        {"type": "reasoning", "summary": 3}, {"type": "reasoning", "summary": [{"type": "x"}]},
        {"type": "computer_call"},
    ]  # fmt: skip
    for i, item in enumerate(items):
        yield BadRequest(f"item {i}", "/v1/responses", _changed("/v1/responses", input=[item]))


def _routes() -> Iterator[BadRequest]:
    """Methods and paths that are not there."""
    for path in GOOD:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            yield BadRequest(f"{method} {path}", path, b"{}", method)
    for path in ("/v1/models", "/metrics", "/health", "/openapi.json"):
        yield BadRequest(f"POST {path}", path, b"{}")
    paths = [
        "/v1", "/v1/", "/v2/chat/completions", "/v1/chat", "/v1/chat/completions/", "/v1/nothing", "/v1//models",
        "/v1/models/no-such-model", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/%00", "/v1/models/%ff%fe",
        "/v1/responses/resp_none", "/v1/responses/%00", "/v1/responses/" + "x" * 5000, "/v1/responses/..%2f..",
        "/v1/responses/resp_none/input_items", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../app.py",
        "/v1/embeddings", "/v1/files", "/.git/config", "/.env", "/admin",
    ]  # fmt: skip
    for path in paths:
        yield BadRequest(f"GET {path[:60]}", path, method="GET")
    yield BadRequest("DELETE a response", "/v1/responses/resp_none", method="DELETE")
    yield BadRequest("cancel a response", "/v1/responses/resp_none/cancel")
    yield BadRequest("control nothing", "/v1/chat/completions/control", b"{}")
    yield BadRequest("control no such", "/v1/chat/completions/control", b'{"id": "x", "action": "cancel"}')


def _encodings() -> Iterator[BadRequest]:
    """Compressed bodies, and bodies of other types."""
    for path, body in GOOD.items():
        plain = json.dumps(body).encode()
        yield BadRequest(f"{path} gzip", path, gzip.compress(plain), headers={**JSON, "content-encoding": "gzip"})
        yield BadRequest(f"{path} deflate", path, zlib.compress(plain), headers={**JSON, "content-encoding": "deflate"})
        yield BadRequest(f"{path} br", path, plain, headers={**JSON, "content-encoding": "br"})
    bomb = gzip.compress(b" " * (32 << 20), 1)
    yield BadRequest("gzip bomb", "/v1/chat/completions", bomb, headers={**JSON, "content-encoding": "gzip"})
    twice = gzip.compress(bomb)
    yield BadRequest(
        "gzip bomb in gzip", "/v1/chat/completions", twice, headers={**JSON, "content-encoding": "gzip, gzip"}
    )
