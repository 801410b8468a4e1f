"""Sampling while learning on one GPU: in one process, and with a sampler process that gets weights by CUDA IPC."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.sampler_copy import SamplerCopy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.pipelines.training.sampling_ahead import token_ages
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, ids

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
JOB = RL(
    DigitTask(), ScratchModel(ALPHABET, width=64, layers=2, heads=4, context=64), QUESTION_TEMPLATE,
    Samples(8, Sampling(max_tokens=24)), GRPO(kl=None), AdamW(lr=3e-3), steps=8, problems_per_step=8, preflight=False,
    save_every=4, device="cuda", dtype="float32",
)  # fmt: skip


@pytest.mark.parametrize(("staleness", "replicas"), [(1, 0), (4, 0), (0, 1), (2, 1)])
def test_runs_to_its_end_within_the_bound(staleness: int, replicas: int, tmp_path: Path) -> None:
    replace(JOB, staleness=staleness, replicas=replicas)(tmp_path / "run")
    ages = [age for step, trace in read_traces(tmp_path / "run") for age in token_ages([trace], step)]
    assert max(ages) <= staleness and (not staleness or max(ages) >= 1)
    rows = read_metrics(tmp_path / "run")
    assert len(rows) == JOB.steps
    # Sampler and learner agree where the samples are not old.
    fresh = [
        row for row in rows if not row.get("staleness/max", 0.0) and "sampling/sampling_logp_difference/mean" in row
    ]
    assert all(row["sampling/sampling_logp_difference/mean"] < 1e-3 for row in fresh)
    if replicas:
        counts = read_ledger(tmp_path / "run" / REPLICAS_FOLDER / LEDGER_FILE)
        assert counts is not None and counts.asked == counts.answered and counts.deaths == counts.open == 0


def test_copy_samples_from_the_newest_weights_beside_a_busy_learner() -> None:
    """The copy's steps run in a stream of their own: new weights come after the steps before and before those after."""
    net, tokenizer = ScratchModel(ALPHABET, width=64, layers=2, heads=4, context=64).build(torch.float32, DEVICE)
    prompts = [ids([1 + i, 2, 3, 4]) for i in range(8)]

    async def run() -> None:
        original = PonderPolicy(net, tokenizer)
        sampler = SamplerCopy(original)
        busy = torch.randn(2048, 2048, device=DEVICE) / 45
        in_flight = [asyncio.create_task(sampler.generate(p, Sampling(max_tokens=48), 4)) for p in prompts]
        for version in range(1, 6):
            for _ in range(50 if DEVICE.type == "cuda" else 1):
                busy = torch.tanh(busy @ busy)  # as a learner keeps the default stream busy
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1.05)
            original.version = version
            await sampler.publish(version)
            for prompt in prompts:
                for c in await sampler.generate(prompt, Sampling(max_tokens=16), 2):
                    assert c.version == version
                    expected = await original.token_logprobs(prompt, c.token_ids)
                    np.testing.assert_allclose(c.logprobs, expected, atol=1e-3)
        await asyncio.gather(*in_flight)
        await sampler.close()
        original.engine.close()

    asyncio.run(run())
