"""Checkpoints: what was kept comes back to the bit, training goes on while it is written, and failures are told."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from fake_checkpoints import FILES, Job, checkpoint_names, model, state, tensors, verify_newest, write_checkpoints
from ponder import full_disk, signals
from ponder.errors import Interrupted, ModelError, RunError, UsageError
from ponder.runs import Run, checkpoints
from ponder.train import checkpoint, host_buffers
from ponder.train.checkpoint import CheckpointWriter, load_latest
from ponder.train.finite_checks import Diverged


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "run", Job()) as open_run:
        yield open_run


@pytest.fixture(params=[False, True], ids=["here", "background"])
def background(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# what is kept


def test_checkpoint_round_trip(run: Run, background: bool) -> None:
    assert load_latest(run) is None
    write_checkpoints(run, 20, background=background)
    assert verify_newest(run) == 20
    folder = run.folder / "checkpoints" / "step-000020"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == sorted(FILES)
    modes = {(folder / name).stat().st_mode for name in FILES if not name.startswith("model")}
    assert len(modes) == 1, "who may read one file may read all"


def test_large_states_are_saved_in_several_files(run: Run, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 100)
    whole = {f"t{i}": torch.arange(float(8 * (i + 1))) for i in range(5)}  # 32, 64, 96, 128 and 160 bytes
    with CheckpointWriter(run, background=background) as saver:
        saver.save(1, whole, {}, {})
    folder = run.folder / "checkpoints" / "step-000001"
    assert sorted(p.name for p in folder.glob("learner*")) == [
        f"learner-0000{i}-of-00004.safetensors" for i in range(1, 5)
    ]
    result = load_latest(run)
    assert result is not None and result.tensors.keys() == whole.keys()
    assert all(torch.equal(result.tensors[name], t) for name, t in whole.items())
    (folder / "learner-00003-of-00004.safetensors").unlink()
    with pytest.raises(RunError, match="learner-00003-of-00004"):
        load_latest(run)


def test_writer_keeps_newest_checkpoints(run: Run, background: bool) -> None:
    write_checkpoints(run, 1, 2, 3, 4, background=background)
    assert checkpoint_names(run) == ["step-000003", "step-000004"] and verify_newest(run) == 4
    write_checkpoints(run, 5, last=1, background=background)
    assert checkpoint_names(run) == ["step-000005"]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({1: 0.5, 2: 0.9, 3: 0.1}, [2]), ({1: 0.5, 2: 0.5, 3: 0.1}, [2]), ({1: -3.0}, [1]), ({}, []),
        ({1: 0.5, 5: 0.9}, []), ({1: math.nan, 2: -1.0, 3: math.inf}, [2]), ({1: 0.0, 6: 0.0}, []),
    ],
)  # fmt: skip
def test_writer_keeps_best_checkpoint(scores: dict[int, float], best: list[int], run: Run) -> None:
    for step in range(1, 7):
        write_checkpoints(run, step, scores=scores)  # each in a saver of its own: the scores are read from the disk
    assert [int(name[5:]) for name in checkpoint_names(run)] == [*best, 5, 6]


def test_writer_ignores_scores_of_other_jobs(run: Run, tmp_path: Path) -> None:
    with Run(tmp_path / "other", Job(0.2)) as other:
        write_checkpoints(other, 1, scores={1: 9.0})
        write_checkpoints(run, 2, scores={2: 0.5})
        shutil.copytree(other.folder / "checkpoints" / "step-000001", run.folder / "checkpoints" / "step-000001")
    write_checkpoints(run, 3, 4, 5)
    assert checkpoint_names(run) == ["step-000002", "step-000004", "step-000005"]


def test_writer_saves_a_step_once(run: Run, background: bool) -> None:
    write_checkpoints(run, 20, 20, background=background)
    before = (run.folder / "checkpoints" / "step-000020").stat().st_ino
    with CheckpointWriter(run, background=background) as saver:
        saver.save(20, {}, {}, {"model": lambda folder: pytest.fail("written again")})
    assert verify_newest(run) == 20 and (run.folder / "checkpoints" / "step-000020").stat().st_ino == before


def test_writer_refuses_to_keep_none(run: Run) -> None:
    with pytest.raises(UsageError, match="keep is 0"):
        CheckpointWriter(run, keep=0)


def test_load_latest_past_a_million_steps(run: Run) -> None:
    write_checkpoints(run, 999_999, 1_000_000)
    assert verify_newest(run) == 1_000_000


# the state


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "nan"), ({"deep": [1.0, math.inf]}, "inf"), (torch.ones(1), "Tensor"), ((1, 2), "different"),
        ({1: "a"}, "different"), ({"a"}, "set"),
    ],
)  # fmt: skip
def test_save_refuses_state_that_is_not_json(value: Any, why: str, run: Run, background: bool) -> None:
    with CheckpointWriter(run, background=background) as saver:
        with pytest.raises(RunError, match=f"'baseline'.*{why}"):
            saver.save(1, {}, {"fine": 1, "baseline": value}, {})
    assert load_latest(run) is None


def test_state_floats_round_trip_exactly(run: Run) -> None:
    values = [0.1, 1e-320, 1 / 3, -0.0, 1.7976931348623157e308, 2.0**-1074]
    with CheckpointWriter(run) as saver:
        saver.save(1, {}, {"values": values}, {})
    result = load_latest(run)
    assert result is not None and [v.hex() for v in result.state["values"]] == [v.hex() for v in values]


def test_resume_dtype_is_that_of_the_run(run: Run) -> None:
    assert checkpoint.resume_dtype(run, "auto") == "auto"
    write_checkpoints(run, 1)
    assert checkpoint.resume_dtype(run, "auto") == "float32" and checkpoint.resume_dtype(run, "bfloat16") == "bfloat16"
    (run.folder / "checkpoints" / "step-000001" / "state.json").write_text("{")
    assert checkpoint.resume_dtype(run, "auto") == "auto", "what is wrong is said by load"


# in the background


class Gate:
    """A writer of a folder that waits until it is let through."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, folder: Path) -> None:
        self.reached.set()
        assert self.open.wait(30)
        folder.mkdir()


