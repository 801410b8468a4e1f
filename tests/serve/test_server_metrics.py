"""`serve.server_metrics`: what is counted while events pass."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from fakes import FakePolicy, char_policy
from ponder.serve.events import Content, Finished, Reasoning, Started
from ponder.serve.generation import GenerationRequest, StrategySpec
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.serve.server_metrics import ServerMetrics
from ponder.serve.usage import SearchUsage, Usage
from ponder.types import Sampling, ids

USAGE = Usage(10, 7, 4, 3, SearchUsage(nodes=2, scorer_tokens=5))
EVENTS = (
    Started(),
    Reasoning("a", (1, 2)),
    Content("b", (3, 4)),
    Finished(("stop",), USAGE),
)


def lines(metrics):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in metrics.render().splitlines() if not line.startswith("#")}  # fmt: skip


def watch(events, request=GenerationRequest("m")):
    ticks = itertools.count()
    metrics = ServerMetrics(ServedModels([ServedModel("m", FakePolicy())]), clock=lambda: float(next(ticks)))
    metrics.started(request, "r1")
    for event in events:
        metrics.event("r1", event)
    assert lines(metrics)['vllm:num_requests_running{model_name="m"}'] == 1
    metrics.ended("r1", None)
    return lines(metrics)


def test_watch_counts_tokens_times_and_reasons():
    counted = watch(EVENTS)
    expected = {
        "vllm:prompt_tokens_total": 10, "vllm:prefix_cache_queries_total": 10, "vllm:prefix_cache_hits_total": 3,
        "vllm:generation_tokens_total": 7, "ponder:reasoning_tokens_total": 4, "ponder:scorer_tokens_total": 5,
        "ponder:search_nodes_total": 2, "vllm:num_requests_running": 0,
        "vllm:time_to_first_token_seconds_sum": 2, "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_sum": 1, "vllm:inter_token_latency_seconds_count": 2,
        "vllm:e2e_request_latency_seconds_sum": 4, "vllm:request_generation_tokens_sum": 7,
    }  # fmt: skip
    assert {name: counted[f'{name}{{model_name="m"}}'] for name in expected} == expected
    assert counted['vllm:request_success_total{model_name="m",finished_reason="stop"}'] == 1
    assert counted['ponder:requests_total{model_name="m",strategy="chain"}'] == 1
    assert 'ponder:requests_unfinished_total{model_name="m"}' not in counted


@pytest.mark.parametrize("take", [1, 3])
def test_watch_counts_requests_that_end_early(take):
    counted = watch(EVENTS[:take])
    assert counted['ponder:requests_unfinished_total{model_name="m"}'] == 1
    assert counted['vllm:num_requests_running{model_name="m"}'] == 0
    assert 'vllm:generation_tokens_total{model_name="m"}' not in counted


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (GenerationRequest("m"), "chain"),
        (GenerationRequest("m", effort="high"), "majority-vote"),
        (GenerationRequest("m:mcts"), "mcts"),
        (GenerationRequest("m", strategy=StrategySpec("beam-search")), "beam-search"),
        (GenerationRequest("m", strategy=StrategySpec("x" * 1000)), "unknown"),
    ],
)
def test_requests_are_counted_by_strategy(request_, strategy):
    assert watch(EVENTS, request_)[f'ponder:requests_total{{model_name="m",strategy="{strategy}"}}'] == 1


def test_engine_load_shows_running_sequences():
    policy = char_policy()
    metrics = ServerMetrics(ServedModels([ServedModel("m", policy)]))
    assert lines(metrics)['ponder:num_sequences_running{model_name="m"}'] == 0
    seen = []

    async def run():
        async for _ in policy.stream_tokens(ids([1, 2, 3]), Sampling(max_tokens=20, stop_token_ids=(), seed=1), 3):
            seen.append(policy.engine.load)

    asyncio.run(run())
    assert max(load.running for load in seen) == 3 and 0 < max(load.cache_use for load in seen) <= 1
    assert policy.engine.load.running == 0
    policy.engine.close()
