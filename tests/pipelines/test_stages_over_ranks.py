"""Stages in two ranks are those of one process: both train, and rank 0 alone does what does not train.

Run as a program, this file imports once and forks the ranks of every scenario.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from fork_ranks import fork_ranks, run_program
from ponder import rank_env
from ponder.errors import Interrupted, PonderError, RankLost, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.job.one_process import require_one_process
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import NoProgress
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.distributed import SINGLE_PROCESS, current_group
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, Trace

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
SAMPLES = Samples(4, Sampling(max_tokens=2))
COMMON: Any = {
    "optimizer": AdamW(lr=3e-3, warmup_steps=1), "steps": 2, "save_every": 2, "device": "cpu", "dtype": "float32",
}  # fmt: skip


@dataclass(frozen=True)
class OnRankZeroAlone(Samples):
    """Fails in a process that takes itself for one of several."""

    async def __call__(self, trace: Trace, policy: Any, scorer: Any = None) -> None:
        assert rank_env.world_size() == 1 and current_group() == SINGLE_PROCESS
        await super().__call__(trace, policy, scorer)


@dataclass(frozen=True)
class Ends(Samples):
    """Ends its stage."""

    stops: bool = False

    async def __call__(self, trace: Trace, policy: Any, scorer: Any = None) -> None:
        raise Interrupted("stopped") if self.stops else UsageError("out of ink")


def evaluation(model: str, strategy: Samples | None = None) -> Evaluate:
    chosen = strategy or OnRankZeroAlone(4, Sampling(max_tokens=2))
    return Evaluate(DigitTask(), model, None, chosen, limit=4, device="cpu", dtype="float32")


STAGES = Stages((
    Stage("sft", FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, batch_size=6, **{**COMMON, "steps": 30})),
    Stage("sft-accuracy", evaluation("stage:sft")),
    Stage("rl", RL(
        DigitTask(), "stage:sft", None, SAMPLES, GRPO(kl=None), problems_per_step=4, preflight=False, **COMMON,
    )),
    Stage("rl-accuracy", evaluation("stage:rl")),
))  # fmt: skip


def ending(stops: bool) -> Stages:
    strategy = Ends(4, Sampling(max_tokens=2), stops=stops)
    return Stages((*STAGES.stages[:1], Stage("ends", evaluation("stage:sft", strategy)), *STAGES.stages[2:]))


def run_stages(stages: Stages, folder: Path) -> Callable[[int, int], None]:
    """What every rank ended with stands in a file beside the run."""

    def work(rank: int, size: int) -> None:
        try:
            said = str(sorted(stages(folder, NoProgress())))
        except (PonderError, Interrupted) as error:
            said = f"{type(error).__name__}: {error}"
        (folder.parent / f"{folder.name}-{rank}.txt").write_text(said)

    return work


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    failed = fork_ranks(2, run_stages(STAGES, folder / "stages"))
    failed |= fork_ranks(2, run_stages(STAGES, folder / "stages"))  # finds all done but the evaluations
    failed |= fork_ranks(2, run_stages(ending(stops=False), folder / "failed"))
    failed |= fork_ranks(2, run_stages(ending(stops=True), folder / "stopped"))
    return failed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    run_program(__file__, folder)
    return folder


def test_two_ranks_run_the_stages_of_one_process(runs: Path, tmp_path: Path) -> None:
    STAGES(tmp_path / "alone", NoProgress())
    for name in ("sft", "rl"):
        ours, theirs = (read_metrics(folder / name) for folder in (runs / "stages", tmp_path / "alone"))
        assert len(ours) == len(theirs) and any(row["grad_norm"] for row in theirs)
        for mine, row in zip(ours, theirs, strict=True):
            assert mine["loss"] == pytest.approx(row["loss"], rel=1e-3, abs=1e-5)
            assert mine["grad_norm"] == pytest.approx(row["grad_norm"], rel=1e-3, abs=1e-6)
    for name in ("sft-accuracy", "rl-accuracy"):
        mine, row = (
            sorted((t.problem.id, [s.text for s in t.steps]) for _, t in read_traces(folder / name) if t.problem)
            for folder in (runs / "stages", tmp_path / "alone")
        )
        assert mine == row and len(mine) == 4
    every = str(sorted(stage.name for stage in STAGES.stages))
    assert [(runs / f"stages-{rank}.txt").read_text() for rank in range(2)] == [every] * 2


def test_error_of_a_stage_of_rank_0_ends_all(runs: Path) -> None:
    assert "stage 'ends'" in (runs / "failed-0.txt").read_text() and "out of ink" in (runs / "failed-0.txt").read_text()
    assert (runs / "failed-1.txt").read_text().startswith(RankLost.__name__)


def test_stop_of_rank_0_stops_all(runs: Path) -> None:
    for rank in range(2):
        assert (runs / f"stopped-{rank}.txt").read_text().startswith(Interrupted.__name__)


def test_stages_without_training_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    require_one_process(STAGES)
    with pytest.raises(UsageError, match="runs in one process"):
        require_one_process(Stages((Stage("accuracy", evaluation("x")),)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
