"""The list of runs, from small files alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import Interrupted, UsageError
from ponder.runs import Run
from ponder.runs.run_summary import find_runs, job_title, list_runs, read_headline, summarize_run
from ponder.tasks import Addition


@dataclass(frozen=True)
class Training:
    task: Any = Addition()
    model: str = "smollm2"
    steps: int = 4
    save_every: int = 1
    keep_checkpoints: int = 1
    algorithm: Any = None


def write_training(folder: Path, rewards: list[float], error: BaseException | None = None) -> None:
    try:
        with Run(folder, Training()) as run:
            for step, reward in enumerate(rewards):
                run.write_metrics(step, {"loss": 9.0, "reward": reward})
            if error is not None:
                raise error
    except (Interrupted, UsageError):
        pass


def test_summary_of_finished_training(tmp_path: Path) -> None:
    write_training(tmp_path / "a", [0.1, 0.75, math.nan, 0.5])
    run = summarize_run(tmp_path / "a")
    assert (run.name, run.state, run.steps, run.total_steps) == ("a", "finished", 4, 4)
    assert (run.metric, run.best, run.last) == ("reward", 0.75, 0.5)
    assert run.job == "Training · Addition · smollm2"
    assert run.num_bytes == sum(p.stat().st_size for p in (tmp_path / "a").iterdir())


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [(Interrupted("stopped after 2"), "stopped", "stopped after 2"), (UsageError("no disk"), "failed", "no disk")],
)
def test_summary_says_where_and_why_a_run_ended(tmp_path: Path, error: BaseException, state: str, message: str) -> None:
    write_training(tmp_path / "a", [0.1, 0.2], error)
    run = summarize_run(tmp_path / "a")
    assert (run.state, run.message, run.steps, run.total_steps) == (state, message, 2, 4)


def test_summary_of_a_run_that_is_being_written(tmp_path: Path) -> None:
    with Run(tmp_path / "a", Training()) as run:
        run.write_metrics(0, {"reward": 0.5})
        assert summarize_run(tmp_path / "a").state == "running"


def test_killed_run_is_stopped_and_its_torn_line_ignored(tmp_path: Path) -> None:
    write_training(tmp_path / "a", [0.1, 0.2])
    (tmp_path / "a" / "status.json").unlink()
    with open(tmp_path / "a" / "metrics.jsonl", "a") as file:
        file.write('{"step":2,"reward":7.0')
    run = summarize_run(tmp_path / "a")
    assert (run.state, run.steps, run.best) == ("stopped", 2, 0.2)


def test_resumed_steps_replace_earlier_ones(tmp_path: Path) -> None:
    with Run(tmp_path / "a", Training()) as run:
        for step in range(3):
            run.write_metrics(step, {"reward": 1.0})
        run.mark_resumed(1)
        run.write_metrics(1, {"reward": 0.25})
    assert read_headline(tmp_path / "a" / "metrics.jsonl") == ("reward", [1.0, 0.25])


def test_best_loss_is_the_smallest(tmp_path: Path) -> None:
    with Run(tmp_path / "a", Training()) as run:
        for step, loss in enumerate((3.0, 1e-05, 2.0)):
            run.write_metrics(step, {"grad_norm": 0.0, "loss": loss})
    run_summary = summarize_run(tmp_path / "a")
    assert (run_summary.metric, run_summary.best, run_summary.last) == ("loss", 1e-05, 2.0)


def test_damaged_job_is_listed_beside_the_others(tmp_path: Path) -> None:
    write_training(tmp_path / "good", [0.5])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "job.json").write_text("{")
    assert [(run.name, run.state) for run in list_runs(tmp_path)] == [("bad", "damaged"), ("good", "finished")]


def test_stages_are_listed_after_their_run(tmp_path: Path) -> None:
    for name in ("b", "b/one", "a", "deep/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "job.json").write_text("{}")
    (tmp_path / "a" / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "step-1" / "job.json").write_text("{}")
    assert [str(p.relative_to(tmp_path)) for p in find_runs(tmp_path)] == ["a", "b", "b/one", "deep/c"]


def test_title_of_stages_names_them() -> None:
    job = {"is": "ponder.pipelines.stages:Stages", "stages": [{"name": "sft"}, {"name": "rl"}]}
    assert job_title(job) == "Stages · sft, rl"
    assert job_title({"is": "m:RL", "algorithm": {"is": "m:GRPO"}, "task": {"is": "m:Addition"}}) == (
        "RL GRPO · Addition"
    )
