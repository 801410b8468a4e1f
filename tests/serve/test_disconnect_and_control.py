"""A client that goes away frees its rows; the control API ends thinking or a whole request."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.live_server import LiveServer, live_server, pausing_engine, small_policy, wait_until

LONG = {"max_completion_tokens": 450, "logit_bias": {"2": -100, "32": -100}}  # neither the end nor '>' is sampled


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """The engine pauses until this is set."""
    with pausing_engine() as event:
        yield event


def begin(server: LiveServer, **fields: Any) -> http.client.HTTPConnection:
    """Send a long request and do not wait for its reply."""
    messages = [{"role": "user", "content": "2+2?"}]
    connection = server.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, **LONG, **fields}))
    return connection


def first_chunk(connection: http.client.HTTPConnection) -> tuple[http.client.HTTPResponse, Any]:
    reply = connection.getresponse()
    line = reply.readline()
    while line.startswith(b":") or not line.strip():  # keeps a silent stream alive
        line = reply.readline()
    assert line.startswith(b"data: "), line
    return reply, json.loads(line[6:])


def is_idle(server: LiveServer) -> bool:
    return not small_policy().engine.busy and not len(server.service.running)


def leave_while_sampling(server: LiveServer, draw: random.Random) -> float:
    """A client that goes away while the engine samples for it; seconds until nothing of its request runs."""
    event, policy = threading.Event(), small_policy()
    policy.on_tokens = lambda tokens: event.set()
    fields: dict[str, Any] = {"model": draw.choice(["plain", "thinker"]), "stream": draw.random() < 0.5}
    if draw.random() < 0.5:
        fields["strategy"] = draw.choice(["majority-vote", "beam-search", "mcts"])
        fields["max_completion_tokens"] = 100_000
    connection = begin(server, **fields)
    assert event.wait(60), "the engine did not begin"
    start = time.monotonic()
    connection.close()
    wait_until(lambda: is_idle(server))
    return time.monotonic() - start


@pytest.fixture
def unwatched() -> Iterator[None]:
    yield
    small_policy().on_tokens = lambda tokens: None


@pytest.mark.usefixtures("unwatched")
def test_disconnected_client_leaves_no_sequence_in_the_engine(server: LiveServer) -> None:
    draw = random.Random(5)
    for _ in range(40):
        leave_while_sampling(server, draw)
    assert server.chat(max_completion_tokens=3).status == 200


@pytest.mark.nightly
@pytest.mark.usefixtures("unwatched")
def test_1000_disconnected_clients_leave_no_sequence_in_the_engine(server: LiveServer) -> None:
    draw = random.Random(6)
    for _ in range(1000):
        leave_while_sampling(server, draw)


def test_reasoning_end_makes_a_thinking_model_answer_now(server: LiveServer, go_on: threading.Event) -> None:
    connection = begin(
        server, model="thinker", stream=True, stream_options={"include_usage": True}, max_completion_tokens=250
    )
    reply, chunk = first_chunk(connection)
    control = server.post("/v1/chat/completions/control", {"id": chunk["id"], "action": "reasoning_end"})
    assert control.status == 200, control.body
    go_on.set()
    rest = [json.loads(line[6:]) for line in reply.read().split(b"\n") if line.startswith(b"data: {")]
    usage = rest[-1]["usage"]
    texts = [choice["delta"] for one in rest for choice in one["choices"]]
    assert any(delta.get("content") for delta in texts)
    thought = "".join(delta.get("reasoning_content", "") for delta in texts)
    # Without it, the thinking would have had all but the answer's reserve.
    assert len(thought) < 100 and usage["completion_tokens_details"]["reasoning_tokens"] == len(thought)


@pytest.mark.parametrize("strategy", ["majority-vote", "beam-search"])
def test_reasoning_end_makes_a_strategy_answer_now(server: LiveServer, strategy: str, go_on: threading.Event) -> None:
    for model in ("plain", "thinker"):
        go_on.clear()
        connection = begin(
            server, model=model, stream=True, strategy=strategy, max_completion_tokens=400, logit_bias={}
        )
        reply, chunk = first_chunk(connection)
        wait_until(lambda: small_policy().engine.has_requests)
        control = server.post("/v1/chat/completions/control", {"id": chunk["id"], "action": "reasoning_end"})
        assert control.status == 200, control.body
        go_on.set()
        rest = [json.loads(line[6:]) for line in reply.read().split(b"\n") if line.startswith(b"data: {")]
        texts = [choice["delta"] for one in rest for choice in one["choices"]]
        assert any(delta.get("content") for delta in texts)
        wait_until(lambda: is_idle(server))


def test_cancel_ends_a_stream_with_an_error_and_a_whole_reply_with_409(
    server: LiveServer, go_on: threading.Event
) -> None:
    connection = begin(server, model="thinker", stream=True)
    reply, chunk = first_chunk(connection)
    server.post("/v1/chat/completions/control", {"id": chunk["id"], "action": "cancel"})
    go_on.set()
    last = reply.read().strip().split(b"\n\n")[-1]
    assert json.loads(last[6:])["error"]["code"] == "request_cancelled"
    wait_until(lambda: is_idle(server))
    go_on.clear()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(server.chat(**LONG).status))
    thread.start()
    wait_until(lambda: len(server.service.running) == 1)
    (request_id,) = server.service.running.ids()
    server.post("/v1/chat/completions/control", {"id": request_id, "action": "cancel"})
    go_on.set()
    thread.join(120)
    assert results == [409]
    wait_until(lambda: is_idle(server))


def test_control_refuses_unknown_requests_and_actions(server: LiveServer) -> None:
    path = "/v1/chat/completions/control"
    assert server.post(path, {"id": "chatcmpl-0", "action": "cancel"}).status == 404
    assert server.post(path, {"id": "chatcmpl-0", "action": "pause"}).status == 400
    assert server.post(path, {"action": "cancel"}).status == 400
