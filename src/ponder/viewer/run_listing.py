"""The runs below a folder, by ids: hashes of their places in it, so that a request never names a path."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.runs.environment import read_environment
from ponder.runs.run_dir import checkpoints, is_locked, read_job
from ponder.runs.run_summary import RunSummary, find_runs, summarize_run, type_name
from ponder.runs.trace_store import TRACE_FILES
from ponder.viewer.errors import NotFound
from ponder.viewer.metric_scan import MetricScan, axis_names, findings, metric_names, read_ends
from ponder.viewer.metric_slices import METRICS_FILE
from ponder.viewer.plain_files import file_size
from ponder.viewer.plain_json import finite, plain_json

SCAN_SECONDS = 0.25  # of one list, over all metrics that were not read before
MAX_FILES, MAX_MARKS = 500, 500
_MAX_JOB_CHARS = 1 << 18

Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RunFolder:
    id: str
    name: str  # the path below the folder that is viewed
    path: Path


@dataclass(slots=True)
class _KnownRun:
    """What was read of a run, and of which state of its files."""

    scan: MetricScan = field(default_factory=MetricScan)
    signature: Signature = ()
    row: dict[str, Any] = field(default_factory=dict)


class RunLibrary:
    """All runs below `root`, or `root` itself where it is one. Folders are listed again at each request."""

    def __init__(self, root: Path, serve_url: str = "") -> None:
        self.root, self.serve_url = root.absolute(), serve_url
        self._folders: dict[str, RunFolder] = {}
        self._known: dict[str, _KnownRun] = {}
        self._lock = threading.Lock()

    def folders(self) -> list[RunFolder]:
        """Every run directory, by name."""
        paths = [self.root] if (self.root / "job.json").is_file() else []
        found = [self._folder(path) for path in (*paths, *find_runs(self.root))]
        self._folders = {folder.id: folder for folder in found}
        return found

    def find(self, run_id: str) -> RunFolder:
        """The run with this id."""
        if run_id not in self._folders:
            self.folders()
        folder = self._folders.get(run_id)
        if folder is None or not (folder.path / "job.json").is_file():
            raise NotFound("there is no such run: it was moved or removed, or the link is of another folder")
        return folder

    def rows(self) -> list[dict[str, Any]]:
        """The list of runs."""
        deadline = time.monotonic() + SCAN_SECONDS
        with self._lock:
            return [self._row(folder, deadline) for folder in self.folders()]

    def details(self, run_id: str) -> dict[str, Any]:
        """Everything about one run but its metrics and traces."""
        folder = self.find(run_id)
        with self._lock:
            row = self._row(folder, time.monotonic() + 10 * SCAN_SECONDS)
            scan = self._known[folder.id].scan
            marks = _marks(folder.path, scan)
        return {**row, **_job_and_environment(folder.path), "marks": marks, "files": _files(folder.path)}

    def _folder(self, path: Path) -> RunFolder:
        name = self.root.name if path == self.root else path.relative_to(self.root).as_posix()
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
        return RunFolder(digest, name.encode("utf-8", "replace").decode(), path)

    def _row(self, folder: RunFolder, deadline: float) -> dict[str, Any]:
        known = self._known.setdefault(folder.id, _KnownRun())
        complete = known.scan.extend(folder.path, max(0.0, deadline - time.monotonic()))
        signature = (complete, known.scan.offset, is_locked(folder.path), *_file_states(folder.path))
        if signature != known.signature:
            known.row = _make_row(folder, known.scan, complete)
            known.signature = signature
        return known.row


def _make_row(folder: RunFolder, scan: MetricScan, complete: bool) -> dict[str, Any]:
    summary = summarize_run(folder.path, folder.name, lambda path: scan.headline())
    if summary.state == "damaged":
        return {"id": folder.id, **summary_json(summary), **job_parts(None), "complete": True, "findings": [],
                "has_traces": False, "has_metrics": False, "x": ["step"], "metrics": []}  # fmt: skip
    ends = read_ends(folder.path)
    row = {"id": folder.id, **summary_json(summary), **job_parts(read_job(folder.path))}
    if not complete:  # the best of all is not known yet, the last is
        row["best"] = None
        last = [value for value in ends.columns.get(summary.metric or "", ()) if value is not None]
        row["last"] = last[-1] if last else None
        row["steps"] = max(row["steps"] or 0, ends.steps[-1] + 1 if ends.steps else 0)
    return {
        **row, "complete": complete, "findings": findings(ends), "x": axis_names(ends), "metrics": metric_names(ends),
        "has_traces": any(file_size(folder.path / name) for name in TRACE_FILES),
        "has_metrics": file_size(folder.path / METRICS_FILE) > 0,
    }  # fmt: skip


def summary_json(run: RunSummary) -> dict[str, Any]:
    return {
        "name": run.name, "job": run.job, "state": run.state, "message": run.message,
        "steps": run.steps, "total_steps": run.total_steps, "metric": run.metric, "best": finite(run.best),
        "last": finite(run.last), "bytes": run.num_bytes, "modified": finite(run.modified),
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


def _file_states(folder: Path) -> list[object]:
    """Names, sizes and times of the files of a run, to see whether anything changed."""
    states: list[object] = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name)[:MAX_FILES]:
                status = entry.stat(follow_symlinks=False)
                states.append((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:
        pass
    return states


def _marks(folder: Path, scan: MetricScan) -> list[dict[str, Any]]:
    """Checkpoints, resumptions, evaluations and the best step, by step."""
    marks: list[dict[str, Any]] = [{"step": step, "kind": "resumed", "text": because} for step, because in scan.resumed]
    try:
        saved = [int(path.name.removeprefix("step-")) for path in checkpoints(folder)]
    except PonderError:
        saved = []
    marks += [{"step": step, "kind": "checkpoint", "text": f"checkpoint of step {step}"} for step in saved]
    marks += [{"step": step, "kind": "eval", "text": "evaluated on held-out problems"} for step in scan.evaluated]
    if (best := scan.best_step()) is not None:
        marks.append({"step": best, "kind": "best", "text": f"best {scan.metric}"})
    return sorted(marks, key=lambda mark: mark["step"])[:MAX_MARKS]


def _job_and_environment(folder: Path) -> dict[str, Any]:
    try:
        job, environment = read_job(folder), read_environment(folder)
    except PonderError as why:
        return {"config": None, "environment": {}, "versions": {}, "config_error": str(why)}
    if file_size(folder / "job.json") > _MAX_JOB_CHARS:
        return {"config": None, "environment": {}, "versions": {}, "config_error": "job.json is too large to be shown"}
    versions = environment.get("versions")
    return {
        "config": plain_json(job),
        "environment": plain_json(environment),
        "versions": plain_json(versions) if isinstance(versions, dict) else {},
    }


def _files(folder: Path) -> list[dict[str, Any]]:
    """Files of a run with their sizes; those of checkpoints too."""
    out: list[dict[str, Any]] = []
    waiting = [folder]
    while waiting and len(out) < MAX_FILES:
        try:
            with os.scandir(waiting.pop(0)) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        name = Path(entry.path).relative_to(folder).as_posix().encode("utf-8", "replace").decode()
                        out.append({"name": name, "bytes": entry.stat(follow_symlinks=False).st_size})
        except OSError:
            continue
    return out[:MAX_FILES]
