"""The run directory: the one record of a job. Everything that shows or measures runs reads only this.

    job.json            the whole job; it can be run again
    environment.json    versions, machine, commit, fingerprints of everything that its result depends on
    metrics.jsonl       one line per step, with findings about the health of the run
    traces.bin          everything that the model wrote, compressed (see runs/trace_store.py)
    traces.jsonl        the same in a run that an earlier version began: one line per trace
    pictures/           large pictures of its problems, each once (see runs/picture_store.py)
    token_texts.bin     the bytes of each token of its model (see runs/token_texts.py)
    checkpoints/        step-000020/ ... weights, optimizer, state
    tensorboard/ ...    metrics again, by the writers that were asked for (see runs/metric_logging.py)
    status.json         how the last process that wrote it ended: finished, stopped or failed, and why
    lock                held while a process writes

Metrics and traces are only appended to and can be read at any time; each record has a checksum (see runs/records.py and
runs/block_file.py). A run that resumes from step k appends a mark that says so; readers then ignore earlier records of
step k and later.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ponder import file_lock, full_disk, settings
from ponder.atomic_write import TEMPORARY_SUFFIX, write_atomically
from ponder.errors import RunError, RunInUse
from ponder.runs import job_json
from ponder.runs.environment import (
    INPUTS_KEY,
    MAX_LISTED_DIFFERENCES,
    MISSING_KEY,
    check_inputs_unchanged,
    describe_environment,
    read_environment,
)
from ponder.runs.kept_for_run import forget_kept
from ponder.runs.metric_logging import open_metric_log
from ponder.runs.records import RecordWriter, damaged_record, read_records, repair_records
from ponder.runs.status import STATUS_FILE, RunStatus, remove_status, write_status
from ponder.runs.symlinks import refuse_symlinks
from ponder.runs.trace_store import TRACES_FILE, has_traces, repair_traces, require_run_directory
from ponder.runs.trace_writer import TraceWriter
from ponder.runs.trust import external_code
from ponder.types import Trace

_STARTUP_FILES = (
    "lock",
    "environment.json",
    f"environment.json{TEMPORARY_SUFFIX}",
    f"job.json{TEMPORARY_SUFFIX}",
    STATUS_FILE,
)  # all that a start cut short leaves
_METRICS_FILE = "metrics.jsonl"
_LOCK_ATTEMPTS, _LOCK_RETRY_SECONDS = 4, 0.05
FINDINGS = "findings"
_STAGES_FOLDER = "{run}/.."  # in a stage's job.json: the folder that its run directory lies in


class Run:
    """A run directory opened for writing. Use it as a context manager: it holds the lock until it closes.

    `inputs`: fingerprints, by name, of everything beyond the job that its result depends on (see
    pipelines/job/input_fingerprints.py). The run refuses to resume with others. None: nothing is compared.
    `continue_from`: called with this run and the encoded job that the directory holds, if that is another job. It
    raises if this job cannot continue from it, and prepares the directory otherwise. None: no other job may resume.
    """

    def __init__(
        self,
        folder: str | Path,
        job: Any,
        inputs: Mapping[str, str] | None = None,
        continue_from: Callable[[Run, Any], None] | None = None,
    ) -> None:
        self.folder = Path(folder)
        settings.check_finite(job)
        self.job = job_json.encode(job)
        self.inputs = None if inputs is None else dict(inputs)
        self.continue_from = continue_from
        self.result_metrics: dict[str, float] = {}  # of the whole result, such as an accuracy: kept in status.json
        self._metrics: RecordWriter | None = None
        self._metric_log = open_metric_log(self.folder)
        self._resumed_step: int | None = None
        self._traces = TraceWriter(self.folder / TRACES_FILE)
        self._kept_counts: dict[str, int] = {}  # records of steps before the one that was resumed from
        self._added_counts: dict[str, Counter[int]] = {}  # records since, by step

    def __enter__(self) -> Run:
        refuse_symlinks(self.folder)
        self._refuse_foreign_folder()  # before a lock is left in it
        self._lock = lock_run(self.folder)
        try:
            self._write_or_match_job()
        except BaseException:
            self._close(give_up=True)
            raise
        remove_status(self.folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is None:
                self.sync()
            elif (failure := self._traces.close(give_up=True)) and failure != str(error):
                error.add_note(failure)
            write_status(self.folder, RunStatus.after(error, self.result_metrics))
        finally:
            self._close(give_up=error is not None)
            forget_kept()

    def _close(self, give_up: bool) -> None:
        self._traces.close(give_up)
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # a failed write was reported when it happened
                self._metrics.close()
        if self._metric_log is not None:
            self._metric_log.close()
        self._lock.close()

    def _write_or_match_job(self) -> None:
        """Write the job, or check that the directory already holds this job."""
        path = self.folder / "job.json"
        if path.exists():
            stored = _with_current_defaults(read_job(self.folder), external_code(self.job))
            is_other_job = stored != self.job
            if is_other_job and self.continue_from is None:
                raise other_job_error(self.folder, stored, self.job)
            if self.inputs is not None:
                missing = check_inputs_unchanged(self.folder, self.inputs, job_changed=is_other_job)
                if missing != read_environment(self.folder).get(MISSING_KEY, []):
                    self._update_environment({MISSING_KEY: missing})
            if is_other_job and self.continue_from is not None:
                self.continue_from(self, stored)
                write_json(path, _with_relative_stage_paths(self.job, self.folder))
                self._update_environment({INPUTS_KEY: self.inputs, MISSING_KEY: []})
            self.job = _read_job_json(self.folder)  # as its checkpoints name it
            return
        self.job = _with_relative_stage_paths(self.job, self.folder)
        self._refuse_foreign_folder()
        write_json(self.folder / "environment.json", describe_environment() | {INPUTS_KEY: self.inputs})
        write_json(path, self.job)

    def _refuse_foreign_folder(self) -> None:
        """Raise if the folder holds something, and that is no run."""
        names = os.listdir(self.folder) if self.folder.is_dir() and os.access(self.folder, os.R_OK) else []
        others = [name for name in names if name not in _STARTUP_FILES]
        if others and not (self.folder / "job.json").exists():
            raise RunError(
                f"{self.folder} is not a run directory and not empty (it holds {others[0]}): give another --run"
            )

    def _update_environment(self, changes: dict[str, Any]) -> None:
        write_json(self.folder / "environment.json", read_environment(self.folder) | changes)

    def write_metrics(self, step: int, values: Mapping[str, float], findings: Sequence[str] = ()) -> None:
        """Append one row. NaN and infinity are stored as null and read back as NaN. `findings`: what is unhealthy."""
        finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
        more = {FINDINGS: list(findings)} if findings else {}
        self._append_metrics({"step": step, "time": round(time.time(), 3), **finite, **more})
        if self._metric_log is not None:
            self._metric_log.write(step, finite, self.job, self._resumed_step)
        self._added_counts.setdefault("metrics", Counter())[step] += 1

    def prepare_traces(self, step: int, traces: Sequence[Trace]) -> None:
        """Copy traces of a step that will not change any more, for `write_traces`, which then takes no time."""
        try:
            self._traces.prepare(step, traces)
        except ValueError as why:
            raise RunError(f"traces cannot be kept: {why}") from None

    def write_traces(self, step: int, traces: Iterable[Trace]) -> None:
        """Write traces of a step, as they are now, or were when they were prepared. They are written in the background:
        `flush` waits until readers see them, `sync` until they are on the disk. An error is raised by the next call."""
        try:
            count = self._traces.append(step, traces)
        except ValueError as why:
            raise RunError(f"traces cannot be kept: {why}") from None
        self._added_counts.setdefault("traces", Counter())[step] += count

    def mark_resumed(self, step: int, because: str = "") -> None:
        """Mark that the run writes this step and later ones again. `because`: the reason, if it is worth a note."""
        self._added_counts.clear()
        if (self.folder / _METRICS_FILE).exists():
            self._append_metrics({"resumed": step} | ({"because": because} if because else {}))
            self._resumed_step = step
        self.flush()
        if has_traces(self.folder):
            self._traces.mark_resumed(step)

    def verify_records(self, step: int, expected_counts: Mapping[str, int]) -> str:
        """Check the records of steps before `step`: one row of metrics each, and as many traces as expected.

        Returns what was cut off after them and why, or an empty text. Call it before anything is written, and
        `mark_resumed` next.
        """
        metrics = repair_records(self.folder / _METRICS_FILE, step, expected_counts.get("metrics"), one_per_step=True)
        traces = repair_traces(self.folder, step, expected_counts.get("traces"))
        self._kept_counts = {"metrics": metrics[0], "traces": traces[0]}
        return "; ".join(cut for _, cut in (metrics, traces) if cut)

    def record_counts(self, step: int) -> dict[str, int]:
        """How many records of steps before `step` there are: the counts that `verify_records` takes."""
        added = {name: sum(n for s, n in counter.items() if s < step) for name, counter in self._added_counts.items()}
        return {name: self._kept_counts.get(name, 0) + added.get(name, 0) for name in ("metrics", "traces")}

    def flush(self) -> None:
        """Wait until all traces are in their file, where readers see them."""
        self._traces.flush()

    def sync(self) -> None:
        """Write all records through to the disk. Whatever relies on them may be written afterwards."""
        self._traces.sync()
        if self._metrics is not None:
            try:
                self._metrics.sync()
            except OSError as why:
                raise RunError(f"cannot write {self.folder / _METRICS_FILE}: {why.strerror}; run again") from None

    def _append_metrics(self, record: Mapping[str, Any]) -> None:
        path = self.folder / _METRICS_FILE
        try:
            if self._metrics is None:
                self._metrics = full_disk.retry_while_disk_full(lambda: RecordWriter(path), path, 0)
            self._metrics.append(record)
        except (TypeError, ValueError) as why:
            raise RunError(f"metrics cannot be kept as JSON ({why}): they must be numbers") from None
        except OSError as why:
            raise RunError(f"cannot write {path}: {why.strerror}; free some space and run again") from None


def lock_run(folder: Path) -> IO[str]:
    """Lock a run directory, and create it if needed. Closing the file releases the lock."""
    refuse_symlinks(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a+")  # noqa: SIM115
    except OSError as why:
        raise RunError(f"cannot write the run directory {folder}: {why.strerror}; give another --run") from None
    for _ in range(_LOCK_ATTEMPTS):  # `is_locked` holds the lock for a moment
        if file_lock.try_lock(lock):
            return lock
        time.sleep(_LOCK_RETRY_SECONDS)
    lock.close()
    raise RunInUse(folder)


def is_locked(folder: Path) -> bool:
    """Whether a process writes the run now."""
    try:
        with open(folder / "lock", "rb+") as lock:
            return not file_lock.try_lock(lock)
    except OSError:  # there is none, or it belongs to somebody else
        return False


def other_job_error(folder: Path, stored: Any, ours: Any) -> RunError:
    """The error for a run directory that belongs to another job."""
    changed = describe_differences(stored, ours)
    return RunError(f"{folder} belongs to another job ({changed}): give another --run, or the same flags")


def describe_differences(stored: Any, ours: Any) -> str:
    """The fields in which two encoded jobs differ, in one line."""
    changes = job_json.differences(stored, ours)
    more = [f"and {len(changes) - MAX_LISTED_DIFFERENCES} more"] if len(changes) > MAX_LISTED_DIFFERENCES else []
    return "; ".join([*changes[:MAX_LISTED_DIFFERENCES], *more])


def write_json(path: Path, data: Any) -> None:
    """Write the file atomically. It is on the disk when this returns."""
    try:
        write_atomically(path, json.dumps(data, indent=1) + "\n", sync=True)
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}") from None


def read_job(folder: str | Path) -> Any:
    """The encoded job of a run directory, with the paths of stages where they are now."""
    here = str(Path(folder).resolve().parent)

    def resolve(text: str) -> str:
        for after in text.split(_STAGES_FOLDER)[1:]:
            if ".." in re.split(r"[/\\\s]", after):
                raise RunError(f"{folder}/job.json names {text!r:.80}, which leads out of the folder of its stages")
        return text.replace(_STAGES_FOLDER, here)

    return job_json.map_strings(_read_job_json(folder), resolve)


def _with_current_defaults(encoded: Any, trust: Sequence[str]) -> Any:
    """A stored job with defaults for the fields that its class got since. `trust`: code that the present job names."""
    try:
        return job_json.encode(job_json.decode(encoded, trust))
    except Exception:  # compared as it was written: its code is gone, or refuses the old values
        return encoded


def _with_relative_stage_paths(job: Any, folder: Path) -> Any:
    """A stage's job with the paths of other stages relative to it, so that the folder can be moved."""
    home = folder.resolve().parent
    if not (home / "job.json").is_file():
        return job
    inside = re.compile(rf"(?<![\w.~/-]){re.escape(str(home))}(?=/)")
    return job_json.map_strings(job, lambda text: inside.sub(lambda _: _STAGES_FOLDER, text))


