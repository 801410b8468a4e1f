"""A streamed reply is the whole reply, in pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.live_server import LiveServer, Reply, live_server, small_policy
from serve.random_requests import random_request


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def fold(reply: Reply, n: int) -> dict[str, Any]:
    """The chunks of a stream, joined as a client joins them."""
    choices = [
        {
            "content": "",
            "reasoning_content": "",
            "reasoning": "",
            "finish_reason": None,
            "logprobs": [],
            "token_ids": [],
        }
        for _ in range(n)
    ]
    out: dict[str, Any] = {"choices": choices}
    for chunk in reply.chunks:
        assert chunk["object"] == "chat.completion.chunk" and chunk["id"] == reply.headers["x-request-id"]
        out |= {k: chunk[k] for k in ("usage", "prompt_token_ids") if chunk.get(k)}
        for entry in chunk["choices"]:
            choice = choices[entry["index"]]
            assert choice["finish_reason"] is None, "nothing comes after the end"
            for name in ("content", "reasoning_content", "reasoning"):
                choice[name] += entry["delta"].get(name) or ""
            choice["finish_reason"] = entry["finish_reason"]
            choice["logprobs"] += (entry["logprobs"] or {}).get("content", [])
            choice["token_ids"] += entry.get("token_ids", [])
    return out


def as_folded(whole: dict[str, Any]) -> dict[str, Any]:
    """A whole reply in the same form."""
    choices = []
    for entry in whole["choices"]:
        message = entry["message"]
        texts = {name: message.get(name) or "" for name in ("content", "reasoning_content", "reasoning")}
        logprobs = (entry["logprobs"] or {}).get("content", [])
        more = {"finish_reason": entry["finish_reason"], "token_ids": entry.get("token_ids", [])}
        choices.append({**texts, **more, "logprobs": logprobs})
    return {"choices": choices, **{k: whole[k] for k in ("usage", "prompt_token_ids") if whole.get(k)}}


def check_equal(server: LiveServer, body: dict[str, Any]) -> None:
    replies = []
    for stream in (False, True):
        small_policy().reseed(0)  # empties the cache: the same passes then give the same bits
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        reply = server.post("/v1/chat/completions", {**body, **more})
        assert reply.status == 200, (body, reply.body)
        replies.append(fold(reply, body.get("n", 1)) if stream else as_folded(reply.json))
    for reply in replies:
        reply["usage"]["search"].pop("seconds")
        if body.get("n", 1) > 1:  # which of the choices computes the prompt, and with whom it shares a pass, may differ
            reply["usage"]["search"].pop("flops")
            for choice in reply["choices"]:
                choice["logprobs"] = len(choice["logprobs"])
    whole, streamed = replies
    assert streamed == whole, body
    for choice in whole["choices"]:
        assert choice["reasoning"] == choice["reasoning_content"]


def test_streamed_reply_equals_whole_reply_in_50_random_requests(server: LiveServer) -> None:
    draw = random.Random(1)
    for _ in range(50):
        check_equal(server, random_request(draw))


@pytest.mark.nightly
def test_streamed_reply_equals_whole_reply_in_1000_random_requests(server: LiveServer) -> None:
    draw = random.Random(2)
    for _ in range(1000):
        check_equal(server, random_request(draw))
