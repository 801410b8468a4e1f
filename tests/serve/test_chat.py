"""Chat completions over HTTP: fields, streams, thinking, strategies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.types import Sampling
from serve.live_server import LiveServer, live_server, small_policy


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def test_chat_returns_openai_fields(server: LiveServer) -> None:
    reply = server.chat(max_completion_tokens=12, seed=1)
    assert reply.status == 200, reply.body
    out = reply.json
    assert out["object"] == "chat.completion" and out["id"] == reply.headers["x-request-id"]
    (choice,) = out["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    assert out["usage"]["completion_tokens"] <= 12


def test_plain_chat_is_what_the_policy_itself_samples(server: LiveServer) -> None:
    choice = server.chat(max_completion_tokens=12, temperature=0, return_token_ids=True).json
    policy = small_policy()
    prompt = policy.encode([{"role": "user", "content": "2+2?"}])
    (own,) = asyncio.run(policy.generate(prompt, Sampling(temperature=0, max_tokens=12)))
    assert choice["prompt_token_ids"] == prompt.tolist()
    assert choice["choices"][0]["token_ids"] == own.token_ids.tolist()
    assert choice["choices"][0]["message"]["content"] == own.text


def test_thought_and_answer_are_separate_steps_and_texts(server: LiveServer) -> None:
    reply = server.chat(model="thinker", max_completion_tokens=60, seed=8, return_trace=True, return_token_ids=True)
    (choice,), (trace,) = reply.json["choices"], reply.json["traces"]
    texts = [step["text"] for step in trace["steps"][1:]]
    thought, answer = choice["message"]["reasoning_content"], choice["message"]["content"]
    assert texts[-1].lstrip("\n").startswith(answer) and "".join(texts[:-1]).startswith(thought)
    assert choice["token_ids"] == [token for step in trace["steps"][1:] for token in step["token_ids"]]


def test_marker_inside_the_answer_does_not_split_it(server: LiveServer) -> None:
    body = {"response_format": {"type": "regex", "pattern": "a<b>c>d"}, "max_completion_tokens": 80, "seed": 4}
    message = server.chat(model="thinker", **body).json["choices"][0]["message"]
    assert message["content"] == "a<b>c>d"


def test_stop_string_ends_the_answer_and_not_the_thought(server: LiveServer) -> None:
    stops = list("abcdefghijklmnop")
    reply = server.chat(model="thinker", max_completion_tokens=200, seed=11, stop=stops, logit_bias={"32": -100})
    message = reply.json["choices"][0]["message"]
    assert any(stop in message["reasoning_content"] for stop in stops)
    assert not any(stop in message["content"] for stop in stops)


def test_first_choice_does_not_depend_on_n(server: LiveServer) -> None:
    texts = [
        [choice["message"]["content"] for choice in server.chat(max_completion_tokens=9, seed=2, n=n).json["choices"]]
        for n in (1, 3)
    ]
    assert texts[0][0] == texts[1][0] and len(set(texts[1])) == 3


def test_seed_fixes_the_reply_and_no_seed_does_not(server: LiveServer) -> None:
    def text(**fields: Any) -> str:
        return str(server.chat(max_completion_tokens=16, **fields).json["choices"][0]["message"]["content"])

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text() != text()


def test_logit_bias_and_penalties_reach_the_sampler(server: LiveServer) -> None:
    token = small_policy().tokens("z").tolist()[0]
    biased = server.chat(max_completion_tokens=5, logit_bias={str(token): 100}).json["choices"][0]["message"]
    assert biased["content"] == "zzzzz"
    fields = {"temperature": 0, "max_completion_tokens": 30}
    plain = server.chat(**fields).json["choices"][0]["message"]["content"]
    varied = server.chat(**fields, frequency_penalty=2, presence_penalty=2).json["choices"][0]["message"]["content"]
    assert len(set(varied)) > len(set(plain))


def test_json_schema_holds_for_votes_too(server: LiveServer) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for model in ("plain", "thinker"):
        fields = {"response_format": form, "reasoning_effort": "medium", "max_completion_tokens": 900, "seed": 1}
        choice = server.chat(model=model, **fields).json["choices"][0]
        assert isinstance(json.loads(choice["message"]["content"])["ok"], bool)
    assert server.chat(response_format=form, strategy="beam-search").json["error"]["param"] == "response_format"


def test_search_shows_one_line_for_each_step(server: LiveServer) -> None:
    strategy = {"name": "beam-search", "n": 4, "beam_width": 2, "cut": "tokens:6"}
    reply = server.chat(strategy=strategy, max_completion_tokens=120, seed=3, return_trace=True).json
    lines = reply["choices"][0]["message"]["reasoning_content"].splitlines()
    (trace,) = reply["traces"]
    steps = [" ".join(step["text"].split())[:200] for step in trace["steps"][1:] if "logprobs" in step]
    assert len(lines) > 4 and lines == [step for step in steps[: len(lines)] if step]
    assert reply["usage"]["search"]["nodes"] == len(steps)


def test_include_reasoning_false_sends_no_thought_and_counts_it(server: LiveServer) -> None:
    fields: dict[str, Any] = {"model": "thinker", "max_completion_tokens": 60, "seed": 8}
    shown, hidden = (server.chat(**fields, include_reasoning=flag).json for flag in (True, False))
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["choices"][0]["message"]["content"] == shown["choices"][0]["message"]["content"]
    assert hidden["usage"]["completion_tokens"] == shown["usage"]["completion_tokens"]


def test_long_prompt_is_a_400_with_openais_code(server: LiveServer) -> None:
    reply = server.chat("x" * 600)
    assert reply.status == 400 and reply.json["error"]["code"] == "context_length_exceeded"


def test_answer_ends_where_the_context_does(server: LiveServer) -> None:
    reply = server.chat("x" * 500, max_completion_tokens=400, logit_bias={"2": -100}).json
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"] == 512


def test_ignore_eos_gives_answers_of_one_length(server: LiveServer) -> None:
    for seed in range(5):
        reply = server.chat(max_completion_tokens=40, ignore_eos=True, seed=seed).json
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (40, "length")
    text = server.post("/v1/completions", {"model": "plain", "prompt": "a", "max_tokens": 40, "ignore_eos": True}).json
    assert text["usage"]["completion_tokens"] == 40
    refused = server.chat(ignore_eos=1)
    assert refused.status == 400 and "ignore_eos is 1; it must be true or false" in refused.json["error"]["message"]


def test_bookkeeping_fields_are_accepted(server: LiveServer) -> None:
    fields = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k"}
    assert server.chat(max_completion_tokens=2, **fields).status == 200


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {"5000": 1}}, {"stop_token_ids": [5000]}, {"response_format": {"type": "regex", "pattern": "(("}},
     {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
     {"min_tokens": 50, "max_tokens": 5}],
)  # fmt: skip
def test_what_the_engine_refuses_is_a_400_before_a_stream_begins(server: LiveServer, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        reply = server.chat(stream=stream, **fields)
        assert reply.status == 400 and reply.json["error"]["message"], fields


@pytest.mark.parametrize("name", ["messages", "tools", "self", "template", "tokenizer", "vision"])
def test_template_fields_cannot_have_the_names_of_rendering(server: LiveServer, name: str) -> None:
    replies = [server.chat(chat_template_kwargs={name: []}, stream=stream) for stream in (False, True)]
    body = {"model": "plain", "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {name: []}}
    for reply in (*replies, server.post("/v1/tokenize", body)):
        assert reply.status == 400, reply.body
        error = reply.json["error"]
        assert error["message"] == f"chat_template_kwargs cannot have {name!r}"
        assert error["param"] == "chat_template_kwargs"


WRONG_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": [5000]}, "prompt"),
    ("/v1/completions", {"prompt": [5] * 600}, "prompt"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5000": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": [5000]}, "stop_token_ids"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logit_bias": {"5000": 1}}, "logit_bias"),
    ("/v1/responses", {"input": "x" * 600}, "input"),
    ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"logit_bias": {"5000": 1}}},
     "sampling_params.logit_bias"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), WRONG_FIELDS)
def test_errors_about_tokens_name_the_field(server: LiveServer, path: str, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        reply = server.post(path, {"model": "plain", "stream": stream, **fields})
        assert (reply.status, reply.json["error"]["param"]) == (400, param), reply.body


def test_reply_to_a_request_without_a_model_names_the_only_one() -> None:
    requests = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        "/v1/completions": {"prompt": "a", "max_tokens": 2},
        "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 2}},
    }
    with live_server(ServedModels([ServedModel("plain", small_policy())])) as server:
        for path, body in requests.items():
            for unnamed in (body, {**body, "model": ""}) if path.startswith("/v1") else (body,):
                assert server.post(path, unnamed).json["model"] == "plain", path
                chunks = server.post(path, {**unnamed, "stream": True}).chunks
                assert {chunk["model"] for chunk in chunks} == {"plain"}, path
        assert server.post("/v1/responses", {"input": "a", "max_output_tokens": 2}).json["model"] == "plain"
        assert server.post("/v1/score", {"prompt": "a", "completion": "b"}).json["model"] == "plain"


def test_silent_stream_is_kept_alive_by_comments() -> None:
    limits = Limits(keepalive_seconds=0.001)
    with live_server(limits=limits) as quick:
        reply = quick.chat(stream=True, max_completion_tokens=40, seed=1)
    assert b": keepalive\n\n" in reply.body and reply.chunks[-1]["choices"][0]["finish_reason"]