def test_save_without_room_for_a_copy_returns_when_it_is_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffers, "free_memory", lambda: 0)
    written, save_file = [], checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", lambda t, path: (written.append(t), save_file(t, path)))
    weight = torch.arange(6.0)
    with CheckpointWriter(run) as saver:
        for step in (1, 2):
            saver.save(step, {"weight": weight}, {}, {"model": lambda folder: folder.mkdir()})
            assert checkpoints(run.folder)[-1].name == f"step-00000{step}"
            assert written[-1]["weight"].data_ptr() == weight.data_ptr(), "no copy"
            saver.wait_until_copied()
            weight += 1
    result = load_latest(run)
    assert result is not None and torch.equal(result.tensors["weight"], torch.arange(6.0) + 1)


def test_save_without_room_for_a_copy_raises_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(host_buffers, "free_memory", lambda: 0)
    with CheckpointWriter(run) as saver:
        with pytest.raises(RunError, match=r"cannot save .*step-000001 \(Input/output error\)"):
            saver.save(1, {"weight": torch.ones(2)}, {}, {"model": fail})
    assert load_latest(run) is None


def test_background_save_does_not_block_training(run: Run) -> None:
    gate, weight = Gate(), torch.ones(3)
    facts = {"list": [1]}
    with CheckpointWriter(run) as saver:
        saver.save(1, {"weight": weight}, facts, {"model": gate})
        assert gate.reached.wait(30) and load_latest(run) is None, "it is not there until it is whole"
        weight.zero_()
        facts["list"].append(2)
        gate.open.set()
        saver.wait()
        result = load_latest(run)
    assert result is not None and torch.equal(result.tensors["weight"], torch.ones(3)) and result.state == {"list": [1]}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is the whole process's")
def test_background_save_gives_way_to_training(run: Run, background: bool) -> None:
    priority: list[int] = []

    def note(folder: Path) -> None:
        folder.mkdir()
        priority.append(os.getpriority(os.PRIO_PROCESS, 0))
        started = threading.Thread(target=lambda: priority.append(os.getpriority(os.PRIO_PROCESS, 0)))
        started.start()
        started.join()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    with CheckpointWriter(run, background=background) as saver:
        saver.save(1, tensors(1), state(1), {"model": note})
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert priority == [min(before + 10, 19) if background else before] * 2


