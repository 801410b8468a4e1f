"""The process that writes a run's metrics with TensorBoard, W&B or trackio.

It is a process of its own (see runs/metric_logging.py): these packages start threads and services, print, and read
their settings when they are imported, and none of that may touch a training. It reads JSON lines: what to open, then
one line per step. It answers with a line for each writer that fails. W&B and trackio stay offline unless their own
environment variables say otherwise; whatever they write is in the run directory.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

WRITER_FOLDERS = ("tensorboard", "wandb", "trackio")  # in the run directory, by the names of the writers
PROJECT = "ponder"
_MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class LoggedRun:
    """What the writers are told of a run. `resumed`: the step from which it goes on; None: it begins."""

    folder: Path
    job: Mapping[str, Any]
    resumed: int | None

    @property
    def name(self) -> str:
        return self.folder.name


class MetricWriter(Protocol):
    def write(self, step: int, time: float, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoardWriter:
    """Event files. A run that resumes gets a further file, which begins with a mark by which TensorBoard leaves out the
    steps that come again."""

    def __init__(self, run: LoggedRun) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._file = EventFileWriter(str(run.folder / "tensorboard"))
        if run.resumed is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._file.add_event(self._event(step=run.resumed, session_log=start))

    def write(self, step: int, time: float, values: Mapping[str, float]) -> None:
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(step=step, wall_time=time, summary=self._summary(value=points)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandbWriter:
    """An offline run, which `wandb sync` uploads. Each start of the run is a part of it, under the same id."""

    def __init__(self, run: LoggedRun) -> None:
        # W&B links to its service's log, in the user's cache, whatever `symlink` says, and a run directory holds no
        # links. Where there is no cache there is no such log.
        os.environ["XDG_CACHE_HOME"] = os.devnull
        import wandb

        self._folder = folder = run.folder / "wandb"
        folder.mkdir(exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=_stored_id(folder / "run_id"),
            resume="allow" if mode == "online" else None,
            dir=str(run.folder),
            mode=mode,
            config=dict(run.job),
            settings=wandb.Settings(symlink=False, console="off", silent=True, disable_git=True, save_code=False),
        )
        self._remove_links()

    def write(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
        self._remove_links()

    def _remove_links(self) -> None:
        """On systems whose cache is not where XDG_CACHE_HOME says."""
        for path in self._folder.rglob("*"):
            if path.is_symlink():
                path.unlink(missing_ok=True)


class TrackioWriter:
    """trackio's own database, in the run directory unless TRACKIO_DIR names another."""

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder.resolve() / "trackio"))  # read when it is imported
        import trackio

        self._run = trackio.init(
            project=PROJECT,
            name=run.name,
            config=dict(run.job),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


WRITERS: dict[str, Callable[[LoggedRun], MetricWriter]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
    "trackio": TrackioWriter,
}


def _stored_id(path: Path) -> str:
    """The id under which the service knows this run: made once, so that a resumed run has the same."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        path.write_text(secrets.token_hex(4), encoding="utf-8")
        return path.read_text(encoding="utf-8")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what the packages print
        os.dup2(silent, stream)
    opened = json.loads(sys.stdin.readline())
    run = LoggedRun(Path(opened["folder"]), opened["job"], opened["resumed"])
    writers: dict[str, MetricWriter] = {}

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as why:
            writers.pop(name, None)
            reason = f"{type(why).__name__}: {why}"[:_MAX_ERROR_CHARS]
            print(json.dumps({"writer": name, "why": reason}), file=answers, flush=True)

    for name in opened["writers"]:
        if (writer := attempt(name, partial(WRITERS[name], run))) is not None:
            writers[name] = writer
    for line in sys.stdin:
        row = json.loads(line)
        for name, writer in list(writers.items()):
            attempt(name, partial(writer.write, row["step"], row["time"], row["values"]))
    for name, writer in list(writers.items()):
        attempt(name, writer.close)


if __name__ == "__main__":
    main()
