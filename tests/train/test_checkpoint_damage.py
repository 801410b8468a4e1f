"""Checkpoints: a kill leaves the old or the new one whole, and damage is named, with the way out."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_checkpoints import FILES, Job, checkpoint_names, model, state, tensors, verify_newest, write_checkpoints
from ponder.errors import RunError
from ponder.runs import Run, checkpoints
from ponder.train import checkpoint
from ponder.train.checkpoint import CheckpointWriter, load_latest


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "run", Job()) as open_run:
        yield open_run


# a process that is killed


class Killed(BaseException):
    """From one moment on nothing more is done to the disk, nor tidied up."""


class Clock:
    """Counts what is done to files, and kills before the n-th."""

    WRITES = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"})
    current: Clock | None = None

    def __init__(self, at: int = 10**9) -> None:
        self.at, self.count, self.thread = at, 0, threading.get_ident()

    def tick(self, event: str, about: tuple[Any, ...]) -> None:
        reads = event == "open" and (isinstance(about[1], str) and not set(about[1]) & set("wxa+"))
        if event not in self.WRITES or reads or threading.get_ident() != self.thread:
            return
        self.count += 1
        if self.count >= self.at:
            raise Killed(f"{event} {about}")

    def __enter__(self) -> Clock:
        Clock.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Clock.current = None


def heard(event: str, about: tuple[Any, ...]) -> None:
    if Clock.current is not None:
        Clock.current.tick(event, about)


@pytest.fixture(scope="module")
def _audit() -> None:
    sys.addaudithook(heard)  # sees what Python does to files; it stays, and does nothing outside a Clock


def test_kill_at_every_moment_of_a_save_leaves_complete_checkpoint(tmp_path: Path, _audit: None) -> None:
    def life(folder: Path, at: int = 10**9) -> int:
        with Run(folder, Job()) as run:
            write_checkpoints(run, 10, 20, scores={10: 1.0})
            with Clock(at) as clock:
                write_checkpoints(run, 30, last=1)
        return clock.count

    moments = life(tmp_path / "run")
    assert moments > 20
    ends = set()
    for at in range(1, moments + 1):
        folder = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            life(folder, at)
        with Run(folder, Job()) as run:
            step = verify_newest(run)
            ends.add((step, *(p.name for p in checkpoints(folder))))
            assert all(checkpoint.verified_step(p, run) for p in checkpoints(folder)), (
                "every one that is named is whole"
            )
            write_checkpoints(run, 30, 40, last=1)
            assert verify_newest(run) == 40 and checkpoint_names(run) == ["step-000010", "step-000040"], (
                "and nothing is left lying about"
            )
    assert ends == {
        (20, "step-000010", "step-000020"), (30, "step-000010", "step-000020", "step-000030"),
        (30, "step-000010", "step-000030"),
    }, "killed before, between and after"  # fmt: skip


@pytest.mark.parametrize("kind", [".new", ".old"])
def test_partial_checkpoints_are_removed(kind: str, run: Run) -> None:
    write_checkpoints(run, 10)
    left = run.folder / "checkpoints" / f"step-000020{kind}"
    shutil.copytree(run.folder / "checkpoints" / "step-000010", left)
    assert verify_newest(run) == 10
    with CheckpointWriter(run, background=False) as saver:
        assert not left.exists()
        (left / "model").mkdir(parents=True)
        saver.save(20, tensors(20), state(20), {"model": model(20)})
    assert checkpoint_names(run) == ["step-000010", "step-000020"] and verify_newest(run) == 20


def test_files_are_flushed_before_rename(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses what was not brought to the disk, in any order."""
    synced: set[int] = set()
    fsync, rename = os.fsync, Path.rename

    def watch_fsync(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    def watch_rename(self: Path, target: Path) -> Path:
        if target.suffix != ".old":
            inside = [self, *self.rglob("*")]
            assert {p.stat().st_ino for p in inside} <= synced and len(inside) == 7
            synced.clear()
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "rename", watch_rename)
    write_checkpoints(run, 10)
    folder = run.folder / "checkpoints"
    assert synced == {folder.stat().st_ino, run.folder.stat().st_ino}, "and the names after it"


# damage


