"""The run directory, the one record of a job; everything that shows or measures runs reads only this.

    job.json            the whole job, re-runnable
    environment.json    versions, machine, commit, fingerprints of the models that it began with
    metrics.jsonl       one line per step, with what ails the run
    traces.jsonl        one line per trace: everything that was thought
    checkpoints/        step-000020/ ... weights, optimiser, state
    lock                held while a process writes

The .jsonl files are only appended to and can be read at any time. A run that resumes from step k appends
{"resumed": k}; readers then forget earlier records of steps from k on. A torn last line is ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ponder import jobs
from ponder.errors import RunError
from ponder.types import Trace

_FIRST = ("lock", "environment.json", "environment.json.new", "job.json.new")  # all that a start cut short leaves
FINDINGS = "findings"
_BESIDE = "{run}/.."  # in a stage's job.json: the folder that its run directory lies in
_LIBRARIES = ("ponder", "torch", "numpy", "safetensors", "tokenizers", "transformers")


class Run:
    """A run directory opened for writing. Use as a context manager: the lock is held until it closes.

    `weights`: fingerprints of the models that the job names, by where it does; a run does not go on with others.
    """

    def __init__(self, folder: str | Path, job: Any, weights: Mapping[str, str] | None = None) -> None:
        self.folder = Path(folder)
        self.job = jobs.encode(job)
        self.weights = dict(weights or {})
        self._files: dict[str, IO[str]] = {}

    def __enter__(self) -> Run:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "a+")
        except OSError as why:
            raise RunError(
                f"cannot write the run directory {self.folder}: {why.strerror}; give another --run"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunError(f"{self.folder} is in use by another process: wait for it or give another --run") from None
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what could not be written was told when it was tried
                file.close()
        self._files.clear()
        self._lock.close()

    def _claim(self) -> None:
        """Write the job, or make sure that the one already here is this one."""
        path = self.folder / "job.json"
        if path.exists():
            theirs = read_job(self.folder)
            if theirs != self.job:
                changed = "; ".join(jobs.differences(theirs, self.job)[:4])
                raise RunError(
                    f"{self.folder} belongs to another job ({changed}): give another --run, or the same flags"
                )
            began = _began_with(self.folder)
            for where in self.weights.keys() & began.keys():
                if self.weights[where] != began[where]:
                    raise RunError(
                        f"the weights that {self.folder} began with are gone: {where} was trained anew or replaced in "
                        "the same place; give another --run to begin again with the new ones"
                    )
            self.job = _stored(self.folder)  # in the words that its checkpoints know it by
            return
        self.job = _unplaced(self.job, self.folder)
        others = [p.name for p in self.folder.iterdir() if p.name not in _FIRST]
        if others:
            raise RunError(
                f"{self.folder} is not a run directory and not empty (it holds {others[0]}): give another --run"
            )
        write_json(self.folder / "environment.json", environment() | {"weights": self.weights})
        write_json(path, self.job)

    def metrics(self, step: int, values: Mapping[str, float], findings: Sequence[str] = ()) -> None:
        """A number that is not finite is kept as null, and read back as NaN. `findings`: what ails the run."""
        plain = {k: v if math.isfinite(v) else None for k, v in values.items()}
        ails = {FINDINGS: list(findings)} if findings else {}
        self._append("metrics", [{"step": step, "time": round(time.time(), 3), **plain, **ails}])

    def traces(self, step: int, traces: Iterable[Trace]) -> None:
        self._append("traces", ({"step": step, **t.to_json()} for t in traces))

    def resumed(self, step: int) -> None:
        """Records of this step and later come again."""
        for name in ("metrics", "traces"):
            if (self.folder / f"{name}.jsonl").exists():
                self._append(name, [{"resumed": step}])

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _open_append(self.folder / f"{name}.jsonl")
            for record in records:
                file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
            file.flush()
        except (TypeError, ValueError) as why:
            raise RunError(f"{name} cannot be kept as JSON ({why}): answers and tags must be plain data") from None
        except OSError as why:
            raise RunError(
                f"cannot write {self.folder / name}.jsonl: {why.strerror}; free some space and run again"
            ) from None


def _open_append(path: Path) -> IO[str]:
    """Open for appending, on a line of its own even after a torn write."""
    file = open(path, "a+b")  # noqa: SIM115
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    file.close()
    return open(path, "a", encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}") from None


def read_job(folder: str | Path) -> Any:
    """The encoded job of a run directory, with paths as they are now."""
    here = str(Path(folder).resolve().parent)
    return jobs.each_text(_stored(folder), lambda text: text.replace(_BESIDE, here))


def _unplaced(job: Any, folder: Path) -> Any:
    """A stage's job as it is stored: where other stages lie is said from here, so that all can be moved together."""
    home = folder.resolve().parent
    if not (home / "job.json").is_file():
        return job
    inside = re.compile(rf"(?<![\w.~/-]){re.escape(str(home))}(?=/)")
    return jobs.each_text(job, lambda text: inside.sub(lambda _: _BESIDE, text))


def _stored(folder: str | Path) -> Any:
    path = Path(folder) / "job.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise RunError(f"{folder} is not a run directory: {path.name}: {why.strerror}") from None
    except ValueError:
        raise RunError(f"{path} is damaged: it is not JSON") from None


def _began_with(folder: Path) -> dict[str, Any]:
    """A run's fingerprints; none where an earlier version wrote it, or nobody can read it any more."""
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["weights"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_metrics(folder: str | Path) -> list[dict[str, float]]:
    rows = _records(Path(folder) / "metrics.jsonl")
    return [{k: math.nan if v is None else v for k, v in row.items() if k != FINDINGS} for row in rows]


def read_findings(folder: str | Path) -> dict[int, list[str]]:
    """What ailed the run, by step, where anything did."""
    rows = _records(Path(folder) / "metrics.jsonl")
    return {row["step"]: row[FINDINGS] for row in rows if FINDINGS in row}


def read_traces(folder: str | Path) -> Iterator[tuple[int, Trace]]:
    """Every trace with its step, in the order in which they were thought."""
    for record in _records(Path(folder) / "traces.jsonl"):
        yield record["step"], Trace.from_json(record)


def checkpoints(folder: str | Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    found = (Path(folder) / "checkpoints").glob("step-*")
    whole = (p for p in found if p.name.removeprefix("step-").isdigit())  # not .new or .old: being written, removed
    return sorted(whole, key=lambda p: (len(p.name), p.name))  # past a million steps names grow longer


def newest_checkpoint(folder: str | Path) -> Path | None:
    return next(reversed(checkpoints(folder)), None)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    valid: list[tuple[int, int]] = []  # (step, byte offset) of records that still hold
    with open(path, "rb") as file:
        offset = 0
        for line in file:
            record = _parsed(line)
            if record is not None and "resumed" in record:
                valid = [(s, at) for s, at in valid if s < record["resumed"]]
            elif record is not None:
                valid.append((record["step"], offset))
            offset += len(line)
        for _, at in valid:
            file.seek(at)
            yield json.loads(file.readline())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # torn by a kill, or still being written
    return record if isinstance(record, dict) else None


def environment() -> dict[str, Any]:
    """What a reader needs to run this again: versions, machine, commit."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {name: v for name in _LIBRARIES if (v := _version(name))},
        "commit": commit(Path(__file__).parent),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit(folder: Path) -> str | None:
    """The commit of the checkout this code lies in, with + where it was changed; None outside one."""
    try:
        out = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip() or None
