"""The run directory, the one record of a job; everything that shows or measures runs reads only this.

    job.json            the whole job, re-runnable
    environment.json    versions, machine, commit, fingerprints of everything that its result depends on
    metrics.jsonl       one line per step, with what ails the run
    traces.jsonl        one line per trace: everything that was thought
    checkpoints/        step-000020/ ... weights, optimiser, state
    lock                held while a process writes

The .jsonl files are only appended to and can be read at any time; each line has a checksum (see runs/records.py). A run that
resumes from step k appends {"resumed": k}; readers then forget earlier records of steps from k on.
"""

from __future__ import annotations

import contextlib
import fcntl
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

from ponder import full_disk, settings
from ponder.errors import RunError
from ponder.runs import job_json
from ponder.runs.environment import (
    INPUTS_KEY,
    MAX_LISTED_DIFFERENCES,
    MISSING_KEY,
    check_inputs_unchanged,
    describe_environment,
    read_environment,
)
from ponder.runs.records import RecordWriter, damaged_record, fsync_path, read_records, repair_records
from ponder.runs.symlinks import refuse_symlinks
from ponder.runs.trust import external_code
from ponder.types import Trace

_STARTUP_FILES = (
    "lock",
    "environment.json",
    "environment.json.new",
    "job.json.new",
)  # all that a start cut short leaves
_RECORD_FILES = ("metrics", "traces")
FINDINGS = "findings"
_STAGES_FOLDER = "{run}/.."  # in a stage's job.json: the folder that its run directory lies in


class Run:
    """A run directory opened for writing. Use as a context manager: the lock is held until it closes.

    `inputs`: fingerprints of what the job's result depends on beyond the job, by name (see pipelines/job/input_fingerprints.py); a run
    does not go on with others. None: of nothing, or nobody knows of what.
    `follows`: given this run and the encoded job that stands there, raises where this job cannot go on from what that
    one did, and else makes ready for it; None: no other job can.
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
        self._files: dict[str, RecordWriter] = {}
        self._kept_counts: dict[str, int] = {}  # records of steps before the one that was resumed from
        self._added_counts: dict[str, Counter[int]] = {}  # records since, by step

    def __enter__(self) -> Run:
        self._lock = lock_run(self.folder)
        try:
            self._write_or_match_job()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is None:
                self.sync()
        finally:
            self._close()

    def _close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what could not be written was told when it was tried
                file.close()
        self._files.clear()
        self._lock.close()

    def _write_or_match_job(self) -> None:
        """Write the job, or make sure that the one already here is this one."""
        path = self.folder / "job.json"
        if path.exists():
            theirs = _with_current_defaults(read_job(self.folder), external_code(self.job))
            another_job = theirs != self.job
            if another_job and self.continue_from is None:
                raise other_job_error(self.folder, theirs, self.job)
            if self.inputs is not None:
                missing = check_inputs_unchanged(self.folder, self.inputs, job_changed=another_job)
                if missing != read_environment(self.folder).get(MISSING_KEY, []):
                    self._update_environment({MISSING_KEY: missing})
            if another_job and self.continue_from is not None:
                self.continue_from(self, theirs)
                write_json(path, _with_relative_stage_paths(self.job, self.folder))
                self._update_environment({INPUTS_KEY: self.inputs, MISSING_KEY: []})
            self.job = _read_job_json(self.folder)  # in the words that its checkpoints know it by
            return
        self.job = _with_relative_stage_paths(self.job, self.folder)
        others = [p.name for p in self.folder.iterdir() if p.name not in _STARTUP_FILES]
        if others:
            raise RunError(
                f"{self.folder} is not a run directory and not empty (it holds {others[0]}): give another --run"
            )
        write_json(self.folder / "environment.json", describe_environment() | {INPUTS_KEY: self.inputs})
        write_json(path, self.job)

    def _update_environment(self, told: dict[str, Any]) -> None:
        write_json(self.folder / "environment.json", read_environment(self.folder) | told)

    def write_metrics(self, step: int, values: Mapping[str, float], findings: Sequence[str] = ()) -> None:
        """A number that is not finite is kept as null, and read back as NaN. `findings`: what ails the run."""
        plain = {k: v if math.isfinite(v) else None for k, v in values.items()}
        ails = {FINDINGS: list(findings)} if findings else {}
        self._append("metrics", [{"step": step, "time": round(time.time(), 3), **plain, **ails}])

    def write_traces(self, step: int, traces: Iterable[Trace]) -> None:
        self._append("traces", ({"step": step, **t.to_json()} for t in traces))

    def mark_resumed(self, step: int, because: str = "") -> None:
        """Records of this step and later come again. `because`: what is worth knowing about it."""
        self._added_counts.clear()
        marker: dict[str, Any] = {"resumed": step} | ({"because": because} if because else {})
        for name in _RECORD_FILES:
            if (self.folder / f"{name}.jsonl").exists():
                self._append(name, [marker])

    def verify_records(self, step: int, expected_counts: Mapping[str, int]) -> str:
        """Make sure of the records of steps before `step`, one row of metrics each and so many traces as `wanted`
        says, where it does. Gives what was cut off after them and why, or nothing: call `resumed` next.
        """
        said = []
        for name in _RECORD_FILES:
            count = expected_counts.get(name)
            self._kept_counts[name], cut = repair_records(
                self.folder / f"{name}.jsonl", step, count, one_per_step=name == "metrics"
            )
            said += [cut] if cut else []
        return "; ".join(said)

    def record_counts(self, step: int) -> dict[str, int]:
        """How many records of steps before `step` there are in each file: what `verify_records` takes."""
        added = {name: sum(n for s, n in counter.items() if s < step) for name, counter in self._added_counts.items()}
        return {name: self._kept_counts.get(name, 0) + added.get(name, 0) for name in _RECORD_FILES}

    def sync(self) -> None:
        """All records past the cache that a power cut empties: whoever counts on them may be written next."""
        for name, file in self._files.items():
            try:
                file.sync()
            except OSError as why:
                raise RunError(f"cannot write {self.folder / name}.jsonl: {why.strerror}; run again") from None

    def _append(self, name: str, fresh: Iterable[Mapping[str, Any]]) -> None:
        try:
            file = self._files.get(name)
            if file is None:
                path = self.folder / f"{name}.jsonl"
                file = self._files[name] = full_disk.retry_while_disk_full(lambda: RecordWriter(path), path, 0)
            for record in fresh:
                file.append(record)
                if "step" in record:
                    self._added_counts.setdefault(name, Counter())[record["step"]] += 1
        except (TypeError, ValueError) as why:
            raise RunError(f"{name} cannot be kept as JSON ({why}): answers and tags must be plain data") from None
        except OSError as why:
            raise RunError(
                f"cannot write {self.folder / name}.jsonl: {why.strerror}; free some space and run again"
            ) from None


def lock_run(folder: Path) -> IO[str]:
    """The lock of a run directory, which is made where it is not there; closing it lets go."""
    refuse_symlinks(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a+")  # noqa: SIM115
    except OSError as why:
        raise RunError(f"cannot write the run directory {folder}: {why.strerror}; give another --run") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RunError(f"{folder} is in use by another process: wait for it or give another --run") from None
    return lock


def other_job_error(folder: Path, theirs: Any, ours: Any) -> RunError:
    """What to say where a run directory is another job's."""
    changed = describe_differences(theirs, ours)
    return RunError(f"{folder} belongs to another job ({changed}): give another --run, or the same flags")


