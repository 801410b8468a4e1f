"""Which results of a job were there before it was run again, and since when: a stored result is never shown as new."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.environment import MISSING, environment, read_environment
from ponder.pipelines.harvest import DATA
from ponder.runs import checkpoints, read_job

_RECORDS = ("traces.jsonl", "metrics.jsonl", DATA)
Held = dict[str, tuple[int, int]]  # by file: its size, and the time at which it was written, in nanoseconds


@dataclass(frozen=True)
class Stored:
    """What a run directory held before a job ran in it. Look before, and ask afterwards."""

    folder: Path
    held: Held
    inner: tuple[Stored, ...] = ()  # of stages

    @classmethod
    def look(cls, folder: Path) -> Stored:
        runs = sorted(path.parent for path in folder.glob("*/job.json"))
        return cls(folder, _held(folder), tuple(map(cls.look, runs)))

    @property
    def whole(self) -> bool:
        """Nothing was added: all that is shown is from before."""
        return bool(self.held) and _held(self.folder) == self.held

    @property
    def written(self) -> float:
        """When the last of it was."""
        return max(at for _, at in self.held.values()) / 1e9

    def lines(self) -> list[str]:
        """For people: one for each run directory that held something."""
        inner = [line for one in self.inner for line in one.lines()]
        if not self.held:
            return inner
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.written))
        said = [told for told in (self._versions(), *self._unknown()) if told]
        same = "; ".join([*said, f"nothing {'else ' * bool(said)}that it depends on has changed"])
        if self.whole:
            return [f"stored    result of {when} in {self.folder}: {same}; another --run does it again", *inner]
        return [f"resumed   {self.folder}, which held results of {when} already: {same}", *inner]

    def plain(self) -> dict[str, Any]:
        """For programs: when the stored result was written, or the part of it that was gone on from."""
        told: dict[str, Any] = {}
        if self.held:
            told["stored" if self.whole else "resumed"] = time.strftime("%FT%T%z", time.localtime(self.written))
        inner = {one.folder.name: said for one in self.inner if (said := one.plain())}
        return told | ({"stored_stages": inner} if inner else {})

    def _versions(self) -> str:
        """Which ponder wrote it, where that is not this one."""
        then, now = read_environment(self.folder), environment()
        versions, commits = [told.get("versions") or {} for told in (then, now)], (then.get("commit"), now["commit"])
        was, own = (told.get("ponder") for told in versions)
        if was != own:
            return f"it is of ponder {was}, and this is {own}"
        return f"it is of ponder at {commits[0]}, and this is at {commits[1]}" if commits[0] != commits[1] else ""

    def _unknown(self) -> list[str]:
        """What could not be compared: what is gone, and what a server runs."""
        from ponder.pipelines.weights import served

        missing = read_environment(self.folder).get(MISSING) or []
        remote = served(read_job(self.folder))
        return [f"{name} is gone" for name in missing] + [f"what {name} runs cannot be compared" for name in remote]


def _held(folder: Path) -> Held:
    files = [folder / name for name in _RECORDS] + [path / "state.json" for path in checkpoints(folder)]
    found: Held = {}
    for file in files:
        if file.is_file() and (told := os.stat(file)).st_size:
            found[str(file.relative_to(folder))] = (told.st_size, told.st_mtime_ns)
    return found
