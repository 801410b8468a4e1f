"""Atomic writes: what a reader sees when a write ends at any moment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ponder.atomic_write import TEMPORARY_SUFFIX, write_atomically


def test_write_atomically_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("old")
    write_atomically(path, "new: 1 µs\n")
    assert path.read_bytes() == "new: 1 µs\n".encode() and os.listdir(tmp_path) == ["data.json"]


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_write_atomically_keeps_the_old_file_when_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "data.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((Path, "replace") if failing == "replace" else (os, "fsync")), fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new", sync=True)
    assert path.read_text() == "old"


def test_write_atomically_syncs_the_file_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(handle: int) -> None:
        events.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        fsync(handle)

    def record_replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_atomically(tmp_path / "data.json", "new", sync=True)
    assert events == ["sync file", "rename", "sync folder"]


def test_write_atomically_uses_the_suffix_for_its_temporary_file(tmp_path: Path) -> None:
    (tmp_path / f"data.json{TEMPORARY_SUFFIX}").write_text("of another process")
    write_atomically(tmp_path / "data.json", "ours", suffix=".17")
    assert (tmp_path / f"data.json{TEMPORARY_SUFFIX}").read_text() == "of another process"
    assert (tmp_path / "data.json").read_text() == "ours" and not (tmp_path / "data.json.17").exists()
