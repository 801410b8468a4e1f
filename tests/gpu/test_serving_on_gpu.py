"""A server on a GPU has its kernels and graphs before the first request, and samples in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from ponder.engine.mailbox import TokenChunk
from ponder.models.load import load_policy
from ponder.models.replicas.model_replicas import ModelReplicas
from ponder.models.warm_up import warm_up
from ponder.serve.load_models import load_served_models
from ponder.types import Sampling
from serve.served_folders import save_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_warm_up_captures_the_graphs_of_the_usual_batch_sizes(tmp_path: Path) -> None:
    policy = load_policy(str(save_policy(tmp_path / "m")), device="cuda", dtype="bfloat16")
    asyncio.run(warm_up(policy, 8))
    batch = policy.engine._runner._sampling_batch  # type: ignore[union-attr]
    assert {key[0] for key in batch.graphs} == {1, 2, 4, 8}
    policy.engine.close()


def test_process_of_its_own_draws_what_this_one_does(tmp_path: Path) -> None:
    folder = str(save_policy(tmp_path / "m"))
    models = load_served_models((f"m={folder}",), None, "cuda", "float32", replicas=None)
    replicas, here = models.models["m"].policy, load_policy(folder, device="cuda", dtype="float32")
    assert isinstance(replicas, ModelReplicas)
    how, heard = Sampling(max_tokens=40, seed=3), list[TokenChunk]()

    async def ask() -> tuple[list[int], list[int]]:
        await replicas.start()
        try:
            (there,) = await replicas.generate_with_chunks(replicas.tokens("ab"), how, 1, heard.append)
        finally:
            await replicas.close()
        (own,) = await here.generate(here.tokens("ab"), how)
        return there.token_ids.tolist(), own.token_ids.tolist()

    there, own = asyncio.run(ask())
    assert there == own == [token for chunk in heard for token in chunk.token_ids] and len(heard) > 1
    here.engine.close()