def test_memory_is_reserved_before_the_first_save(run: Run, background: bool) -> None:
    with CheckpointWriter(run, background=background) as saver:
        saver.reserve(tensors(1))
        saver.wait()
        assert saver._host._kept.keys() == (tensors(1).keys() if background else set())
        saver.save(20, tensors(20), state(20), {"model": model(20)})
    assert verify_newest(run) == 20


def test_background_saves_are_sequential(run: Run) -> None:
    gate, order = Gate(), []

    def second(folder: Path) -> None:
        order.append([p.name for p in checkpoints(run.folder)])
        folder.mkdir()

    def let() -> None:
        time.sleep(0.2)
        gate.open.set()

    with CheckpointWriter(run) as saver:
        saver.save(1, {}, {}, {"model": gate})
        threading.Thread(target=let).start()
        saver.save(2, {}, {}, {"model": second})
    assert order == [["step-000001"]] and checkpoint_names(run) == ["step-000001", "step-000002"]


def test_writer_exit_waits_also_on_error(run: Run) -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError):
        with CheckpointWriter(run) as saver:
            saver.save(1, {}, {}, {"model": gate})
            threading.Timer(0.2, gate.open.set).start()
            raise ZeroDivisionError
    assert checkpoint_names(run) == ["step-000001"] and load_latest(run) is not None


# the order in which a save reaches the disk


def fsync_order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    order: list[str] = []
    monkeypatch.setattr(checkpoint, "fsync_path", lambda path: order.append(path.name))
    return order


