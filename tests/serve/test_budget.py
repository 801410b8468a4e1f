"""Bounds on tokens hold over all strategies, every token is billed, and the bound never leaves an answer empty."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.reason.effort import EFFORTS
from serve.live_server import LiveServer, live_server, small_policy
from serve.random_requests import NAMES, random_request


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture
def sampled() -> Iterator[list[int]]:
    """The numbers of tokens that the engine samples, as the engine itself counts them."""
    counts: list[int] = []
    policy = small_policy()
    policy.on_tokens = counts.append
    yield counts
    policy.on_tokens = lambda tokens: None


def check_budget(server: LiveServer, body: dict[str, Any], sampled: list[int]) -> None:
    sampled.clear()
    reply = server.post("/v1/chat/completions", {**body, "return_trace": True})
    assert reply.status == 200, (body, reply.body)
    usage, total = reply.json["usage"], sum(sampled)
    assert total <= body["max_completion_tokens"] * body.get("n", 1), (body, total)
    assert usage["completion_tokens"] == total, (body, usage, total)
    assert usage["completion_tokens_details"]["reasoning_tokens"] <= total
    assert usage["total_tokens"] == usage["prompt_tokens"] + total
    for choice, trace in zip(reply.json["choices"], reply.json["traces"], strict=True):
        if not choice["message"]["content"]:  # the model's or the client's own end, never the budget's
            step = trace["steps"][trace["chosen"]]
            own_end = step.get("stop") == "eos" and "budget_exhausted" not in trace
            text = ""
            while step["parent"] is not None:
                text, step = step.get("text", "") + text, trace["steps"][step["parent"]]
            stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop", [])
            assert choice["finish_reason"] == "stop", (body, choice)
            assert own_end or any(stop in text for stop in stops), (body, choice)


def test_budget_holds_and_no_answer_is_empty_in_60_random_requests(server: LiveServer, sampled: list[int]) -> None:
    draw = random.Random(3)
    for _ in range(60):
        check_budget(server, random_request(draw), sampled)


@pytest.mark.nightly
def test_budget_holds_and_no_answer_is_empty_in_10000_random_requests(server: LiveServer, sampled: list[int]) -> None:
    draw = random.Random(4)
    for _ in range(10_000):
        check_budget(server, random_request(draw), sampled)


def test_search_path_that_a_bound_ends_at_the_think_marker_is_continued(server: LiveServer, sampled: list[int]) -> None:
    body = {"model": "thinker", "messages": [{"role": "user", "content": "a"}], "seed": 783889369206,
            "max_completion_tokens": 8, "strategy": "x1", "temperature": 0.3}  # fmt: skip
    check_budget(server, body, sampled)


def test_search_answer_that_begins_with_a_stop_string_says_stop(server: LiveServer, sampled: list[int]) -> None:
    body = {"model": "plain", "messages": [{"role": "user", "content": "a"}], "seed": 96451001958,
            "max_completion_tokens": 24, "strategy": "rstar-style", "stop": ["a", "b"]}  # fmt: skip
    check_budget(server, body, sampled)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_answers_within_a_tiny_budget(server: LiveServer, sampled: list[int], name: str) -> None:
    for model in ("plain", "thinker"):
        for tokens in (1, 7):
            body = {"model": model, "messages": [{"role": "user", "content": "7+8?"}], "seed": tokens}
            check_budget(server, {**body, "strategy": name, "max_completion_tokens": tokens}, sampled)


@pytest.mark.parametrize("effort", [e for e in EFFORTS if EFFORTS[e].answers == 1])
def test_effort_bounds_tokens_where_the_request_does_not(server: LiveServer, sampled: list[int], effort: str) -> None:
    sampled.clear()
    reply = server.chat(model="thinker", reasoning_effort=effort, seed=5, logit_bias={"2": -100})
    assert reply.status == 200, reply.body
    bound = EFFORTS[effort].budget.tokens
    assert bound is not None and sum(sampled) == reply.json["usage"]["completion_tokens"] <= bound


def test_effort_none_does_not_think(server: LiveServer) -> None:
    message = server.chat(model="thinker", reasoning_effort="none", seed=5).json["choices"][0]["message"]
    assert message["content"] and "reasoning_content" not in message


def test_medium_effort_votes_over_eight_answers(server: LiveServer) -> None:
    usage = server.chat(reasoning_effort="medium", max_completion_tokens=80, seed=5).json["usage"]
    assert usage["search"]["answers"] == EFFORTS["medium"].answers


def test_vote_with_temperature_0_samples_one_chain(server: LiveServer) -> None:
    usage = server.chat(reasoning_effort="high", temperature=0, max_completion_tokens=8).json["usage"]
    assert usage["search"]["nodes"] == 1 and usage["completion_tokens"] <= 8


def test_thinking_token_budget_bounds_the_thinking(server: LiveServer) -> None:
    for budget in (0, 1, 5):
        reply = server.chat(model="thinker", thinking_token_budget=budget, max_completion_tokens=40, seed=9,
                            return_trace=True).json  # fmt: skip
        (trace,) = reply["traces"]
        sampled_steps = [step for step in trace["steps"] if "logprobs" in step]
        thought = 0 if len(sampled_steps) == 1 else len(sampled_steps[0]["token_ids"])
        assert thought <= budget and reply["choices"][0]["message"]["content"]
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