def describe_differences(theirs: Any, ours: Any) -> str:
    """In which fields two encoded jobs differ, in one line."""
    found = job_json.differences(theirs, ours)
    more = [f"and {len(found) - MAX_LISTED_DIFFERENCES} more"] if len(found) > MAX_LISTED_DIFFERENCES else []
    return "; ".join([*found[:MAX_LISTED_DIFFERENCES], *more])


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all, and on the disk when it returns."""
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        fsync_path(path.parent)
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}") from None


def read_job(folder: str | Path) -> Any:
    """The encoded job of a run directory, with paths as they are now."""
    here = str(Path(folder).resolve().parent)

    def placed(text: str) -> str:
        for after in text.split(_STAGES_FOLDER)[1:]:
            if ".." in re.split(r"[/\\\s]", after):
                raise RunError(f"{folder}/job.json names {text!r:.80}, which leads out of the folder of its stages")
        return text.replace(_STAGES_FOLDER, here)

    return job_json.map_strings(_read_job_json(folder), placed)


def _with_current_defaults(encoded: Any, trust: Sequence[str]) -> Any:
    """A stored job with the defaults of fields that its kind has got since. `trust`: what the job at hand names."""
    try:
        return job_json.encode(job_json.decode(encoded, trust))
    except Exception:  # whatever is not there any more, or refuses what it took then, is compared as it was written
        return encoded


def _with_relative_stage_paths(job: Any, folder: Path) -> Any:
    """A stage's job as it is stored: where other stages lie is said from here, so that all can be moved together."""
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
    return [
        {k: math.nan if v is None else v for k, v in row.items() if k != FINDINGS}
        for _, row in _metric_rows(Path(folder))
    ]


def _metric_rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    path = folder / "metrics.jsonl"
    refuse_symlinks(folder)
    for number, row in read_records(path):
        for name, value in row.items():
            fits = isinstance(value, list if name == FINDINGS else int | float | None)
            if not fits:
                raise damaged_record(path, number, f"{name!r} is {type(value).__name__}")
        yield number, row


def read_traces(folder: str | Path) -> Iterator[tuple[int, Trace]]:
    """Every trace with its step, in the order in which they were thought."""
    path = Path(folder) / "traces.jsonl"
    refuse_symlinks(folder)
    for number, record in read_records(path):
        try:
            trace = Trace.from_json(record)
        except KeyError as missing:
            raise damaged_record(path, number, f"it has no {missing}") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as why:
            raise damaged_record(path, number, f"it is no trace: {why}") from None
        yield record["step"], trace


def checkpoints(folder: str | Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    refuse_symlinks(folder)
    found = (Path(folder) / "checkpoints").glob("step-*")
    whole = (p for p in found if p.name.removeprefix("step-").isdigit())  # not .new or .old: being written, removed
    return sorted(whole, key=lambda p: (len(p.name), p.name))  # past a million steps names grow longer


def newest_checkpoint(folder: str | Path) -> Path | None:
    return next(reversed(checkpoints(folder)), None)
