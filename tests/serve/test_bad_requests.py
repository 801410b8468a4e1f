"""Over 400 hand-made bad requests: a 4xx in OpenAI's shape for each, and a server that goes on."""

from __future__ import annotations

import http.client
import json

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.bad_requests import GOOD, bad_requests
from serve.live_server import live_server


def problem_of(reply, case):
    """What is wrong with a reply; empty if nothing is."""
    if not 400 <= reply.status < 500:
        return f"status {reply.status}: {reply.body[:200]!r}"
    if case.method == "HEAD":
        return ""
    try:
        error = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"no error object: {reply.body[:200]!r}"
    shape = {"message": str, "type": str, "param": (str, type(None)), "code": (str, type(None))}
    if set(error) != set(shape) or not all(isinstance(error[name], kind) for name, kind in shape.items()):
        return f"not OpenAI's shape: {error!r:.300}"
    if not error["message"] or len(error["message"]) > 3000 or "Traceback" in error["message"]:
        return f"a message that helps nobody: {error['message'][:300]!r}"
    return ""


def test_bad_requests_get_4xx_in_openais_shape():
    cases = bad_requests()
    assert len(cases) >= 400
    problems = {}
    with live_server() as server:
        nameless = server.post("/v1/tokenize", {"prompt": "a"})
        assert nameless.json["error"]["message"] == "the request names no `model`; this server has plain, thinker"
        for case in cases:
            try:
                reply = server.send(case.method, case.path, case.body, case.headers)
            except (OSError, http.client.HTTPException) as reason:
                problems[case.name] = f"no reply: {reason!r}"
                continue
            if problem := problem_of(reply, case):
                problems[case.name] = problem
        for path, body in GOOD.items():
            reply = server.post(path, body)
            assert reply.status == 200, (path, reply.body)
        metrics = server.get("/metrics").body.decode()
    assert not problems, "\n".join(f"{name}: {problem}" for name, problem in problems.items())
    assert 'ponder:http_replies_total{status="5' not in metrics
