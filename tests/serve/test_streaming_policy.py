"""`StreamingPolicy`: what is heard of a call is what it returns, and a listener that fails ends its own call alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")

from fakes import run_async
from ponder.engine.mailbox import TokenChunk
from ponder.serve.running_requests import Control
from ponder.serve.served_models import ServedModel
from ponder.serve.streaming_policy import StreamingPolicy
from ponder.types import Completion, Sampling
from serve.live_server import small_policy, wait_until

LONG = Sampling(max_tokens=150, logit_bias=((2, -100.0),))  # the end is not sampled


def streaming_policy(seed: int, listener: Any, **more: Any) -> StreamingPolicy:
    base = small_policy()
    policy = StreamingPolicy(ServedModel("plain", base), base.encode, seed, Control())
    policy.listener, policy.thinking = listener, more.get("thinking", False)
    return policy


def test_tokens_that_are_heard_are_those_of_the_completion() -> None:
    heard: list[int] = []
    policy = streaming_policy(1, lambda chunk: heard.extend(chunk.token_ids))
    first, second = run_async(policy.generate(policy.tokens("2+2?"), LONG, 2))
    assert heard == first.token_ids.tolist() != second.token_ids.tolist()


def test_nothing_is_heard_after_the_client_ended_the_thinking() -> None:
    async def ended_early(seed: int) -> tuple[list[int], Completion]:
        heard: list[int] = []

        def listen(chunk: TokenChunk) -> None:
            heard.extend(chunk.token_ids)
            if len(heard) == 5 + seed:
                policy.control.end_thinking.set()

        policy = streaming_policy(seed, listen, thinking=True)
        (completion,) = await policy.generate(policy.tokens("2+2?"), LONG)
        await asyncio.sleep(0.05)  # the engine may be at work on tokens that nobody wants
        return heard, completion

    for seed in range(10):
        heard, completion = run_async(ended_early(seed))
        assert heard == completion.token_ids.tolist() and 5 <= len(heard) < 150


def test_listener_that_fails_ends_its_own_call_alone() -> None:
    def fail(chunk: TokenChunk) -> None:
        raise ValueError("no such character")

    async def both() -> list[Any]:
        heard: list[int] = []
        bad, good = streaming_policy(1, fail), streaming_policy(2, lambda chunk: heard.extend(chunk.token_ids))
        prefix = bad.tokens("2+2?")
        error, completions = await asyncio.gather(
            bad.generate(prefix, LONG), good.generate(prefix, LONG), return_exceptions=True
        )
        return [error, completions, heard]

    error, completions, heard = run_async(both())
    assert isinstance(error, ValueError) and "no such character" in str(error)
    assert heard == completions[0].token_ids.tolist() and len(heard) == 150
    wait_until(lambda: not small_policy().engine.busy)
