"""More steps for a finished run: N steps and then M are M steps at once, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.errors import RunError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.reason.strategies import Samples
from ponder.runs import newest_checkpoint, read_job, read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
TRAINING = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(), AdamW(lr=3e-3, warmup_steps=2),
    steps=5, problems_per_step=3, preflight=False, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip
IMITATION = FineTune(
    DigitTask(), MODEL, QUESTION_TEMPLATE, optimizer=AdamW(lr=3e-3), steps=5, batch_size=4, save_every=2,
    device="cpu", dtype="float32",
)  # fmt: skip


def weights(folder: Path) -> bytes:
    newest = newest_checkpoint(folder)
    assert newest is not None
    return (newest / "model" / "model.safetensors").read_bytes()


def without_times(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time" not in k} for row in read_metrics(folder)]


@pytest.mark.parametrize("job", [TRAINING, IMITATION], ids=["rl", "sft"])
def test_extended_run_equals_one_run_to_the_bit(tmp_path: Path, job: RL | FineTune) -> None:
    replace(job, steps=3)(tmp_path / "two")
    job(tmp_path / "two")
    job(tmp_path / "one")
    assert weights(tmp_path / "two") == weights(tmp_path / "one")
    assert without_times(tmp_path / "two") == without_times(tmp_path / "one")
    one, two = (
        [(step, trace.problem.id, [s.text for s in trace.steps]) for step, trace in read_traces(tmp_path / name)]
        for name in ("one", "two")
    )
    assert one == two
    assert read_job(tmp_path / "two")["steps"] == 5


def test_fewer_steps_than_done_are_refused(tmp_path: Path) -> None:
    replace(TRAINING, steps=3)(tmp_path / "r")
    with pytest.raises(RunError, match="has trained 3 steps, and --steps is 2"):
        replace(TRAINING, steps=2)(tmp_path / "r")
    assert read_job(tmp_path / "r")["steps"] == 3


def test_another_setting_beside_the_steps_is_refused(tmp_path: Path) -> None:
    replace(TRAINING, steps=2)(tmp_path / "r")
    with pytest.raises(RunError, match="belongs to another job"):
        replace(TRAINING, steps=3, seed=1)(tmp_path / "r")
    decaying = replace(TRAINING, steps=3, optimizer=replace(TRAINING.optimizer, decay_steps=3))
    with pytest.raises(RunError, match="decay_steps: 0 -> 3"):
        decaying(tmp_path / "r")
