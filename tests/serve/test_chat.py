"""Chat completions over HTTP: fields, streams, thinking, strategies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.live_server import LiveServer, live_server


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
