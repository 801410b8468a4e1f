"""Before the first request on a GPU: kernels are compiled, and the graphs of the usual batch sizes captured. Otherwise
the first clients would wait for that."""

from __future__ import annotations

import asyncio

from ponder.models.ponder_policy import PonderPolicy
from ponder.types import Sampling, user_messages

_MAX_SEQUENCES = 256


async def warm_up(policy: PonderPolicy, max_sequences: int) -> None:
    """Sample with each batch size up to `max_sequences`; on a CPU there is nothing to prepare."""
    if policy.net.device.type != "cuda":
        return
    await _ask(policy, 1)
    await asyncio.to_thread(policy.engine.wait_for_kernels)
    for size in policy.engine.batch_sizes:
        if size <= min(_MAX_SEQUENCES, max_sequences):
            await _ask(policy, size)


async def _ask(policy: PonderPolicy, count: int) -> None:
    """So many short requests at once, each with its own prompt."""
    prompts = [policy.encode(user_messages(f"{count} {i}")) for i in range(count)]
    how = Sampling(max_tokens=2, seed=0)
    await asyncio.gather(*(policy.generate(prompt, how) for prompt in prompts))
