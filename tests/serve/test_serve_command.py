"""`ponder serve` as a real process: it starts, answers, writes traces, and stops when it is told to."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.cli import main
from ponder.runs import read_traces
from serve.live_server import small_policy

KEY = "k-123"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ponder.nets import hf

    folder = tmp_path_factory.mktemp("model") / "small"
    policy = small_policy()
    hf.save(policy.net, folder)
    policy.tokenizer.save(folder)
    return folder


def stop_during_long_chat(process: subprocess.Popen[str], port: int, **more: Any) -> list[tuple[int, Any]]:
    """Send SIGTERM once a long request runs; its reply."""
    results: list[tuple[int, Any]] = []
    long = {"max_completion_tokens": 450, "logit_bias": {"2": -100}, **more}
    thread = threading.Thread(target=lambda: results.append(chat(port, model="tiny", **long)))
    thread.start()
    while thread.is_alive() and not is_running(port):
        pass
    process.send_signal(signal.SIGTERM)
    thread.join(240)
    return results


@contextmanager
def ponder_serve(*args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command, and the port it listens on."""
    env = {**os.environ, "PONDER_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "ponder", "serve", *args, "--port", "0", "--device", "cpu", "--dtype", "float32"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/v1", said)
        assert found, said + process.stdout.read()
        yield process, int(found[1])
    finally:
        process.kill()
        process.wait(30)


def chat(port: int, **fields: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    body = {"messages": [{"role": "user", "content": "2+2?"}], "max_completion_tokens": 8, **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"authorization": f"Bearer {KEY}"})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def is_running(port: int) -> bool:
    """Whether the server works on a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    connection.request("GET", "/metrics", headers={"authorization": f"Bearer {KEY}"})
    return (
        re.search(r"^vllm:num_requests_running\{.*\} [1-9]", connection.getresponse().read().decode(), re.M) is not None
    )


def test_serve_answers_keeps_traces_and_finishes_requests_on_sigterm(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "traces"
    with ponder_serve(f"tiny={model}", "--traces", str(folder)) as (process, port):
        status, reply = chat(port, model="tiny", n=2, seed=1)
        assert status == 200, reply
        results = stop_during_long_chat(process, port)
        assert [status for status, _ in results] == [200]
        assert process.wait(240) == 0
    traces = [trace for _, trace in read_traces(folder)]
    texts = [traces[0].text(i) for i in traces[0].answers()]
    assert texts == [choice["message"]["content"] for choice in reply["choices"]]
    assert traces[0].problem.id == reply["id"] and len(traces) == 2
    assert main(["traces", str(folder)]) == 0 and reply["id"] in capsys.readouterr().out


def test_drain_seconds_of_zero_end_running_requests_at_the_first_signal(model: Path) -> None:
    with ponder_serve(f"tiny={model}", "--drain-seconds", "0") as (process, port):
        results = stop_during_long_chat(process, port, n=128)
        assert process.wait(240) == 0
    ((status, reply),) = results
    assert (status, reply["error"]["message"]) == (503, "the server stopped before this answer was complete")


@pytest.mark.parametrize(("given", "value"), [("-1", "-1.0"), ("nan", "nan"), ("-inf", "-inf")])
def test_drain_seconds_must_not_be_negative(given: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing", "--port", "0", f"--drain-seconds={given}"]) == 2
    assert f"error: --drain-seconds is {value}; it must be 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "nan"])
def test_episode_seconds_are_refused_before_models_load(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    assert main(["serve", "nothing", "--port", "0", f"--traces={traces}", f"--episode-seconds={value}"]) == 2
    assert f"error: --episode-seconds is {float(value)}; it must be above 0" in capsys.readouterr().err
    assert not traces.exists()


def test_serve_wants_a_key_beyond_the_loopback(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.delenv("PONDER_API_KEY", raising=False)
    assert main(["serve", "nothing", "--host", "0.0.0.0"]) == 2
    assert "give a key" in capsys.readouterr().err


def test_serve_without_a_model_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "MODEL" in capsys.readouterr().err


def test_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from ponder.local_http import bind

    with bind("127.0.0.1", 0) as taken:
        assert main(["serve", "nothing", "--port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "cannot listen on" in error and "give another port, or 0 for any free one" in error
    assert main(["serve", "nothing", "--port", "99999999"]) == 2
    assert "the port is 99999999; it must be from 0 (any free one) to 65535" in capsys.readouterr().err
