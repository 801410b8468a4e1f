"""Metrics of a run, also written by TensorBoard, W&B or trackio: `with log_metrics_to("tensorboard"): job("runs/x")`.

A process of its own writes them (runs/metric_writers.py), so that a writer that is slow, hangs or fails costs a warning
and never the training. metrics.jsonl stays the record that everything else reads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ponder.errors import MissingExtra, UnknownName
from ponder.runs.metric_writers import WRITERS

_MAX_WAITING_ROWS = 10_000  # a writer that is so far behind gets no more
_CLOSE_SECONDS = 120.0  # what the writers may take to finish
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from ponder.runs.metric_writers import main; main()"

_writer_names: ContextVar[tuple[str, ...]] = ContextVar("metric_writers", default=())


@contextlib.contextmanager
def log_metrics_to(*names: str) -> Iterator[None]:
    """Every run that is opened inside writes its metrics with these, too: tensorboard, wandb, trackio."""
    for name in names:
        if name not in WRITERS:
            raise UnknownName("writer of metrics", name, WRITERS)
        if not _is_installed(name):
            raise MissingExtra(f"writing metrics to {name}", name, "track")
    token = _writer_names.set(tuple(dict.fromkeys(names)))
    try:
        yield
    finally:
        _writer_names.reset(token)


def _is_installed(package: str) -> bool:
    """A folder of that name is no package: W&B leaves one where it ran."""
    spec = None if sys.modules.get(package, package) is None else importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def open_metric_log(folder: Path) -> MetricLog | None:
    """The log of a run, by what `log_metrics_to` names here; None if it names nothing."""
    names = _writer_names.get()
    return MetricLog(names, folder) if names else None


class MetricLog:
    """Hands rows to the process, which starts with the first one. Nothing here waits for it but `close`."""

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self._names, self._folder = names, folder
        self._rows: queue.Queue[str | None] = queue.Queue(_MAX_WAITING_ROWS)
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._failures: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()  # writer, and why it ended
        self._working = set(names)  # those of which no failure was said
        self._given_up = False

    def write(self, step: int, values: Mapping[str, float | None], job: Any, resumed: int | None) -> None:
        """A row of metrics; one that is None is left out. `job` and `resumed` are read with the first row."""
        if self._given_up:
            return
        if self._process is None:
            self._start(job, resumed)
        numbers = {name: value for name, value in values.items() if value is not None}
        try:
            self._rows.put_nowait(json.dumps({"step": step, "time": time.time(), "values": numbers}))
        except queue.Full:
            self._give_up(f"it is {_MAX_WAITING_ROWS} steps behind")
        self._warn()

    def close(self) -> None:
        """Wait until everything is written, within reason."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            self._rows.put_nowait(None)
            process.wait(_CLOSE_SECONDS)
        except queue.Full:
            self._give_up(f"it is {_MAX_WAITING_ROWS} steps behind")
            process.kill()
        except subprocess.TimeoutExpired:
            self._give_up(f"it did not finish within {_CLOSE_SECONDS:.0f} s")
            process.kill()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
        self._warn()
        self._given_up = True

    def _start(self, job: Any, resumed: int | None) -> None:
        folder = str(self._folder.resolve())
        opening = {"writers": self._names, "folder": folder, "job": job, "resumed": resumed}
        path = json.dumps([str(Path(p).resolve()) if p else str(Path.cwd()) for p in sys.path])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
        except OSError as why:
            self._give_up(str(why))
            return
        self._rows.put(json.dumps(opening))
        self._threads = [
            threading.Thread(target=self._feed, args=(self._process,), name="metrics", daemon=True),
            threading.Thread(target=self._listen, args=(self._process,), name="metric failures", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:  # it ended: `_listen` says why, or `close` sees its exit code
            while (row := self._rows.get()) is not None:
                process.stdin.write(row + "\n")
                process.stdin.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError, LookupError, TypeError):  # something else, which a package printed
                    answer = json.loads(line)
                    self._failures.put((answer["writer"], answer["why"]))
        if process.wait() != 0:
            self._fail_all(f"its process ended with {process.returncode}")

    def _give_up(self, why: str) -> None:
        self._given_up = True
        self._fail_all(why)

    def _fail_all(self, why: str) -> None:
        for name in self._names:
            self._failures.put((name, why))

    def _warn(self) -> None:
        """Once for each writer, from the caller's thread. The training goes on, and metrics.jsonl is whole."""
        while not self._failures.empty():
            name, why = self._failures.get()
            if name in self._working:
                self._working.remove(name)
                warnings.warn(f"{name} gets no more metrics of {self._folder}: {why}", stacklevel=4)
