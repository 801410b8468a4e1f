"""What counts as a result, and what is removed without one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ponder.errors import RunError
from ponder.pipelines.begun import bare, begun, clear
from ponder.runs import Run
from ponder.types import Problem, Step, Trace, ids, user


@dataclass(frozen=True)
class Thinks:
    name: str = "a"


@dataclass(frozen=True)
class Trains:
    steps: int = 9
    save_every: int = 5
    keep: int = 1


def trace(failed: str = "") -> Trace:
    out = Trace(Problem("p", user("?")), [Step(None, "?", ids([1]))])
    out.failed = failed
    return out


def test_a_result_is_what_would_be_lost(tmp_path: Path) -> None:
    assert not begun(tmp_path / "nowhere")
    with Run(tmp_path / "thinks", Thinks()) as run:
        assert not begun(run.folder) and bare(run.folder)
        (run.folder / "funnel.json").write_text("[]")
        assert not begun(run.folder) and bare(run.folder)
        run.traces(0, [trace("no room"), trace("no server")])
        assert not begun(run.folder) and not bare(run.folder)
        run.traces(0, [trace()])
        assert begun(run.folder)
    with Run(tmp_path / "told", Thinks()) as run:
        run.metrics(0, {"x": 1.0})
        assert begun(run.folder)
    with Run(tmp_path / "file", Thinks()) as run:
        (run.folder / "data.jsonl").write_text("")
        assert begun(run.folder)
    with Run(tmp_path / "trains", Trains()) as run:
        run.traces(0, [trace()])  # a step that diverged, or was lost before it was saved
        run.metrics(0, {"x": 1.0})
        for name in ("step-000000", "step-000005.new"):
            (run.folder / "checkpoints" / name).mkdir(parents=True)
        assert not begun(run.folder) and not bare(run.folder)
        (run.folder / "checkpoints" / "step-000010").mkdir()
        assert begun(run.folder)


def test_stages_have_begun_when_one_has(tmp_path: Path) -> None:
    with Run(tmp_path, Thinks()), Run(tmp_path / "one", Thinks()) as one:
        assert not begun(tmp_path) and bare(tmp_path)
        one.traces(0, [trace()])
        assert begun(tmp_path) and not bare(tmp_path)
    clear(tmp_path)
    assert begun(tmp_path)


def test_only_a_run_without_a_result_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    clear(tmp_path / "mine")
    clear(tmp_path / "nowhere")
    assert (tmp_path / "mine" / "thesis.txt").exists() and not (tmp_path / "nowhere").exists()
    with Run(tmp_path / "run", Trains()) as run:
        run.metrics(0, {"x": 1.0})
        (run.folder / "checkpoints" / "step-000000").mkdir(parents=True)
        with pytest.raises(RunError, match="in use"):
            clear(run.folder)
    clear(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with Run(tmp_path / "run", Thinks()):
        (tmp_path / "run" / "notes.txt").write_text("")
    clear(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").exists()
