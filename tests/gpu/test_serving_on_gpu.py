"""A server on a GPU has its kernels and graphs before the first request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from ponder.models.ponder_policy import PonderPolicy
from ponder.serve.load_models import load_served_models
from ponder.serve.warm_up import warm_up
from serve.served_folders import save_policy

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_warm_up_captures_the_graphs_of_the_usual_batch_sizes(tmp_path: Path) -> None:
    models = load_served_models((f"m={save_policy(tmp_path / 'm')}",), None, "cuda", "bfloat16")
    asyncio.run(warm_up(models, max_concurrent=8))
    (policy,) = (model.base for model in models.models.values())
    assert isinstance(policy, PonderPolicy)
    batch = policy.engine._runner._sampling_batch  # type: ignore[union-attr]
    assert {key[0] for key in batch.graphs} == {1, 2, 4, 8}
    policy.engine.close()
