"""A real server process that is told to stop: it answers while it drains, and ends what does not finish in time with
an error that clients can read."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import signal
import subprocess
import time
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.cli.serve import serve
from ponder.serve.draining_server import without_cancelled
from ponder.serve.limits import Limits
from ponder.serve.running_requests import RunningRequests
from serve.slow_server import slow_server

MESSAGES = [{"role": "user", "content": "2+2?"}]
LONG = {"logit_bias": {"2": -100, "32": -100}}  # neither the end nor '>' is sampled
CHAT = {"model": "plain", "messages": MESSAGES, "stream": True, **LONG}
MINUTE = 60.0  # for what takes no time


def send(port: int, path: str, body: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    connection.request("POST", path, json.dumps(body))
    return connection


def post(port: int, path: str, body: Any) -> http.client.HTTPResponse:
    """The reply to a request, as soon as it begins."""
    return send(port, path, body).getresponse()


def get(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def wait_for_draining(port: int) -> None:
    deadline = time.monotonic() + MINUTE
    while get(port, "/health") != (503, {"status": "stopping"}):
        assert time.monotonic() < deadline, "the server does not say that it stops"


def last_data(reply: http.client.HTTPResponse) -> str:
    """What the last event of a stream holds."""
    return [line[6:] for line in reply.read().decode().splitlines() if line.startswith("data: ")][-1]


def check_exit(process: subprocess.Popen[str]) -> None:
    """The server ended by itself, with nothing to say."""
    assert process.stderr is not None
    assert process.wait(MINUTE) == 0
    assert process.stderr.read() == ""


def test_first_signal_keeps_answering_until_running_requests_finish() -> None:
    with slow_server(Limits().drain_seconds) as (process, port):
        stream = post(port, "/v1/chat/completions", {**CHAT, "max_completion_tokens": 150})
        assert stream.status == 200 and get(port, "/health") == (200, {"status": "ok"})
        process.send_signal(signal.SIGINT)
        wait_for_draining(port)
        time.sleep(1)  # longer than uvicorn needs to see that it is to stop
        assert get(port, "/health") == (503, {"status": "stopping"})
        refused = post(port, "/v1/chat/completions", {**CHAT, "max_completion_tokens": 1})
        assert (refused.status, json.loads(refused.read())["error"]["code"]) == (503, "unavailable")
        assert last_data(stream) == "[DONE]"
        check_exit(process)


def get_metric(port: int, name: str) -> float:
    """The sum of a metric over all models."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def end_of(path: str, reply: http.client.HTTPResponse) -> Any:
    """The error at the end of a stream, in the form of its API."""
    events = [line for line in reply.read().decode().splitlines() if line.startswith("data: ")]
    assert "[DONE]" not in events[-1]
    if path == "/v1/responses":
        failed = next(data for line in events if (data := json.loads(line[6:])).get("type") == "response.failed")
        assert "the server stopped" in failed["response"]["error"]["message"]
    return json.loads(events[-1][6:])["error"]


@pytest.mark.parametrize("second_signal", [False, True])
def test_replies_end_with_an_error_after_the_drain_time_or_a_second_signal(second_signal: bool) -> None:
    prompt = {"model": "plain", "stream": True, **LONG}
    requests = [
        ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 450}),
        ("/v1/completions", {**prompt, "prompt": "2+2?", "max_tokens": 450}),
        ("/v1/responses", {**prompt, "input": "2+2?", "max_output_tokens": 450}),
        (
            "/inference/v1/generate",
            {"model": "plain", "stream": True, "token_ids": [20, 13, 20, 33],
             "sampling_params": {"max_tokens": 450, "ignore_eos": True}},
        ),
    ]  # fmt: skip
    with slow_server(Limits().drain_seconds if second_signal else 0.5) as (process, port):
        replies = [(path, post(port, path, body)) for path, body in requests]
        assert [reply.status for _, reply in replies] == [200] * len(requests)
        whole = send(port, "/v1/chat/completions", {**CHAT, "stream": False, "max_completion_tokens": 450})
        deadline = time.monotonic() + MINUTE
        while get_metric(port, "vllm:num_requests_running") < 4:  # those of the engine alone are not counted
            assert time.monotonic() < deadline, "the whole reply does not run"
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        if second_signal:
            wait_for_draining(port)
            process.send_signal(signal.SIGTERM)
        for path, reply in replies:
            error = end_of(path, reply)
            assert (error["type"], error["code"]) == ("server_error", "unavailable"), path
            assert error["message"] == "the server stopped before this answer was complete"
        reply = whole.getresponse()
        assert (reply.status, json.loads(reply.read())["error"]["code"]) == (503, "unavailable")
        check_exit(process)
        assert time.monotonic() - start < MINUTE


def test_drain_time_is_as_long_as_an_answer_may_take() -> None:
    assert Limits().drain_seconds >= Limits().request_seconds
    assert inspect.signature(serve).parameters["drain_seconds"].default == Limits().drain_seconds


def test_cancelled_reply_raises_only_while_the_server_runs() -> None:
    """A client that does not read keeps a reply waiting, which no error can reach."""

    async def wait_forever(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def cancel(running: RunningRequests) -> bool:
        task = asyncio.ensure_future(without_cancelled(wait_forever, running)({}, None, None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    running = RunningRequests(1)
    assert asyncio.run(cancel(running))
    running.stop_all()
    assert not asyncio.run(cancel(running))
