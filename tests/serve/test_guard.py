"""Who may ask: keys, hosts, origins, sizes, and how many at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.local_http import host_name
from ponder.serve.app import ROUTES
from ponder.serve.guard import OPEN_PATHS, GuardSettings
from ponder.serve.limits import Limits
from serve.live_server import LiveServer, live_server, pausing_engine, wait_until

KEY, OTHER = "secret-1", "secret-2"
LONG = {"max_completion_tokens": 450, "logit_bias": {"2": -100}}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    limits = Limits(max_concurrent=2, max_body_bytes=10_000)
    with live_server(limits=limits, guard=GuardSettings((KEY, OTHER), origins=("https://good.example",))) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_route_but_the_open_ones_needs_a_key(server: LiveServer) -> None:
    for path, method, _ in ROUTES:
        place = path.replace("{name:path}", "plain")
        reply = server.send(method, place, {} if method == "POST" else None)
        assert (reply.status == 200) if place in OPEN_PATHS else (reply.status == 401), place
        if reply.status == 401:
            assert reply.json["error"]["code"] == "invalid_api_key"
    assert "/health" in OPEN_PATHS and not any(path.startswith("/v1") for path in OPEN_PATHS)


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer ", "Basic secret-1", "secret-1", "Bearer secret-1x", ""])
def test_wrong_key_is_401(server: LiveServer, value: str) -> None:
    assert server.get("/v1/models", authorization=value).status == 401


def test_right_key_is_accepted(server: LiveServer) -> None:
    for key in (KEY, OTHER):
        assert server.get("/v1/models", **bearer(key)).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:8000", 200), ("[::1]:8000", 200), ("evil.example", 403), ("", 403),
     ("localhost.evil.example", 403)],
)  # fmt: skip
def test_host_must_be_the_servers_own(server: LiveServer, host: str, status: int) -> None:
    assert server.get("/v1/models", host=host, **bearer(KEY)).status == status


@pytest.mark.parametrize(
    ("origin", "status"), [("https://good.example", 200), ("https://evil.example", 403), ("null", 403)]
)
def test_origin_must_be_the_same_or_allowed(server: LiveServer, origin: str, status: int) -> None:
    assert server.get("/v1/models", origin=origin, **bearer(KEY)).status == status
    own = f"http://127.0.0.1:{server.port}"
    assert server.get("/v1/models", origin=own, **bearer(KEY)).status == 200


def test_large_and_compressed_bodies_are_refused(server: LiveServer) -> None:
    large = server.post("/v1/chat/completions", b" " * 10_001, **bearer(KEY))
    assert large.status == 413 and large.json["error"]["code"] == "request_too_large"
    assert server.post("/v1/chat/completions", b"x", **bearer(KEY), **{"content-encoding": "gzip"}).status == 415


def test_chunked_body_is_bounded_too(server: LiveServer) -> None:
    connection = server.connect()
    connection.request(
        "POST", "/v1/chat/completions", iter([b" " * 6000, b" " * 6000]), bearer(KEY), encode_chunked=True
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_more_requests_than_allowed_get_429_with_retry_after(server: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "2+2?"}], "model": "plain", **LONG}
    connections = [server.connect() for _ in range(2)]
    with pausing_engine():
        for connection in connections:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), bearer(KEY))
        wait_until(lambda: len(server.service.running) == 2)
        reply = server.post("/v1/chat/completions", body, **bearer(KEY))
    assert reply.status == 429 and int(reply.headers["retry-after"]) >= 1
    for connection in connections:
        connection.close()
    wait_until(lambda: not len(server.service.running))


def test_another_key_cannot_end_a_request(server: LiveServer) -> None:
    statuses: list[int] = []
    body = {"messages": [{"role": "user", "content": "2+2?"}], "model": "plain", **LONG}
    thread = threading.Thread(
        target=lambda: statuses.append(server.post("/v1/chat/completions", body, **bearer(KEY)).status)
    )
    with pausing_engine():
        thread.start()
        wait_until(lambda: len(server.service.running) == 1)
        (request_id,) = list(server.service.running.ids())
        control = {"id": request_id, "action": "cancel"}
        assert server.post("/v1/chat/completions/control", control, **bearer(OTHER)).status == 404
        assert server.post("/v1/chat/completions/control", control, **bearer(KEY)).status == 200
    thread.join(120)
    assert statuses == [409]


def test_draining_server_answers_503_and_says_so_on_health() -> None:
    with live_server() as server:
        server.service.running.draining = True
        reply = server.chat()
        assert reply.status == 503 and "retry-after" in reply.headers
        assert server.get("/health").status == 503


@pytest.mark.parametrize(
    ("header", "name"),
    [("localhost:80", "localhost"), ("LOCALHOST", "localhost"), ("[::1]:80", "::1"), ("::1", "::1"), ("", "")],
)
def test_host_name_leaves_out_the_port(header: str, name: str) -> None:
    assert host_name(header) == name
