"""What counts as a result, and what is removed without one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ponder.errors import RunError
from ponder.runs import Run
from ponder.runs.cleanup import has_no_output, has_result, remove_empty_folders, remove_empty_run
from ponder.types import Problem, Step, Trace, ids, user_messages


@dataclass(frozen=True)
class Thinks:
    name: str = "a"


@dataclass(frozen=True)
class Trains:
    steps: int = 9
    save_every: int = 5
    keep_checkpoints: int = 1


def trace(failed: str = "") -> Trace:
    out = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))])
    out.failed = failed
    return out


def test_has_result_if_work_would_be_lost(tmp_path: Path) -> None:
    assert not has_result(tmp_path / "nowhere")
    with Run(tmp_path / "thinks", Thinks()) as run:
        assert not has_result(run.folder) and has_no_output(run.folder)
        (run.folder / "filter_report.json").write_text("[]")
        assert not has_result(run.folder) and has_no_output(run.folder)
        run.write_traces(0, [trace("no room"), trace("no server")])
        run.flush()
        assert not has_result(run.folder) and not has_no_output(run.folder)
        run.write_traces(0, [trace()])
        run.flush()
        assert has_result(run.folder)
    with Run(tmp_path / "told", Thinks()) as run:
        run.write_metrics(0, {"x": 1.0})
        assert has_result(run.folder)
    with Run(tmp_path / "file", Thinks()) as run:
        (run.folder / "data.jsonl").write_text("")
        assert has_result(run.folder)
    with Run(tmp_path / "trains", Trains()) as run:
        run.write_traces(0, [trace()])  # a step that diverged, or was lost before it was saved
        run.write_metrics(0, {"x": 1.0})
        for name in ("step-000000", "step-000005.new"):
            (run.folder / "checkpoints" / name).mkdir(parents=True)
        assert not has_result(run.folder) and not has_no_output(run.folder)
        (run.folder / "checkpoints" / "step-000010").mkdir()
        assert has_result(run.folder)


def test_stages_have_a_result_if_one_stage_has(tmp_path: Path) -> None:
    with Run(tmp_path, Thinks()), Run(tmp_path / "one", Thinks()) as one:
        assert not has_result(tmp_path) and has_no_output(tmp_path)
        one.write_traces(0, [trace()])
        one.flush()
        assert has_result(tmp_path) and not has_no_output(tmp_path)
    remove_empty_run(tmp_path)
    assert has_result(tmp_path)


def test_remove_empty_run_keeps_runs_with_results(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    remove_empty_run(tmp_path / "mine")
    remove_empty_run(tmp_path / "nowhere")
    assert (tmp_path / "mine" / "thesis.txt").exists() and not (tmp_path / "nowhere").exists()
    with Run(tmp_path / "run", Trains()) as run:
        run.write_metrics(0, {"x": 1.0})
        (run.folder / "checkpoints" / "step-000000").mkdir(parents=True)
        with pytest.raises(RunError, match="in use"):
            remove_empty_run(run.folder)
    remove_empty_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with Run(tmp_path / "run", Thinks()):
        (tmp_path / "run" / "notes.txt").write_text("")
    remove_empty_run(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").exists()


def test_folders_made_by_a_failure_go_and_those_from_before_stay(tmp_path: Path) -> None:
    for name, inside in (("a/b/c", ""), ("d/e", "kept.txt")):
        folder = tmp_path / name
        with pytest.raises(RunError), remove_empty_folders(folder):
            folder.mkdir(parents=True)
            if inside:
                (folder / inside).write_text("")
            raise RunError("failed")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["d", "d/e", "d/e/kept.txt"]
