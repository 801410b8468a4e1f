"""A learner whose replica is split over two processes trains on the samples of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.errors import UsageError
from ponder.models.replicas.ledger import LedgerCounts, read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE
from ponder.models.scratch_model import ScratchModel
from ponder.nets.lora import LoRA
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.distributed import DataParallelGroup
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling
from sizes import NIGHTLY

JOB = RL(
    DigitTask(), ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32), QUESTION_TEMPLATE,
    Samples(4, Sampling(max_tokens=2)), GRPO(kl=None), AdamW(lr=3e-3, warmup_steps=2), steps=4, problems_per_step=3,
    preflight=False, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)] if NIGHTLY else [None])
def test_split_replica_gives_the_samples_of_one_process(lora: LoRA | None, tmp_path: Path) -> None:
    job = replace(JOB, lora=lora)
    job(tmp_path / "plain")
    replace(job, replicas=1, tensor_parallel=2)(tmp_path / "split")
    tokens = [
        [(step, s.token_ids.tolist()) for step, trace in read_traces(tmp_path / run) for s in trace.steps]
        for run in ("plain", "split")
    ]
    assert tokens[0] == tokens[1] and {step for step, _ in tokens[1]} == {0, 1, 2, 3}
    rewards = [[row["reward"] for row in read_metrics(tmp_path / run)] for run in ("plain", "split")]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)
    counts = read_ledger(tmp_path / "split" / REPLICAS_FOLDER / LEDGER_FILE)
    assert counts == LedgerCounts(asked=12, answered=12)


def test_replicas_that_cannot_be_are_refused_before_the_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preflight of a larger model takes minutes."""

    async def never(*given: object) -> None:
        raise AssertionError("the preflight ran")

    monkeypatch.setattr("ponder.pipelines.rl.run_preflight", never)
    job = replace(JOB, preflight=True, replicas=1, tensor_parallel=3)
    with pytest.raises(UsageError, match="cannot be split evenly over 3 shards"):
        job(tmp_path / "split")
    monkeypatch.setattr("ponder.pipelines.training.open_sampler.current_group", lambda: DataParallelGroup(0, 2))
    with pytest.raises(UsageError, match="2 ranks cannot share 1 replicas: give a multiple of 2"):
        replace(job, tensor_parallel=1)(tmp_path / "uneven")
    monkeypatch.setattr("ponder.pipelines.rewards.verifier_workers.current_group", lambda: DataParallelGroup(0, 2))
    with pytest.raises(UsageError, match="2 ranks cannot share 3 verifier workers: give a multiple of 2"):
        replace(JOB, preflight=True, verifier_workers=3)(tmp_path / "workers")
