"""Jobs that Python calls: what they show, and what a failed start leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ponder import user_calls
from ponder.errors import PonderError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.job import python_use, slow_calls
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.rl import RL
from ponder.protocols import NoProgress, Progress
from ponder.reason.strategies import Samples
from ponder.runs import Run
from ponder.tasks import Addition
from ponder.train.optimizer import AdamW
from ponder.types import Sampling

JOB = RL(
    task=Addition(digits=1),
    model=ScratchModel(alphabet="0123456789+-=? Whatis", width=16, layers=1, heads=2, context=64),
    template="{{ messages[-1].content }}",
    strategy=Samples(n=2, sampling=Sampling(max_tokens=2)),
    optimizer=AdamW(lr=1e-2),
    steps=2,
    problems_per_step=2,
    preflight=False,
    dtype="float32",
    device="cpu",
)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(python_use, "shows_progress", lambda: True)
    yield


def test_job_shows_its_steps_on_a_terminal(terminal: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    JOB(tmp_path / "run")
    shown = capsys.readouterr()
    assert "loading the model" in shown.err and "step 1/2  reward" in shown.err and "step 2/2  reward" in shown.err
    assert shown.out == ""


def test_job_shows_nothing_to_a_file_or_with_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    JOB(tmp_path / "file")
    monkeypatch.setattr(python_use, "shows_progress", lambda: True)
    JOB(tmp_path / "silent", NoProgress())
    assert capsys.readouterr() == ("", "")


def test_job_runs_inside_a_running_event_loop(
    terminal: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def cell() -> None:
        JOB(tmp_path / "run")

    asyncio.run(cell())
    assert "step 2/2" in capsys.readouterr().err


def test_failed_start_leaves_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PonderError, match="empty"):
        Evaluate(Addition(digits=1), model=str(tmp_path / "empty"))(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Outer(BaseJob):
    """A job that calls another one."""

    steps: int = 2

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> Any:
        with Run(folder, self):
            return JOB(Path(folder) / "inner")


def test_inner_job_shows_nothing_of_its_own(terminal: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Outer()(tmp_path / "outer")
    assert "step" not in capsys.readouterr().err


@dataclass(frozen=True)
class Slow(BaseJob):
    reported: Any

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> Any:
        with user_calls.track("reward mine.py:slow", sync=True, is_user_code=True):
            assert self.reported.wait(60)


def test_slow_reward_is_named_with_its_seconds(
    terminal: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = threading.Event()
    report = slow_calls.SlowCalls.report

    def noticed(self: slow_calls.SlowCalls, calls: Any, now: float) -> None:
        report(self, calls, now + 12.0 * bool(self.blocked_since))
        if self._next_report_at:
            reported.set()

    monkeypatch.setattr(slow_calls.SlowCalls, "report", noticed)
    monkeypatch.setattr(slow_calls, "POLL_SECONDS", 0.01)
    Slow(reported)(tmp_path / "run")
    assert "! reward mine.py:slow has been running for 12 s" in capsys.readouterr().err
