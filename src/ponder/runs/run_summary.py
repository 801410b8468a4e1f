"""What a run directory is of and how it stands, from its small files alone: no model, no traces, no torch.

Of `metrics.jsonl` only the step and the headline metric of each line are read, of the traces only the end.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.runs.cleanup import checkpoint_step, is_training_job
from ponder.runs.run_dir import is_locked, newest_checkpoint, read_job
from ponder.runs.status import RunStatus, read_status
from ponder.runs.trace_store import count_records
from ponder.runs.trust import TYPE_KEY

# The metrics that sum up a run, and which value is the best. The first that a run has counts.
HEADLINE_METRICS = {"reward": max, "accuracy": max, "loss": min}
HeadlineReader = Callable[[Path], tuple[str | None, list[float]]]

_ROW_START = re.compile(rb'\{"(step|resumed)":(\d{1,18})[,}]')
_NUMBER = rb"(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)"
_HEADLINES = {name: re.compile(rb'"%b":%b[,}]' % (name.encode(), _NUMBER)) for name in HEADLINE_METRICS}


@dataclass(frozen=True)
class RunSummary:
    """One run. Numbers that a run does not have are None."""

    name: str  # the path below the folder that was listed
    folder: Path
    job: str  # the kind of job, the task and the model
    state: str  # running, finished, stopped, failed, or damaged
    message: str  # why it stopped, failed or is damaged
    steps: int | None  # training steps, or traces of other jobs
    total_steps: int | None
    metric: str | None
    best: float | None
    last: float | None
    num_bytes: int
    modified: float  # when it was written last, in seconds since the epoch


def list_runs(folder: Path) -> list[RunSummary]:
    """Every run directory below this folder, and the stages inside."""
    return [summarize_run(path, str(path.relative_to(folder))) for path in find_runs(folder)]


def find_runs(folder: Path) -> Iterator[Path]:
    """Run directories below a folder, by name, each before its stages. Links are not followed."""
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # gone since, or not ours to read
        return
    for path in (folder / name for name in inner if name != "checkpoints"):
        if (path / "job.json").is_file():
            yield path
        yield from find_runs(path)


def summarize_run(folder: Path, name: str = "", read: HeadlineReader | None = None) -> RunSummary:
    """The summary of one run directory. A damaged one is reported as such, never raised. `read`: reads the headline
    metric in place of `read_headline`, for callers that know it already."""
    num_bytes, modified = _size_and_time(folder)
    try:
        job = read_job(folder)
        return _summarize(folder, name or folder.name, job, num_bytes, modified, read or read_headline)
    except (PonderError, OSError) as why:
        blank = (None,) * 5
        return RunSummary(name or folder.name, folder, "?", "damaged", str(why), *blank, num_bytes, modified)


def _summarize(folder: Path, name: str, job: Any, num_bytes: int, modified: float, read: HeadlineReader) -> RunSummary:
    status = read_status(folder)
    metric, values = read(folder / "metrics.jsonl")
    steps: int | None
    total: int | None = None
    if isinstance(job, Mapping) and is_training_job(job):
        newest = newest_checkpoint(folder)
        steps, total = max(len(values), checkpoint_step(newest) if newest else 0), int(job["steps"])
    else:
        steps = count_records(folder)
    if not values and status is not None:
        metric, values = next(((m, [status.metrics[m]]) for m in HEADLINE_METRICS if m in status.metrics), (None, []))
    numbers = [value for value in values if not math.isnan(value)]
    best = HEADLINE_METRICS[metric](numbers) if metric and numbers else None
    state = _state(folder, status, steps, total)
    return RunSummary(
        name, folder, job_title(job), state, status.message if status and state == status.state else "", steps, total,
        metric, best, values[-1] if values else None, num_bytes, status.time if status else modified,
    )  # fmt: skip


def _state(folder: Path, status: RunStatus | None, steps: int | None, total: int | None) -> str:
    if is_locked(folder):
        return "running"
    if status is not None:
        return status.state
    return "finished" if total is not None and steps is not None and steps >= total else "stopped"


def job_title(job: Any) -> str:
    """An encoded job in a few words: RL · addition · smollm2. A run of stages names them."""
    if not isinstance(job, Mapping):
        return "?"
    kind = type_name(job)
    if isinstance(stages := job.get("stages"), list):
        return " · ".join([kind, ", ".join(str(stage.get("name")) for stage in stages if isinstance(stage, Mapping))])
    algorithm = type_name(job.get("algorithm"))
    parts = (
        value if isinstance(value, str) else type_name(value)
        for value in (job.get("task", job.get("data")), job.get("model"))
    )
    return " · ".join(filter(None, [f"{kind} {algorithm}".strip(), *parts]))


def type_name(encoded: Any) -> str:
    """The name of the class of an encoded object; empty where it has none."""
    return str(encoded.get(TYPE_KEY, "")).rpartition(":")[2] if isinstance(encoded, Mapping) else ""


def read_headline(path: Path) -> tuple[str | None, list[float]]:
    """The headline metric of a run and its value at every step, NaN where a step has none.

    Later lines of a step that was repeated after a resumption count; an unfinished last line does not.
    """
    rows: dict[int, bytes] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                start = _ROW_START.match(line)
                if start is None or not line.endswith(b"}\n"):
                    continue
                step = int(start[2])
                if start[1] == b"resumed":
                    rows = {s: row for s, row in rows.items() if s < step}
                else:
                    rows[step] = line
    except FileNotFoundError:
        return None, []
    for name, pattern in _HEADLINES.items():
        matches = [pattern.search(row) for row in rows.values()]
        if any(matches):
            return name, [float(match[1]) if match else math.nan for match in matches]
    return None, [math.nan] * len(rows)


def _size_and_time(folder: Path) -> tuple[int, float]:
    """The bytes of all files, and the time of the newest one."""
    size, newest, waiting = 0, 0.0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        stat = entry.stat(follow_symlinks=False)
                        size += stat.st_size
                        newest = max(newest, stat.st_mtime if entry.name != "lock" else 0.0)
        except OSError:  # a checkpoint that is being replaced
            continue
    return size, newest
