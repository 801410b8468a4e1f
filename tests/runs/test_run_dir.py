"""Run directories: readable while written, one writer, nothing overwritten, nothing lost to a torn line."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ponder import full_disk, signals
from ponder.errors import RunError
from ponder.runs import (
    Run,
    append_file,
    checkpoints,
    environment,
    newest_checkpoint,
    read_job,
    read_metrics,
    read_traces,
    run_dir,
)
from ponder.runs.block_file import BlockReader
from ponder.runs.records import RecordWriter
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Step, Trace, ids, user_messages


@dataclass(frozen=True)
class Job:
    steps: int = 3
    name: str = "a"
    limit: int | None = None


def trace(id: str) -> Trace:
    return Trace(Problem(id, user_messages("é→?")), [Step(None, "é→?", ids([1, 2]))])


def add_lines(folder: Path, *records: dict[str, Any]) -> None:
    """Traces and marks as earlier versions wrote them."""
    writer = RecordWriter(folder / "traces.jsonl")
    for record in records:
        writer.append(record)
    writer.close()


def steps(folder: Path) -> list[int]:
    return [int(m["step"]) for m in read_metrics(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_records_are_readable_during_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with Run(folder, Job()) as run:
        assert read_job(folder) == run.job and read_metrics(folder) == [] and list(read_traces(folder)) == []
        for i in range(3):
            run.write_metrics(i, {"reward": i / 3})
            run.write_traces(i, [trace(f"{i}a"), trace(f"{i}b")])
            run.flush()
            assert steps(folder) == list(range(i + 1)), "at once, not when the run closes"
            assert len(list(read_traces(folder))) == 2 * (i + 1)
    assert [m["reward"] for m in read_metrics(folder)] == [0, 1 / 3, 2 / 3]
    assert [(s, t.problem.id) for s, t in read_traces(folder)] == [(i, f"{i}{x}") for i in range(3) for x in "ab"]
    assert (folder / "environment.json").exists()


@pytest.mark.parametrize(
    "torn", ['{"step": 3, "rew', "{", '{"step": 3}x', "\ufffd", "[1]", "null", '{"step": 3, "t": "\\u']
)
def test_unfinished_last_line_is_ignored_and_repaired(torn: str, tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        run.write_metrics(0, {"x": 1.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(torn)
    assert steps(tmp_path) == [0]
    with Run(tmp_path, Job()) as run:
        run.write_metrics(1, {"x": 2.0})
        run.write_metrics(2, {"x": 3.0})
    assert steps(tmp_path) == [0, 1, 2], "the next record stands on a line of its own"


def test_line_cut_inside_a_character_is_ignored(tmp_path: Path) -> None:
    add_lines(tmp_path, {"step": 0, **trace_to_json(trace("a"))})
    with open(tmp_path / "traces.jsonl", "ab") as file:
        file.write('{"step": 1, "problem": "é'.encode()[:-1])
    assert [t.problem.question for _, t in read_traces(tmp_path)] == ["é→?"]


def test_torn_block_is_ignored_and_removed(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        run.write_traces(0, [trace("a")])
    path = tmp_path / "traces.bin"
    one = path.read_bytes()
    for cut in (1, 60, len(one) // 2, len(one) - 1):
        path.write_bytes(one + one[:cut])
        assert [t.problem.id for _, t in read_traces(tmp_path)] == ["a"]
        with Run(tmp_path, Job()) as run:
            run.write_traces(1, [trace("b")])
        assert [t.problem.id for _, t in read_traces(tmp_path)] == ["a", "b"] and path.read_bytes()[: len(one)] == one


def test_complete_line_without_line_break_counts(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        run.write_metrics(0, {})
        run.write_metrics(1, {})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert steps(tmp_path) == [0, 1]
    with Run(tmp_path, Job()) as run:
        run.write_metrics(2, {})
    assert steps(tmp_path) == [0, 1, 2]


def test_mark_resumed_drops_later_records(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        run.mark_resumed(0)
        assert not (tmp_path / "metrics.jsonl").exists(), "nothing to forget in a new run"
        for i in range(4):
            run.write_metrics(i, {"try": 1.0})
            run.write_traces(i, [trace(str(i))])
    with Run(tmp_path, Job()) as run:
        run.mark_resumed(2)
        assert steps(tmp_path) == [0, 1] and [s for s, _ in read_traces(tmp_path)] == [0, 1]
        for i in (2, 3):
            run.write_metrics(i, {"try": 2.0})
    assert [(m["step"], m["try"]) for m in read_metrics(tmp_path)] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    with Run(tmp_path, Job()) as run:
        run.mark_resumed(3)
        run.mark_resumed(1)
        run.write_metrics(1, {"try": 3.0})
    assert [(m["step"], m["try"]) for m in read_metrics(tmp_path)] == [(0, 1), (1, 3)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 10, "the file itself forgets nothing"


# one writer


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that writes there."""
    code = """
        import sys
        from runs.test_run_dir import Job
        from ponder.runs import Run
        with Run(sys.argv[1], Job()):
            print("held", flush=True)
            sys.stdin.read()
    """
    places = [str(Path(__file__).parents[1]), str(Path(run_dir.__file__).parents[2])]
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )  # fmt: skip
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    return other


