"""Log-probabilities and token statistics of answers that a strategy chose, of a model that thinks and of one that does
not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.live_server import LiveServer, live_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.mark.parametrize("model", ["plain", "thinker"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reasoning_effort": "medium"},
        {"strategy": "best-of-n"},
        {"strategy": {"name": "beam-search", "cut": "tokens:4"}},
    ],
    ids=["chain", "vote", "best-of-n", "beam-search"],
)
def test_every_token_of_an_answer_has_top_logprobs(server: LiveServer, model: str, fields: dict[str, Any]) -> None:
    reply = server.chat(
        model=model, max_completion_tokens=120, seed=3, logprobs=True, top_logprobs=2, return_trace=True, **fields
    ).json
    (choice,), (trace,) = reply["choices"], reply["traces"]
    entries = choice["logprobs"]["content"]
    path = [trace["steps"][trace["chosen"]]]
    while path[0]["parent"]:
        path.insert(0, trace["steps"][path[0]["parent"]])
    tokens = [token for step in path for token in step["token_ids"]]
    logprobs = [x for step in path for x in step.get("logprobs") or [0.0] * len(step["token_ids"])]
    assert 0 < len(entries) <= len(tokens)
    for entry, logprob in zip(reversed(entries), reversed(logprobs), strict=False):
        first, second = entry["top_logprobs"]
        assert entry["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert first["logprob"] >= second["logprob"] and first["logprob"] >= entry["logprob"] - 1e-4
        if entry["token"] == first["token"]:
            assert first["logprob"] == pytest.approx(entry["logprob"], abs=1e-4)


@pytest.mark.parametrize("model", ["plain", "thinker"])
@pytest.mark.parametrize("weight", ["likelihood", "entropy", "gini"])
def test_vote_can_be_weighted_by_token_statistics(server: LiveServer, model: str, weight: str) -> None:
    strategy = {"name": "majority-vote", "n": 4, "weight": weight}
    reply = server.chat(model=model, max_completion_tokens=200, seed=3, strategy=strategy, return_trace=True).json
    (trace,) = reply["traces"]
    answers = [step for step in trace["steps"] if step.get("last")]
    assert len(answers) == 4 and trace["steps"][trace["chosen"]] in answers  # the vote decided, not the reserve
    if weight != "likelihood":
        assert all(len(step["notes"][weight]) == len(step["token_ids"]) for step in answers)