def flip(path: Path, at: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= mask
    path.write_bytes(content)


@pytest.mark.parametrize("file", FILES)
def test_damaged_byte_falls_back_to_previous_checkpoint(file: str, run: Run) -> None:
    write_checkpoints(run, 10, 20)
    folder = run.folder / "checkpoints" / "step-000020"
    size = (folder / file).stat().st_size
    for at in {0, 1, size // 3, size // 2, size - 2, size - 1}:
        flip(folder / file, at)
        text = rf"^step-000020 is damaged \({file}: .*\): the run goes on from step-000010, which is whole$"
        with pytest.warns(UserWarning, match=text):
            result = load_latest(run)
        assert result is not None and result.step == 10 and result.fallback_reason.startswith("step-000020 is damaged")
        assert checkpoint_names(run) == ["step-000010", "step-000020.damaged"], "nobody takes it for whole again"
        folder.with_name("step-000020.damaged").rename(folder)
        flip(folder / file, at)
    assert verify_newest(run) == 20
    flip(folder / file, size // 2)
    with pytest.warns(UserWarning):
        load_latest(run)
    assert checkpoint.resume_dtype(run, "auto") == "float32"
    write_checkpoints(run, 20)
    assert checkpoint_names(run) == ["step-000010", "step-000020"] and verify_newest(run) == 20, (
        "the same step is saved again"
    )


def test_damaged_manifest_byte_is_detected(run: Run) -> None:
    write_checkpoints(run, 1, scores={1: 0.5})
    path = run.folder / "checkpoints" / "step-000001" / "manifest.json"
    for at in range(path.stat().st_size):
        flip(path, at, 2)
        with pytest.raises(RunError, match=r"step-000001 is damaged \(manifest.json: .*no earlier one that is whole"):
            load_latest(run)
        flip(path, at, 2)
    assert verify_newest(run) == 1


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "longer", "folder"])
def test_missing_or_truncated_file_is_named(damage: str, file: str, run: Run) -> None:
    write_checkpoints(run, 10)
    path = run.folder / "checkpoints" / "step-000010" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"empty": b"", "cut": content[:-20], "longer": content + b" "}[damage])
    why = {"gone": "No such file", "folder": "Is a directory", "empty": "it has 0 bytes"}.get(damage, "it has ")
    if file == "manifest.json" and damage not in ("gone", "folder"):
        why = "it is no manifest" if damage != "longer" else "its checksum differs"
    with pytest.raises(RunError) as caught:
        load_latest(run)
    words = str(caught.value)
    assert f"step-000010 is damaged ({file}: {why}" in words, words
    assert "no earlier one that is whole: remove the folder 'checkpoints' and the run starts again" in words


def test_fallback_checkpoint_is_verified(run: Run) -> None:
    write_checkpoints(run, 10, 20, 30, last=3)
    for step in (20, 30):
        flip(run.folder / "checkpoints" / f"step-0000{step}" / "model" / "model.safetensors", -1)
    with pytest.warns(UserWarning, match=r"^step-000030 is damaged .*; step-000020 is damaged .* from step-000010"):
        assert verify_newest(run) == 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_invalid_optimizer_numbers_count_as_damage(bad: float, run: Run) -> None:
    """Its checksums may be right: whoever wrote it may have been wrong."""
    write_checkpoints(run, 10)
    moments = {"policy:exp_avg_sq.w": torch.ones(3), "policy:weight.w": torch.ones(3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "check_tensors_finite", lambda tensors, what: None)
        moments["policy:exp_avg_sq.w"][1] = bad
        with CheckpointWriter(run, background=False) as saver:
            saver.save(20, moments, state(20), {"model": model(20)})
    text = r"step-000020 is damaged \(learner.safetensors: policy:exp_avg_sq.w.* holds a n"
    with pytest.warns(UserWarning, match=text):
        assert verify_newest(run) == 10


def test_checkpoint_of_another_job_is_refused(run: Run, tmp_path: Path) -> None:
    write_checkpoints(run, 10)
    with Run(tmp_path / "other", Job(0.2)) as other:
        write_checkpoints(other, 20)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "step-000020", run.folder / "checkpoints" / "step-000020")
    with pytest.raises(RunError, match=r"step-000020 was saved by another job: remove that .* from step-000010"):
        load_latest(run)


def test_renamed_checkpoint_is_refused(run: Run) -> None:
    write_checkpoints(run, 10, 20)
    (run.folder / "checkpoints" / "step-000020").rename(run.folder / "checkpoints" / "step-000030")
    with pytest.raises(RunError, match="step-000030 was saved as step 20 and renamed"):
        load_latest(run)


def test_moved_run_resumes(run: Run, tmp_path: Path) -> None:
    write_checkpoints(run, 10)
    shutil.copytree(run.folder, tmp_path / "moved")
    with Run(tmp_path / "moved", Job()) as moved:
        assert verify_newest(moved) == 10


def test_checkpoint_holds_no_pickle(run: Run) -> None:
    write_checkpoints(run, 10)
    assert {Path(name).suffix for name in FILES} == {".json", ".safetensors"}
    for name in FILES:
        content = (run.folder / "checkpoints" / "step-000010" / name).read_bytes()
        assert json.loads(content if name.endswith("json") else content[8 : 8 + int.from_bytes(content[:8], "little")])
