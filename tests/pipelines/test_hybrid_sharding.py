"""`--fsdp --shard-size 2`: two copies over two ranks each; stopped, and resumed on other numbers of ranks.

Run as a program, this file forks the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from fork_ranks import fork_ranks, run_program
from ponder.cli import main
from ponder.errors import UsageError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.offline_rl import OfflineRL
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import checkpoints, newest_checkpoint, read_metrics
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.train.ranks import join_ranks
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
COMMON: Any = {"optimizer": AdamW(lr=3e-3), "steps": 4, "save_every": 1, "device": "cpu", "dtype": "float32"}
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(8, Sampling(max_tokens=2)), PPO(), problems_per_step=6,
    preflight=False, max_tokens_per_microbatch=20, **COMMON,
)  # fmt: skip
HYBRID = replace(JOB, fsdp=True, shard_size=2)  # with a critic and a reference


def train(job: RL | OfflineRL, folder: Path) -> Callable[[int, int], None]:
    def work(rank: int, size: int) -> None:
        with join_ranks("cpu"):
            job(folder, NoProgress())

    return work


def program(folder: Path) -> int:
    torch.set_num_threads(1)
    failed = 0
    for ranks, steps in ((4, 2), (2, 3), (1, 4)):
        failed |= fork_ranks(ranks, train(replace(HYBRID, steps=steps), folder / "hybrid"))
    return failed | fork_ranks(2, train(offline_job(folder / "hybrid"), folder / "offline"))


def offline_job(recorded: Path) -> OfflineRL:
    return OfflineRL(
        (str(recorded),), MODEL, QUESTION_TEMPLATE, GRPO(kl=None), scorer=DigitTask().verifier.name, temperature=1.0,
        groups_per_step=6, include_held_out=True, fsdp=True, **COMMON,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    run_program(__file__, folder)
    return folder


@pytest.mark.nightly
def test_recorded_groups_train_on_ranks_as_in_one_process(runs: Path, tmp_path: Path) -> None:
    offline_job(runs / "hybrid")(tmp_path / "alone", NoProgress())
    ours, theirs = (newest_checkpoint(f) for f in (runs / "offline", tmp_path / "alone"))
    assert ours is not None and theirs is not None
    assert [p.name for p in sorted(ours.glob("learner*"))] == [
        f"learner.rank-{r:05d}-of-00002.safetensors" for r in (0, 1)
    ]
    for name, w in load_file(theirs / "model" / "model.safetensors").items():
        torch.testing.assert_close(load_file(ours / "model" / "model.safetensors")[name], w, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_hybrid_run_resumes_on_other_numbers_of_ranks_and_is_exported(runs: Path, tmp_path: Path) -> None:
    JOB(tmp_path / "alone", NoProgress())
    saved = {c.name: sorted(p.name for p in c.glob("learner*")) for c in checkpoints(runs / "hybrid")}
    assert saved["step-000003"] == [f"learner.rank-{r:05d}-of-00002.safetensors" for r in range(2)]
    assert saved["step-000004"] == ["learner.safetensors"]
    newest = [newest_checkpoint(f) for f in (runs / "hybrid", tmp_path / "alone")]
    assert newest[0] is not None and newest[1] is not None
    for part in ("model", "critic"):
        ours, theirs = (load_file(c / part / "model.safetensors") for c in newest if c is not None)
        for name, w in theirs.items():
            torch.testing.assert_close(ours[name], w, rtol=1e-4, atol=1e-5)
    for mine, row in zip(read_metrics(runs / "hybrid"), read_metrics(tmp_path / "alone"), strict=True):
        for name in ("reward", "loss", "grad_norm", "critic/grad_norm"):
            assert mine[name] == pytest.approx(row[name], rel=1e-3, abs=1e-5), name
    assert main(["export", str(runs / "hybrid"), str(tmp_path / "exported")]) == 0
    exported = load_policy(str(tmp_path / "exported"), template=QUESTION_TEMPLATE, device="cpu", dtype="float32")
    kept = load_file(newest[0] / "model" / "model.safetensors")
    for name, p in exported.net.named_parameters():
        assert any(torch.equal(p, t) for n, t in kept.items() if n.endswith(name.removeprefix("model."))), name


@pytest.mark.parametrize("kind", [RL, FineTune])
def test_shard_size_is_checked(kind: type) -> None:
    job = JOB if kind is RL else FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, **COMMON)
    with pytest.raises(UsageError, match="give 2 or more"):
        replace(job, fsdp=True, shard_size=1)
    with pytest.raises(UsageError, match="give fsdp, too"):
        replace(job, shard_size=2)


if __name__ == "__main__":
    sys.exit(program(Path(sys.argv[1])))
