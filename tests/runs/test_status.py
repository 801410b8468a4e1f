"""How a run ended is kept in its status.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ponder.errors import Interrupted, RunError, UsageError
from ponder.runs import Run
from ponder.runs.run_dir import is_locked, lock_run
from ponder.runs.status import STATUS_FILE, read_status


@dataclass(frozen=True)
class Job:
    n: int = 1


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (None, "finished", ""),
        (Interrupted("stopped after 3 of 9 steps"), "stopped", "stopped after 3 of 9 steps"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt: "),
        (UsageError("no such file"), "failed", "no such file"),
        (ValueError("bad shape"), "failed", "ValueError: bad shape"),
        (ExceptionGroup("two", [ValueError("a"), Interrupted("stop")]), "stopped", "stop"),
    ],
)
def test_status_says_how_a_run_ended(tmp_path: Path, error: BaseException | None, state: str, message: str) -> None:
    try:
        with Run(tmp_path / "r", Job()) as run:
            run.result_metrics["accuracy"] = 0.5
            if error is not None:
                raise error
    except BaseException as raised:
        assert raised is error
    status = read_status(tmp_path / "r")
    assert status is not None and (status.state, status.message) == (state, message)
    assert status.metrics == {"accuracy": 0.5}


def test_status_is_gone_while_the_run_is_written_again(tmp_path: Path) -> None:
    with Run(tmp_path / "r", Job()):
        pass
    with Run(tmp_path / "r", Job()):
        assert read_status(tmp_path / "r") is None


def test_refused_job_leaves_the_status(tmp_path: Path) -> None:
    with Run(tmp_path / "r", Job(1)):
        pass
    with pytest.raises(RunError), Run(tmp_path / "r", Job(2)):
        pass
    status = read_status(tmp_path / "r")
    assert status is not None and status.state == "finished"


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"state": "odd", "message": "", "time": 1, "metrics": {}}'])
def test_damaged_status_reads_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / STATUS_FILE).write_text(text)
    assert read_status(tmp_path) is None


def test_is_locked_while_another_holds_the_run(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(RunError, match="in use"):
            lock_run(tmp_path)
    assert not is_locked(tmp_path)