def _read_job_json(folder: str | Path) -> Any:
    path = Path(folder) / "job.json"
    refuse_symlinks(folder)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise RunError(f"{folder} is not a run directory: {path.name}: {why.strerror}") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path} is damaged: it is not JSON") from None


def read_metrics(folder: str | Path) -> list[dict[str, float]]:
    """The metrics of every step of a run, in order; a value that is not a number is NaN."""
    refuse_symlinks(folder)
    require_run_directory(folder)
    return [
        {k: math.nan if v is None else v for k, v in row.items() if k != FINDINGS}
        for _, row in _metric_rows(Path(folder))
    ]


def _metric_rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    path = folder / _METRICS_FILE
    for number, row in read_records(path):
        for name, value in row.items():
            fits = isinstance(value, list if name == FINDINGS else int | float | None)
            if not fits:
                raise damaged_record(path, number, f"{name!r} is {type(value).__name__}")
        yield number, row


def checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    refuse_symlinks(folder)
    folders = (Path(folder) / "checkpoints").glob("step-*")
    complete = (
        p for p in folders if p.name.removeprefix("step-").isdigit()
    )  # not .new or .old: being written, removed
    return sorted(complete, key=lambda p: (len(p.name), p.name))  # past a million steps names grow longer


def newest_checkpoint(folder: str | Path) -> Path | None:
    return next(reversed(checkpoints(folder)), None)
