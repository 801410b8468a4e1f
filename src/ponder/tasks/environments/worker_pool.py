"""Worker processes for environments: a thread per process sends it one call at a time and waits, up to a deadline.

A call that fails by the process (it hangs, ends, or writes something else than a reply) costs the process; calls that
waited behind it get `EpisodeLost`, and their callers begin them again in another worker. A worker without episodes ends
after a while. The thread that starts a process lives as long as it does, since Linux ends a child with the thread that
made it (environment_worker.end_with_parent). With `--cluster` the processes are in slots of the cluster, and connect by
TCP.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ponder.cluster.job_place import cluster_address, open_place
from ponder.cluster.places import Place
from ponder.cluster.slot_connection import SlotConnection
from ponder.errors import PonderError
from ponder.reason.episodes import EnvironmentFailed
from ponder.tasks.environments.environment_worker import MAX_REPLY_BYTES

START_SECONDS = 60.0  # to import what the environment needs
IDLE_SECONDS = 20.0  # after which a worker without episodes ends
MAX_WORKERS = max(2, min(8, os.cpu_count() or 1))  # of one environment

_WORKER = "from ponder.tasks.environments.environment_worker import main; main()"
_MAX_CALL_BYTES = 8 << 20


class EpisodeLost(PonderError):
    """The worker ended before it came to this call: it can begin again elsewhere."""


class WorkerFailed(EnvironmentFailed):
    """The call ended its worker."""


@dataclass(frozen=True)
class _Call:
    message: dict[str, Any]
    seconds: float
    reply: Future[Any] = field(default_factory=Future)


class EnvironmentWorker:
    """One process, and the thread that talks to it."""

    def __init__(self, spec: dict[str, Any], place: Place | None = None) -> None:
        self.spec, self._place = spec, place
        self.episodes: set[int] = set()
        self.lost = False
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._placed: SlotConnection | None = None  # in its place, of a worker on a cluster
        self._buffer = b""
        self.thread = threading.Thread(target=self._run, daemon=True, name="ponder-environment")
        self.thread.start()

    def call(self, message: dict[str, Any], seconds: float) -> Future[Any]:
        """Send a call when those before it are answered. The future has the reply's fields, or raises
        `EnvironmentFailed` or `EpisodeLost`."""
        call = _Call(message, seconds)
        with self._lock:
            if self.lost:
                call.reply.set_exception(EpisodeLost("the worker has ended"))
            else:
                self._calls.put(call)
        return call.reply

    def end(self) -> None:
        """End the process now. The thread follows."""
        self._calls.put(None)
        self._kill()

    def _run(self) -> None:
        try:
            if self._start():
                while (call := self._next_call()) is not None:
                    if call.reply.set_running_or_notify_cancel() and not self._answer(call):
                        break
        finally:
            self._finish()

    def _start(self) -> bool:
        arguments = ["-P", "-c", _WORKER, str(os.getpid())]
        own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        error: BaseException | None = None
        if self._place is not None:
            try:
                self._placed = SlotConnection(self._place, arguments, own, START_SECONDS)
            except (PonderError, OSError) as why:
                error = why
        else:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, **own}, start_new_session=True, bufsize=0,
            )  # fmt: skip
        if error is None:
            first = _Call(self.spec, START_SECONDS)
            self._answer(first)
            if (error := first.reply.exception()) is None:
                return True
        with self._lock:
            self.lost = True
        while not self._calls.empty():  # nothing of this environment will ever start: no other worker is tried
            if (call := self._calls.get()) is not None and call.reply.set_running_or_notify_cancel():
                call.reply.set_exception(EnvironmentFailed(f"the environment's process did not start: {error}"))
        return False

    def _next_call(self) -> _Call | None:
        while True:
            try:
                return self._calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self.episodes and self._calls.empty():
                        self.lost = True
                        return None

    def _answer(self, call: _Call) -> bool:
        """Send a call and take the reply. False: the process is of no more use."""
        deadline = time.monotonic() + call.seconds
        try:
            data = json.dumps(call.message, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            call.reply.set_exception(EnvironmentFailed(f"the call cannot be sent as JSON: {error}"))
            return True
        try:
            if len(data) > _MAX_CALL_BYTES:
                raise EnvironmentFailed(f"the call has {len(data):,} bytes; at most {_MAX_CALL_BYTES:,} are sent")
            self._write(data, deadline)
            reply = json.loads(self._read_line(deadline))
            if not isinstance(reply, dict):
                raise WorkerFailed("its process wrote something else than a reply")
        except EnvironmentFailed as error:
            call.reply.set_exception(error)
            return not isinstance(error, WorkerFailed)
        except TimeoutError:
            call.reply.set_exception(WorkerFailed(f"it did not return within {call.seconds:g} s"))
            return False
        except (OSError, ValueError):
            call.reply.set_exception(WorkerFailed("its process wrote something else than a reply"))
            return False
        if "error" in reply:
            call.reply.set_exception(EnvironmentFailed(str(reply["error"])[:1000]))
        else:
            call.reply.set_result(reply)
        return True

    def _descriptor(self, reads: bool) -> int:
        if self._placed is not None:
            return self._placed.fileno()
        assert self._process is not None
        pipe = self._process.stdout if reads else self._process.stdin
        assert pipe is not None
        return pipe.fileno()

    def _write(self, data: bytes, deadline: float) -> None:
        pipe = self._descriptor(reads=False)
        os.set_blocking(pipe, False)
        try:
            while data:
                _wait(pipe, selectors.EVENT_WRITE, deadline)
                data = data[os.write(pipe, data) :]
        except (BrokenPipeError, ConnectionError):
            raise WorkerFailed(self._how_it_ended()) from None

    def _read_line(self, deadline: float) -> bytes:
        pipe = self._descriptor(reads=True)
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_REPLY_BYTES + 1000:
                raise WorkerFailed(f"its process wrote more than {MAX_REPLY_BYTES:,} bytes")
            _wait(pipe, selectors.EVENT_READ, deadline)
            try:
                more = os.read(pipe, 1 << 16)
            except ConnectionError:
                more = b""
            if not more:
                raise WorkerFailed(self._how_it_ended())
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        if self._buffer:
            raise WorkerFailed("its process wrote more than a reply")
        return line

    def _how_it_ended(self) -> str:
        if self._placed is not None:
            ended = self._placed.how_it_ended(2.0)
            return "its connection broke" if ended is None else f"its process ended ({ended})"
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its process closed its pipe"
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"

    def _kill(self) -> None:
        if self._placed is not None:
            self._placed.kill()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _finish(self) -> None:
        with self._lock:
            self.lost = True
        self._kill()
        if self._placed is not None:
            self._placed.release()
        if self._process is not None:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        while not self._calls.empty():
            if (call := self._calls.get()) is not None and call.reply.set_running_or_notify_cancel():
                call.reply.set_exception(EpisodeLost("the worker has ended"))


def _wait(pipe: int, event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if (left := deadline - time.monotonic()) <= 0 or not selector.select(left):
            raise TimeoutError


class WorkerPool:
    """The workers of one environment."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._workers: list[EnvironmentWorker] = []
        self._place: Place | None = None  # of the workers, where the job has a cluster
        self.numbers = itertools.count()

    def place(self, episode: int) -> EnvironmentWorker:
        """A worker for an episode: the one with the fewest."""
        with self._lock:
            self._workers = [worker for worker in self._workers if not worker.lost]
            least = min(self._workers, key=lambda worker: len(worker.episodes), default=None)
            if least is None or (least.episodes and len(self._workers) < MAX_WORKERS):
                self._place = self._place or open_place("environments")
                least = EnvironmentWorker(self.spec, self._place)
                self._workers.append(least)
            least.episodes.add(episode)
            return least

    def end(self) -> list[EnvironmentWorker]:
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        return workers

    def close_place(self) -> None:
        if self._place is not None:
            self._place.close()


_pools: dict[str, WorkerPool] = {}
_pools_lock = threading.Lock()


def worker_pool(spec: dict[str, Any]) -> WorkerPool:
    """The pool of an environment, by what is to be opened, and on which cluster."""
    with _pools_lock:
        return _pools.setdefault(f"{cluster_address()} {json.dumps(spec, sort_keys=True)}", WorkerPool(spec))


def end_workers(seconds: float = 5.0) -> None:
    """End every worker now, and wait for their threads."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        for worker in pool.end():
            worker.thread.join(seconds)
        pool.close_place()


atexit.register(end_workers)
