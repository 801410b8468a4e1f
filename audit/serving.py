"""`ponder serve` over a small random model, at the counts that we hold it to: bounds on tokens over all strategies,
clients that leave, requests made from the OpenAPI document, hand-made bad ones, and streams against whole replies. The
requests are those of tests/serve."""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from audit.check_result import CheckResult

BUDGETS, STREAMS, DISCONNECTS, FUZZED = 10_000, 1_000, 1_000, 20_000
FREED_SECONDS = 0.1  # within which a client that leaves should have freed its rows
TESTS = str(Path(__file__).resolve().parents[1] / "tests")


def check() -> Iterator[CheckResult]:
    if TESTS not in sys.path:
        sys.path.append(TESTS)
    from serve.live_server import live_server

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of searches that have no step to cut
        with live_server() as server:
            yield from _check_budgets(server)
            yield from _check_streams(server)
            yield from _check_disconnects(server)
            yield from _check_bad_requests(server)
        yield from _check_fuzzed()


def _check_budgets(server: Any) -> Iterator[CheckResult]:
    """Every request within its bound, every token billed, and no answer that the bound left empty."""
    from serve.live_server import small_policy
    from serve.random_requests import random_request
    from serve.test_budget import check_budget

    draw, sampled = random.Random(4), []  # type: ignore[var-annotated]
    small_policy().on_tokens = sampled.append
    kinds: Counter[str] = Counter()

    def ask() -> None:
        body = random_request(draw)
        strategy = body.get("strategy")
        name = strategy["name"] if isinstance(strategy, dict) else strategy
        kinds[name or f"effort {body.get('reasoning_effort')}"] += 1
        check_budget(server, body, sampled)

    try:
        held, first = _count(BUDGETS, ask, "budgets")
    finally:
        small_policy().on_tokens = lambda tokens: None
    least = min(kinds.values())
    detail = f"{held:,} of {BUDGETS:,}, over {len(kinds)} strategies and efforts, each at least {least} times{first}"
    yield CheckResult("tokens within the bound, all billed, no empty answer", held == BUDGETS, detail)


def _check_streams(server: Any) -> Iterator[CheckResult]:
    from serve.random_requests import random_request
    from serve.test_streaming import check_equal

    draw = random.Random(2)
    equal, first = _count(STREAMS, lambda: check_equal(server, random_request(draw)), "streams")
    yield CheckResult("streamed replies equal whole ones", equal == STREAMS, f"{equal:,} of {STREAMS:,}{first}")


def _check_disconnects(server: Any) -> Iterator[CheckResult]:
    """From the moment a client closes its connection until nothing of its request runs any more."""
    from serve.live_server import small_policy
    from serve.test_disconnect_and_control import leave_while_sampling

    draw, seconds = random.Random(6), []  # type: ignore[var-annotated]

    def leave() -> None:
        seconds.append(leave_while_sampling(server, draw))

    try:
        freed, first = _count(DISCONNECTS, leave, "disconnects")
    finally:
        small_policy().on_tokens = lambda tokens: None
    soon = sum(took <= FREED_SECONDS for took in seconds)
    ranked = sorted(1000 * took for took in seconds)
    p99 = ranked[math.ceil(0.99 * len(ranked)) - 1]
    detail = (
        f"{freed:,} of {DISCONNECTS:,}, {soon:,} of them within {1000 * FREED_SECONDS:.0f} ms; median"
        f" {statistics.median(ranked):.1f} ms, 99 % {p99:.1f} ms, longest {ranked[-1]:.1f} ms{first}"
    )
    yield CheckResult("clients that leave free their rows", freed == DISCONNECTS, detail)


def _check_bad_requests(server: Any) -> Iterator[CheckResult]:
    from serve.bad_requests import bad_requests
    from serve.test_bad_requests import problem_of

    problems = []
    for case in (cases := bad_requests()):
        reply = server.send(case.method, case.path, case.body, case.headers)
        if problem := problem_of(reply, case):
            problems.append(f"{case.name}: {problem}")
    detail = f"{len(cases) - len(problems)} of {len(cases)} got a 4xx in OpenAI's shape{_first(problems)}"
    yield CheckResult("hand-made bad requests", not problems, detail)


def _check_fuzzed() -> Iterator[CheckResult]:
    name = "requests made from the OpenAPI document"
    if importlib.util.find_spec("schemathesis") is None:
        yield CheckResult(name, None, "schemathesis is not installed: pip install -e '.[serve-dev]'")
        return
    count = max(1, (os.cpu_count() or 1) // 2)  # each with a server of its own, and about one core for both
    statuses: Counter[str] = Counter()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as processes:
        for part in processes.map(_fuzz, [math.ceil(1.3 * FUZZED / count)] * count, range(0, 1000 * count, 1000)):
            statuses += part
    asked = sum(statuses.values())
    by_status = json.dumps(dict(sorted(statuses.items())))
    yield CheckResult(name, asked >= FUZZED, f"{asked:,} without a 5xx, over {count} servers: {by_status}")


def _fuzz(requests: int, seed: int) -> Counter[str]:
    """How often each kind of request got each status. Raises at the first 5xx, and where the server no longer serves
    afterwards."""
    sys.path.append(TESTS)
    from serve.live_server import live_server
    from serve.test_schemathesis import LIMITS, fuzz

    with live_server(limits=LIMITS) as server:
        statuses = fuzz(server, requests, seed)
        assert server.chat(max_tokens=2).status == 200
    return statuses


def _count(times: int, ask: Callable[[], None], what: str) -> tuple[int, str]:
    """How often it went well, and what went wrong first."""
    problems: list[str] = []
    start = time.monotonic()
    for i in range(times):
        try:
            ask()
        except AssertionError as why:
            problems.append(str(why))
        if (i + 1) % 500 == 0:
            print(f"    {what}: {i + 1:,} in {time.monotonic() - start:.0f} s, {len(problems)} wrong", flush=True)
    return times - len(problems), _first(problems)


def _first(problems: list[str]) -> str:
    return f"; the first problem: {problems[0][:300]}" if problems else ""
