"""An engine that nobody uses any more is freed at once, with its cache and its network, without the garbage collector.

A dead engine holds gigabytes: recipes load one model after another, and a fork copies the map of what is left.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fakes import char_policy, run_async
from ponder.engine import engine as engine_module
from ponder.engine.engine import Engine
from ponder.engine.kv_cache import KVCache
from ponder.engine.model_runner import ModelRunner
from ponder.models.ponder_policy import PonderPolicy
from ponder.protocols import Policy
from ponder.types import Sampling, ids
from ponder.weak_method import weak_method


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[KVCache]:
    """All caches that are made from now on and still alive."""
    made, init = weakref.WeakSet[KVCache](), KVCache.__init__

    def remember(self: KVCache, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.add(self)

    monkeypatch.setattr(KVCache, "__init__", remember)
    return made


def wait_until(done: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    assert done()


async def _sample(policy: Policy, tokens: int = 5) -> list[str]:
    return [c.text for c in await policy.generate(ids([3, 4, 5]), Sampling(max_tokens=tokens, stop=("zz",)), 3)]


@pytest.mark.parametrize("kernels", ["compiled", "torch", "plain runner"])
@pytest.mark.usefixtures("collector_off")
def test_cache_and_network_go_with_the_policy(
    kernels: str, caches: weakref.WeakSet[KVCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONDER_CPU_KERNELS", str(int(kernels == "compiled")))  # without a compiler: torch again
    if kernels == "plain runner":
        monkeypatch.setattr(engine_module, "make_runner", lambda net, slots, *_: ModelRunner(net, slots))
    policy = char_policy()
    assert isinstance(policy, PonderPolicy)
    assert len(run_async(_sample(policy))) == 3
    parts = [weakref.ref(part) for part in (policy, policy.engine, policy.net)]
    assert len(caches) == 1
    del policy
    wait_until(lambda: not caches)
    assert [part() for part in parts] == [None] * len(parts)


@pytest.mark.usefixtures("collector_off")
def test_an_engine_is_freed_when_its_last_step_is_done_and_not_before(caches: weakref.WeakSet[KVCache]) -> None:
    """Its caller is gone while a step runs; another one is due, and only that step drops the sequences."""
    policy = char_policy()
    inside, go_on = threading.Event(), threading.Event()

    def hold(tokens: int) -> None:
        inside.set()
        go_on.wait(60)

    policy.on_tokens = hold

    async def give_up(policy: Policy) -> None:
        call = asyncio.ensure_future(_sample(policy, 50))
        await asyncio.to_thread(inside.wait, 60)
        call.cancel()
        await asyncio.wait([call])

    run_async(give_up(policy))
    engine = weakref.ref(policy.engine)  # type: ignore[attr-defined]
    del policy, hold
    assert engine() is not None and len(caches) == 1
    go_on.set()
    wait_until(lambda: not caches)
    assert engine() is None


@pytest.mark.usefixtures("collector_off")
def test_the_thread_of_a_freed_engine_ends(caches: weakref.WeakSet[KVCache]) -> None:
    """Also with a call in its inbox that was cancelled before any step saw it."""
    policy = char_policy()
    run_async(_sample(policy))
    mailbox, pause = policy.engine.mailbox, policy.engine.paused()  # type: ignore[attr-defined]
    pause.__enter__()

    async def give_up(policy: Policy) -> None:
        call = asyncio.ensure_future(_sample(policy))
        while not mailbox.has_requests:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    run_async(give_up(policy))
    assert mailbox.has_requests
    del policy
    assert not caches
    pause.__exit__(None, None, None)
    wait_until(lambda: mailbox._thread is None)


def test_an_engine_whose_policy_is_gone_still_sees_new_weights() -> None:
    policy = char_policy()
    assert isinstance(policy, PonderPolicy)
    engine, net = policy.engine, policy.net
    run_async(_sample(policy))
    prompt = ids([3, 4, 5, 6])
    del policy
    gc.collect()
    run_async(engine.read_hidden_states(prompt))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    assert torch.equal(
        run_async(engine.read_hidden_states(prompt, 3)), run_async(Engine(net).read_hidden_states(prompt, 3))
    )


def test_weak_method() -> None:
    class Counter:
        def __init__(self) -> None:
            self.sum = 0

        def add(self, number: int) -> int:
            self.sum += number
            return self.sum

    counter = Counter()
    call = weak_method(counter.add, lambda: -1)
    assert (call(2), call(3), counter.sum) == (2, 5, 5)
    del counter
    assert call(4) == -1