def test_locked_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "runs.test_run_dir", module)
    monkeypatch.setattr(Job, "__module__", "runs.test_run_dir")  # as the other process names it
    other = holder(tmp_path)
    try:
        before = contents(tmp_path)
        with pytest.raises(RunError, match="in use by another process"):
            Run(tmp_path, Job()).__enter__()
        assert contents(tmp_path) == before
    finally:
        other.kill()  # as a crash would: the lock goes with the process
        other.communicate(timeout=120)
    with Run(tmp_path, Job()) as run:
        run.write_metrics(0, {})
    assert steps(tmp_path) == [0]


def test_lock_holds_within_one_process(tmp_path: Path) -> None:
    with Run(tmp_path, Job()):
        with pytest.raises(RunError, match="in use"):
            Run(tmp_path, Job()).__enter__()
    with Run(tmp_path, Job()):
        pass


def test_lock_is_released_on_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with Run(tmp_path, Job()):
            raise ZeroDivisionError
    with pytest.raises(RunError, match="another job"):
        Run(tmp_path, Job(steps=9)).__enter__()
    with Run(tmp_path, Job()):
        pass


# whose folder it is


def test_run_of_another_job_is_refused_unchanged(tmp_path: Path) -> None:
    with Run(tmp_path, Job()) as run:
        run.write_metrics(0, {})
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"another job \(steps: 3 -> 4; name: 'a' -> 'b'\)"):
        Run(tmp_path, Job(steps=4, name="b")).__enter__()
    assert contents(tmp_path) == before


def test_new_setting_counts_as_its_default(tmp_path: Path) -> None:
    with Run(tmp_path, Job()):
        pass
    job = read_job(tmp_path)
    del job["limit"]  # as an older version wrote it
    (tmp_path / "job.json").write_text(json.dumps(job))
    with Run(tmp_path, Job()) as run:
        assert run.job == job  # in the words that its checkpoints know it by
    with pytest.raises(RunError, match="limit"):
        Run(tmp_path, Job(limit=4)).__enter__()


def test_non_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"not a run directory and not empty \(it holds thesis.txt\)"):
        Run(tmp_path, Job()).__enter__()
    assert (tmp_path / "thesis.txt").read_text() == "mine" and not (tmp_path / "job.json").exists()


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="cannot write the run directory"):
            Run(folder, Job()).__enter__()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunError, match="Permission denied"):
            Run(tmp_path / "run", Job()).__enter__()
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("damage", ["", "{", "[1", "\x00"])
def test_damaged_job_json_is_reported(damage: str, tmp_path: Path) -> None:
    with Run(tmp_path, Job()):
        pass
    (tmp_path / "job.json").write_text(damage)
    with pytest.raises(RunError, match=r"job\.json is damaged"):
        Run(tmp_path, Job()).__enter__()
    assert (tmp_path / "job.json").read_text() == damage


def test_readers_refuse_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory"):
        read_job(tmp_path)
    assert checkpoints(tmp_path) == [] and newest_checkpoint(tmp_path) is None


# full disks