def test_later_checkpoint_has_its_name_before_its_files_are_flushed(
    run: Run, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while the disk is busy leaves it whole; the one before stays until it is flushed."""
    write_checkpoints(run, 1)
    here: list[list[str]] = []
    monkeypatch.setattr(checkpoint, "fsync_path", lambda path: here.append(checkpoint_names(run)))
    write_checkpoints(run, 2, last=1, background=background)
    assert here and set(map(tuple, here)) == {("step-000001", "step-000002")}
    assert checkpoint_names(run) == ["step-000002"] and verify_newest(run) == 2


def test_first_checkpoint_is_flushed_before_it_has_its_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    order = fsync_order(monkeypatch)
    write_checkpoints(run, 1)
    assert order.index(checkpoint.TENSORS_FILE) < order.index("checkpoints") and "step-000001.new" in order


def test_checkpoint_that_cannot_be_flushed_loses_its_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoints(run, 1)

    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "fsync_path", fails)
    with CheckpointWriter(run, background=False) as saver, pytest.raises(RunError, match="cannot save"):
        saver.save(2, tensors(2), state(2), {})
    assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1


def test_records_reach_the_disk_before_the_checkpoint_has_its_name(
    run: Run, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []
    real = run.sync
    monkeypatch.setattr(run, "sync", lambda: (there.append(checkpoint_names(run)), real())[1])
    write_checkpoints(run, 1, background=background)
    assert there[0] == ["step-000001.new"]


# a save that fails


def broken(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{")
    raise OSError(5, "Input/output error")


def spoilt(folder: Path) -> None:
    raise ModelError("the weights are not there")


FAILED = r"step-000002 \(Input/output error\): fix this and run again; the previous checkpoint is kept"


def test_foreground_save_error_is_raised_at_once(run: Run) -> None:
    write_checkpoints(run, 1)
    with CheckpointWriter(run, keep=1, background=False) as saver:
        with pytest.raises(RunError, match=FAILED):
            saver.save(2, tensors(2), state(2), {"model": broken})
        assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1
        saver.save(2, tensors(2), state(2), {"model": model(2)})
    assert checkpoint_names(run) == ["step-000002"] and verify_newest(run) == 2


@pytest.mark.parametrize("where", ["save", "wait"])
def test_background_save_error_is_raised_by_next_save_once(where: str, run: Run) -> None:
    write_checkpoints(run, 1)
    with CheckpointWriter(run, keep=1) as saver:
        saver.save(2, tensors(2), state(2), {"model": broken})
        with pytest.raises(RunError, match=FAILED):
            saver.wait() if where == "wait" else saver.save(3, {}, {}, {"model": model(3)})
        saver.wait()
        assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1
        saver.save(3, tensors(3), state(3), {"model": model(3)})
    assert checkpoint_names(run) == ["step-000003"] and verify_newest(run) == 3


@pytest.mark.parametrize("interrupted", [False, True])
def test_background_save_error_is_raised_on_exit(interrupted: bool, run: Run) -> None:
    write_checkpoints(run, 1)
    with pytest.raises(RunError, match=FAILED):
        with CheckpointWriter(run, keep=1) as saver:
            saver.save(2, tensors(2), state(2), {"model": broken})
            if interrupted:
                raise Interrupted("stopped; what was done is saved")
    assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1


@pytest.mark.parametrize("words", [False, True], ids=["error", "words of a library"])
def test_save_waits_for_disk_space(
    words: bool, run: Run, background: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoints(run, 1)
    tries = []

    def fill(folder: Path) -> None:
        tries.append(checkpoint_names(run))
        if len(tries) < 3:
            folder.mkdir()
            (folder / "config.json").write_text("{")
            if words:
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            raise OSError(28, "No space left on device")
        model(2)(folder)

    monkeypatch.setattr(full_disk, "FIRST_RETRY_SECONDS", 0.01)
    with CheckpointWriter(run, background=background) as saver:
        saver.save(2, tensors(2), state(2), {"model": fill})
    assert tries == [["step-000001", "step-000002.new"]] * 3 and checkpoint_names(run) == ["step-000001", "step-000002"]
    assert verify_newest(run) == 2
    output = capsys.readouterr().err
    assert "disk is full: " in output and "step-000002 needs at least " in output and "there is room again" in output


def test_stop_request_ends_wait_for_disk_space(run: Run, background: bool) -> None:
    def fill(folder: Path) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    write_checkpoints(run, 1)
    wants = lambda: True  # noqa: E731
    signals.add_stop_check(wants)
    try:
        with pytest.raises(RunError, match=r"step-000002 \(No space left on device\): fix this"):
            with CheckpointWriter(run, background=background) as saver:
                saver.save(2, tensors(2), state(2), {"model": fill})
    finally:
        signals.remove_stop_check(wants)
    assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_save_refuses_nonfinite_numbers(bad: float, run: Run, background: bool) -> None:
    write_checkpoints(run, 1)
    spoilt = tensors(2)
    spoilt["half"][3] = bad
    with CheckpointWriter(run, background=background) as saver:
        with pytest.raises(Diverged, match=r"half of the optimiser .* not finite, so it is not saved: the check"):
            saver.save(2, spoilt, state(2), {"model": model(2)})
    assert checkpoint_names(run) == ["step-000001"] and verify_newest(run) == 1


def test_records_are_flushed_before_checkpoint(run: Run, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of what is done to the disk: each file's bytes and name, and only then the checkpoint's name."""
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def watch_fsync(handle: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def watch_rename(self: Path, target: Path) -> Path:
        done.append(f"rename {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "rename", watch_rename)
    with CheckpointWriter(run, background=background) as saver:
        for step in (1, 2):
            run.write_traces(step - 1, [])
            run.write_metrics(step - 1, {"loss": 1.0})
            done.clear()
            saver.save(step, tensors(step), state(step), {"model": model(step)})
            saver.wait()
            named = done.index(f"rename step-00000{step}")
            assert "metrics.jsonl" in done[:named], done
            assert step > 1 or run.folder.name in done[done.index("metrics.jsonl") : named], "the new file's name too"


def test_save_error_does_not_hide_loop_error(run: Run) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with CheckpointWriter(run) as saver:
            saver.save(2, {}, {}, {"model": broken})
            raise ZeroDivisionError
    assert "Input/output error" in caught.value.__notes__[0]


def test_background_bug_keeps_its_exception_type(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        with CheckpointWriter(run) as saver:
            saver.save(2, {}, {}, {"model": lambda folder: print(1 // 0)})
    assert checkpoint_names(run) == []


def test_save_error_says_why(run: Run) -> None:
    with pytest.raises(RunError, match="the weights are not there"):
        with CheckpointWriter(run) as saver:
            saver.save(2, {}, {}, {"model": spoilt})
    assert checkpoint_names(run) == []


def test_checkpoint_that_cannot_be_removed_is_ignored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def stuck(self: Path, target: Path) -> None:
        if target.suffix == ".old":
            raise PermissionError(13, "Permission denied")
        real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stuck)
        write_checkpoints(run, 1, 2, 3)
        assert checkpoint_names(run) == ["step-000001", "step-000002", "step-000003"] and verify_newest(run) == 3
    write_checkpoints(run, 4)
    assert checkpoint_names(run) == ["step-000003", "step-000004"]
