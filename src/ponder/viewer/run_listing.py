"""The runs below a folder, by ids: hashes of their places in it, so that a request never names a path."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.runs.run_summary import RunSummary, find_runs, summarize_run, type_name
from ponder.viewer.errors import NotFound


@dataclass(frozen=True, slots=True)
class RunFolder:
    id: str
    name: str  # the path below the folder that is viewed
    path: Path


class RunLibrary:
    """All runs below `root`, or `root` itself where it is one. Folders are listed again at each request."""

    def __init__(self, root: Path, serve_url: str = "") -> None:
        self.root, self.serve_url = root.absolute(), serve_url
        self._known: dict[str, RunFolder] = {}
        self._lock = threading.Lock()

    def folders(self) -> list[RunFolder]:
        """Every run directory, by name."""
        paths = [self.root] if (self.root / "job.json").is_file() else []
        found = [self._folder(path) for path in (*paths, *find_runs(self.root))]
        with self._lock:
            self._known = {folder.id: folder for folder in found}
        return found

    def find(self, run_id: str) -> RunFolder:
        """The run with this id."""
        if run_id not in self._known:
            self.folders()
        with self._lock:
            folder = self._known.get(run_id)
        if folder is None or not (folder.path / "job.json").is_file():
            raise NotFound("there is no such run: it was moved or removed, or the link is of another folder")
        return folder

    def _folder(self, path: Path) -> RunFolder:
        name = self.root.name if path == self.root else path.relative_to(self.root).as_posix()
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
        return RunFolder(digest, name, path)


def run_row(folder: RunFolder) -> dict[str, Any]:
    """What the list of runs says about one."""
    summary = summarize_run(folder.path, folder.name)
    return {"id": folder.id, **summary_json(summary)}


def summary_json(run: RunSummary) -> dict[str, Any]:
    return {
        "name": run.name, "job": run.job, "state": run.state, "message": run.message,
        "steps": run.steps, "total_steps": run.total_steps, "metric": run.metric, "best": run.best, "last": run.last,
        "bytes": run.num_bytes, "modified": run.modified,
    }  # fmt: skip


def job_parts(job: Any) -> dict[str, str]:
    """The kind of a job, its task and its model, from its JSON."""
    if not isinstance(job, Mapping):
        return {"kind": "", "task": "", "model": ""}
    task, model = job.get("task", job.get("data")), job.get("model")
    return {
        "kind": type_name(job),
        "task": task if isinstance(task, str) else type_name(task),
        "model": model if isinstance(model, str) else type_name(model),
    }