def full(*args: Any, **more: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """Records go to a disk with room for so many bytes, of which some may become free while somebody waits."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int, freed: int = 0, waits: int = 10**9) -> None:
        self.room, self.freed, self.waits, self.waited = room, freed, waits, 0
        real = append_file.AppendFile.__init__
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                part = bytes(data)[: disk.room] if disk.room else full()
                disk.room -= super().write(part)
                return len(part)

            def truncate(self, size: int | None = None) -> int:
                disk.room += self.seek(0, os.SEEK_END) - (size or 0)
                return super().truncate(size)

        def init(appender: append_file.AppendFile, path: Path, *more: Any) -> None:
            real(appender, path, *more)
            appender._file.close()
            appender._file = File(path, "ab")

        def wait(seconds: float, stopped: Any) -> bool:
            self.waited += 1
            if self.waited == self.waits:
                self.room += self.freed
            return not stopped()

        patch.setattr(append_file.AppendFile, "__init__", init)
        patch.setattr(full_disk, "_wait", wait)


def test_append_waits_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing half-written counts while it waits, and what was to be written is there once there is room."""
    disk = Disk(monkeypatch, room=1000, freed=10**6, waits=3)
    with Run(tmp_path, Job()) as run:
        for i in range(9):
            run.write_traces(0, [trace(str(i))])
    assert disk.waited == 3
    assert [t.problem.id for _, t in read_traces(tmp_path)] == [str(i) for i in range(9)]
    output = capsys.readouterr().err
    assert re.search(r"the disk is full: \S+traces\.bin needs at least \d+ B, and .* are free; waiting", output)
    assert "there is room again: traces.bin is written" in output


def test_sync_rewrites_after_a_late_disk_full_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a system may forget the bytes when it says so: they are written again."""
    real, failed = os.fsync, []

    def fsync(handle: int) -> None:
        if len(failed) < 2:
            failed.append(handle)
            full()
        real(handle)

    again: list[int] = []
    rewrite = append_file.rewrite_bytes
    monkeypatch.setattr(
        append_file, "rewrite_bytes", lambda *given: (again.append(given[2] - given[1]), rewrite(*given))
    )
    monkeypatch.setattr(full_disk, "FIRST_RETRY_SECONDS", 0.01)
    with Run(tmp_path, Job()) as run:
        run.write_metrics(0, {"x": 1.0})
        run.write_metrics(1, {"x": 1.0})
        size = (tmp_path / "metrics.jsonl").stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            run.sync()
        assert again == [size, size] and steps(tmp_path) == [0, 1]
        run.write_metrics(2, {"x": 1.0})
    assert steps(tmp_path) == [0, 1, 2]


def test_interruption_ends_the_wait_for_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        Disk(patch, room=1000)
        wants = lambda: True  # noqa: E731
        signals.add_stop_check(wants)
        try:
            with pytest.raises(RunError, match=r"traces\.bin: No space left on device; free some space and run again"):
                with Run(tmp_path, Job()) as run:
                    for i in range(9):
                        run.write_traces(0, [trace(str(i))])
        finally:
            signals.remove_stop_check(wants)
    kept = [t.problem.id for _, t in read_traces(tmp_path)]
    with BlockReader(tmp_path / "traces.bin") as reader:
        last = reader.last_block()
    assert last is not None and 0 < len(kept) < 9, "whole ones stay, and of the next there is nothing"
    with Run(tmp_path, Job()) as run:
        run.mark_resumed(0)
        run.write_traces(0, [trace(str(i)) for i in range(9)])
    assert [t.problem.id for _, t in read_traces(tmp_path)] == [str(i) for i in range(9)]


@pytest.mark.parametrize("at", [1, 3])  # the folder is synced between the two files
def test_run_starts_when_a_full_disk_has_space_again(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command works once there is room again."""
    real, count = os.fsync, []

    def fsync(handle: int) -> None:
        count.append(handle)
        if len(count) == at:
            os.ftruncate(handle, 1)
            full()
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(RunError, match="No space left"):
            Run(tmp_path / "run", Job()).__enter__()
    with Run(tmp_path / "run", Job()) as run:
        run.write_metrics(0, {})
    assert steps(tmp_path / "run") == [0] and read_job(tmp_path / "run") == run.job


# checkpoints


def test_checkpoints_lists_complete_ones_oldest_first(tmp_path: Path) -> None:
    for name in ("step-000020", "step-000003", "step-000021.new", "other", "step-999999", "step-1000000"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    names = [p.name for p in checkpoints(tmp_path)]
    assert names == ["step-000003", "step-000020", "step-999999", "step-1000000"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.name == "step-1000000"


def test_job_json_runs_again(tmp_path: Path) -> None:
    from ponder.runs import job_json

    job = replace(Job(), name="é", limit=7)
    with Run(tmp_path, job) as run:
        assert read_job(tmp_path) == run.job == job_json.encode(job)


def test_environment_json_describes_the_machine() -> None:
    output = environment.describe_environment()
    assert {"python", "machine", "versions", "commit", "command", "time"} <= output.keys()
    assert "numpy" in output["versions"] and json.dumps(output)
    assert environment.git_commit(Path("/")) is None


@pytest.mark.parametrize("name", ["nope", "folder", "file.txt"])
def test_folder_without_a_run_is_refused_by_readers(tmp_path: Path, name: str) -> None:
    """Rather than taken for a run without metrics and traces: its name may be misspelt."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("")
    for read in (read_metrics, lambda folder: list(read_traces(folder))):
        with pytest.raises(RunError, match=f"{name} is not a run directory"):
            read(tmp_path / name)


def test_foreign_folder_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with (
        pytest.raises(RunError, match=r"not a run directory and not empty \(it holds notes.txt\)"),
        Run(tmp_path, Job()),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
