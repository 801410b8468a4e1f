"""A replica split over two processes that share the GPU, joined by gloo: the log-probabilities of one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import char_policy, perturb
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.types import Completion, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_two_processes_on_one_gpu_sample_as_one(tmp_path: Path) -> None:
    """In float32, as started and after new weights."""
    made = char_policy(context=256, width=128, heads=8)
    policy = PonderPolicy(perturb(made.net, 0.1).to("cuda"), made.tokenizer)
    prompts = [policy.tokens(text) for text in ("3+4=", "3+4=7 5+5=", "9")]

    async def ask(each: PonderPolicy | ReplicaPolicy) -> list[Completion]:
        how = [Sampling(max_tokens=40, seed=i) for i in range(len(prompts))]
        groups = await asyncio.gather(*(each.generate(p, s, 4) for p, s in zip(prompts, how, strict=True)))
        return [c for group in groups for c in group]

    async def gaps() -> list[float]:
        found = []
        async with ReplicaPolicy(policy, 1, tmp_path, tensor_parallel=2) as replicas:
            for version in (1, 2):
                with torch.no_grad():
                    for p in policy.net.parameters():
                        p.mul_(1.05)
                policy.version = version
                await replicas.publish(version)
                both = zip(await ask(replicas), await ask(policy), strict=True)
                for a, b in both:
                    assert a.token_ids.tolist() == b.token_ids.tolist() and a.version == version
                    found.append(float(np.abs(a.logprobs - b.logprobs).max()))
        return found

    assert max(asyncio.run(gaps())) < 1e-4
    policy.engine.close()
