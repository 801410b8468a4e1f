"""`eval_every`: held-out accuracy while a model trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.errors import Interrupted, RunError, UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.training.held_out_accuracy import ACCURACY, START_ACCURACY
from ponder.reason.strategies import Chain
from ponder.runs import checkpoints, manifest, read_metrics
from ponder.train.optimizer import AdamW
from ponder.types import Sampling

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(answer="7"), MODEL, QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), group_size=8,
    sampling=Sampling(max_tokens=2), steps=5, problems_per_step=4, eval_every=2, eval_limit=7, eval_samples=3,
    preflight=False, save_every=1, keep_checkpoints=9, device="cpu", dtype="float32",
)  # fmt: skip


def without_times(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time" not in k} for row in read_metrics(folder)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    JOB(folder)
    return folder


def test_rows_of_evaluated_steps_have_the_accuracy(trained: Path) -> None:
    rows = read_metrics(trained)
    assert [ACCURACY in row for row in rows] == [False, True, False, True, True]  # every second, and the last
    assert [START_ACCURACY in row for row in rows] == [True, False, False, False, False]
    for row in rows:
        if ACCURACY in row:
            assert row["eval/pass@1"] * 21 == pytest.approx(round(row["eval/pass@1"] * 21))
            assert row["eval/cons@3"] * 7 == pytest.approx(round(row["eval/cons@3"] * 7))
            assert row["time/eval"] > 0


def test_accuracy_is_that_of_an_evaluation_of_the_checkpoint(trained: Path, tmp_path: Path) -> None:
    rows = read_metrics(trained)
    for step, folder in ((2, checkpoints(trained)[1]), (5, checkpoints(trained)[4])):
        greedy = Chain(replace(JOB.sampling, temperature=0.0))
        job = Evaluate(JOB.task, str(folder / "model"), JOB.template, greedy, limit=7, device="cpu", dtype="float32")
        assert job(tmp_path / str(step)).accuracy.mean == pytest.approx(rows[step - 1][ACCURACY])


def test_best_checkpoint_is_chosen_by_held_out_accuracy(trained: Path) -> None:
    scores = [manifest.read(folder)["score"] for folder in checkpoints(trained)]
    assert scores == [row.get(ACCURACY) for row in read_metrics(trained)]


def test_resumed_run_has_the_same_rows(trained: Path, tmp_path: Path) -> None:
    class Stop:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def step(self, done: int, *_: Any) -> None:
            if done == 3:
                raise Interrupted("now")

    with pytest.raises(Interrupted):
        JOB(tmp_path / "run", Stop())
    JOB(tmp_path / "run")
    assert without_times(tmp_path / "run") == without_times(trained)


def test_training_is_the_same_without_evaluations(trained: Path, tmp_path: Path) -> None:
    replace(JOB, eval_every=0, eval_limit=128, eval_samples=0)(tmp_path / "run")
    rewards = [[row["reward"] for row in read_metrics(folder)] for folder in (trained, tmp_path / "run")]
    assert rewards[0] == rewards[1]


def test_changed_held_out_problems_are_refused(tmp_path: Path) -> None:
    job = replace(JOB, steps=1)
    job(tmp_path / "run")
    original = DigitTask.test
    try:
        DigitTask.test = property(lambda self: self.train)  # type: ignore[assignment, method-assign]
        with pytest.raises(RunError, match="held-out problems"):
            replace(JOB, steps=1)(tmp_path / "run")
    finally:
        DigitTask.test = original  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [{"eval_every": -1}, {"eval_limit": 0}, {"eval_samples": -1}])
def test_bad_settings_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        replace(JOB, **change)  # type: ignore[arg-type]
