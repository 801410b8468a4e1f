"""Which results a run directory held before a job ran again, and since when: a stored result is never shown as new."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.runs.data_files import HARVEST_FILE
from ponder.runs.environment import MISSING_KEY, describe_environment, read_environment
from ponder.runs.run_dir import checkpoints, read_job
from ponder.runs.trace_store import TRACE_FILES
from ponder.runs.trust import server_names

_RESULT_FILES = (*TRACE_FILES, "metrics.jsonl", HARVEST_FILE)
FileStamps = dict[str, tuple[int, int]]  # by file: its size, and the time at which it was written, in nanoseconds


@dataclass(frozen=True)
class PriorResults:
    """What a run directory held before a job ran in it. Read it before the job runs, and ask it afterwards."""

    folder: Path
    files_before: FileStamps
    stages: tuple[PriorResults, ...] = ()  # of the run directories inside

    @classmethod
    def read(cls, folder: Path) -> PriorResults:
        runs = sorted(path.parent for path in folder.glob("*/job.json"))
        return cls(folder, _file_stamps(folder), tuple(map(cls.read, runs)))

    @property
    def unchanged(self) -> bool:
        """Whether the job added nothing: its whole result is from before."""
        return bool(self.files_before) and _file_stamps(self.folder) == self.files_before

    @property
    def last_write_time(self) -> float:
        """When the newest of these files was written, in seconds since the epoch."""
        return max(at for _, at in self.files_before.values()) / 1e9

    def lines(self) -> list[str]:
        """For people: one line for each run directory that held a result."""
        inner = [line for stage in self.stages for line in stage.lines()]
        if not self.files_before:
            return inner
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.last_write_time))
        notes = [note for note in (self._version_note(), *self._uncomparable()) if note]
        same = "; ".join([*notes, f"nothing {'else ' * bool(notes)}that it depends on has changed"])
        if self.unchanged:
            return [f"stored    result of {when} in {self.folder}: {same}; another --run does it again", *inner]
        return [f"resumed   {self.folder}, which held results of {when} already: {same}", *inner]

    def to_json(self) -> dict[str, Any]:
        """For programs: when the stored result was written, or the part of it that the job resumed from."""
        times: dict[str, Any] = {}
        if self.files_before:
            times["stored" if self.unchanged else "resumed"] = time.strftime(
                "%FT%T%z", time.localtime(self.last_write_time)
            )
        inner = {stage.folder.name: data for stage in self.stages if (data := stage.to_json())}
        return times | ({"stored_stages": inner} if inner else {})

    def _version_note(self) -> str:
        """Which version of ponder wrote the result, if not this one."""
        then, now = read_environment(self.folder), describe_environment()
        old, new = ((environment.get("versions") or {}).get("ponder") for environment in (then, now))
        commits = then.get("commit"), now["commit"]
        if old != new:
            return f"it is of ponder {old}, and this is {new}"
        return f"it is of ponder at {commits[0]}, and this is at {commits[1]}" if commits[0] != commits[1] else ""

    def _uncomparable(self) -> list[str]:
        """Inputs that could not be compared: missing ones, and models that a server runs."""
        missing = read_environment(self.folder).get(MISSING_KEY) or []
        remote = server_names(read_job(self.folder))
        return [f"{name} is gone" for name in missing] + [f"what {name} runs cannot be compared" for name in remote]


def _file_stamps(folder: Path) -> FileStamps:
    files = [folder / name for name in _RESULT_FILES] + [path / "state.json" for path in checkpoints(folder)]
    stamps: FileStamps = {}
    for file in files:
        if file.is_file() and (stat := os.stat(file)).st_size:
            stamps[str(file.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns)
    return stamps
