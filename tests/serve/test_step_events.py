"""`stream_options.include_steps`: a client that folds the steps has the tree of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.step_events import MAX_STEP_CHARS
from serve.live_server import LiveServer, live_server

SEARCHES: list[dict[str, Any]] = [
    {"strategy": {"name": "beam-search", "n": 4, "beam_width": 2, "cut": "tokens:6"}},
    {"strategy": {"name": "mcts", "simulations": 6, "cut": "tokens:6"}},
    {"strategy": {"name": "majority-vote", "n": 3}},
    {"model": "thinker"},
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def stream(server: LiveServer, **fields: Any) -> list[Any]:
    options = {"include_usage": True, "include_steps": True}
    settings = {"max_completion_tokens": 120, "seed": 3, "return_trace": True, **fields}
    return server.chat(**settings, stream=True, stream_options=options).chunks


def fold_steps(chunks: list[Any]) -> tuple[dict[int, Any], int | None]:
    """What a client has at the end."""
    steps: dict[int, Any] = {}
    chosen = None
    for chunk in chunks:
        if "search" in chunk:
            assert chunk["choices"] == []
            for step in chunk["search"]["steps"]:
                steps[step["index"]] = {**steps.get(step["index"], {}), **step}
            chosen = chunk["search"]["chosen"]
    return steps, chosen


@pytest.mark.parametrize("fields", SEARCHES, ids=["beam-search", "mcts", "majority-vote", "chain"])
def test_folded_steps_are_the_steps_of_the_trace(server: LiveServer, fields: dict[str, Any]) -> None:
    chunks = stream(server, **fields)
    steps, chosen = fold_steps(chunks)
    (trace,) = next(chunk["traces"] for chunk in chunks if "traces" in chunk)
    assert sorted(steps) == list(range(len(trace["steps"])))
    assert chosen == trace["chosen"]
    for i, stored in enumerate(trace["steps"]):
        step = steps[i]
        assert step["parent"] == stored["parent"]
        assert step["text"] == stored.get("text", "")[:MAX_STEP_CHARS]
        assert step["tokens"] == len(stored["token_ids"])
        assert step["sampled"] == ("logprobs" in stored)
        assert step["pruned"] == stored.get("pruned", "")
        assert (step["visits"], step["value"]) == (stored.get("visits", 0), stored.get("value", 0.0))
        assert step["scores"] == {name: score[0] for name, score in stored.get("scores", {}).items()}


def test_steps_come_while_the_search_runs(server: LiveServer) -> None:
    chunks = stream(server, **SEARCHES[0])
    places = [i for i, chunk in enumerate(chunks) if chunk.get("search", {}).get("steps")]
    answer = next(i for i, chunk in enumerate(chunks) if any(c["delta"].get("content") for c in chunk["choices"]))
    assert len(places) > 3 and places[2] < answer


def test_every_parent_is_sent_before_its_children(server: LiveServer) -> None:
    seen: set[int] = set()
    for chunk in stream(server, **SEARCHES[1]):
        for step in chunk.get("search", {}).get("steps", ()):
            if "parent" in step:
                assert step["parent"] is None or step["parent"] in seen
            seen.add(step["index"])


def test_stream_without_include_steps_has_no_search(server: LiveServer) -> None:
    reply = server.chat(strategy=SEARCHES[0]["strategy"], max_completion_tokens=60, seed=3, stream=True)
    assert not any("search" in chunk for chunk in reply.chunks)


def test_completions_refuse_include_steps(server: LiveServer) -> None:
    body = {"model": "plain", "prompt": "x", "stream": True, "stream_options": {"include_steps": True}}
    reply = server.post("/v1/completions", body)
    assert reply.status == 400 and "include_steps" in reply.json["error"]["message"]
