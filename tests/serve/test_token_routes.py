"""The routes in token ids over HTTP: streams, keys, disconnects."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from ponder.models.ponder_policy import PonderPolicy
from ponder.serve.guard import GuardSettings
from ponder.serve.limits import Limits
from serve.live_server import LiveServer, live_server, small_models, small_policy, wait_until

IDS = [5, 6, 7]
PATHS = (
    "/v1/tokenize", "/tokenize", "/v1/detokenize", "/detokenize", "/v1/tokenizer", "/v1/score",
    "/inference/v1/generate",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as server:
        yield server


def test_streamed_generation_equals_the_whole(server: LiveServer) -> None:
    params = {"max_tokens": 30, "seed": 9, "n": 2, "logprobs": 2}
    body = {"model": "plain", "token_ids": IDS, "sampling_params": params}
    whole = server.post("/inference/v1/generate", body)
    assert whole.status == 200 and whole.headers["x-request-id"] == whole.json["request_id"]
    chunks = server.post("/inference/v1/generate", {**body, "stream": True}).chunks
    for choice in whole.json["choices"]:
        parts = [p for chunk in chunks for p in chunk["choices"] if p["index"] == choice["index"]]
        assert [t for part in parts for t in part["token_ids"]] == choice["token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole.json["usage"] | {"prompt_tokens_details": {"cached_tokens": 2}}


@pytest.mark.parametrize("path", PATHS)
def test_every_route_needs_the_key(path: str) -> None:
    with live_server(guard=GuardSettings(api_keys=("k",))) as server:
        assert server.post(path, {}).status == 401 and server.get(path).status == 401
        assert server.post(path, {}, authorization="Bearer k").status in (200, 400, 404)


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_the_sequences(server: LiveServer, stream: bool) -> None:
    policy = small_policy()
    assert isinstance(policy, PonderPolicy)
    params = {"max_tokens": 500, "n": 8, "logit_bias": {"2": -1e9}}  # the end token is banned
    body = {"model": "plain", "token_ids": IDS, "stream": stream, "sampling_params": params}
    connection = server.connect()
    connection.request("POST", "/inference/v1/generate", json.dumps(body))
    wait_until(lambda: policy.engine.has_requests)
    connection.close()
    wait_until(lambda: not policy.engine.has_requests and len(server.service.running) == 0)


def test_too_many_requests_get_a_429() -> None:
    with live_server(small_models(), Limits(max_concurrent=1)) as server:
        params = {"max_tokens": 500, "n": 8, "logit_bias": {"2": -1e9}}
        connection = server.connect()
        body = {"model": "plain", "token_ids": IDS, "sampling_params": params}
        connection.request("POST", "/inference/v1/generate", json.dumps(body))
        wait_until(lambda: len(server.service.running) == 1)
        reply = server.post("/v1/tokenize", {"model": "plain", "prompt": "a"})
        assert reply.status == 429 and reply.headers["retry-after"]
        connection.close()
        wait_until(lambda: len(server.service.running) == 0)
