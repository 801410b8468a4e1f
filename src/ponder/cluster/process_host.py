"""Runs one process on this machine and keeps what it writes. A Ray actor has one of these on another machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ponder.errors import UsageError

PIPE_VARIABLE = "PONDER_LAUNCHER_PIPE"  # a pipe that closes when the process that started this one ends
MAX_KEPT_BYTES = 1 << 20  # of what a process wrote, and nobody has read yet
_LAST_OUTPUT_SECONDS = 2.0  # after its end, for output that a grandchild may still hold open


class OutputTail:
    """The end of a stream, which a thread reads. Readers name the byte from which on they want it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept, self._start, self._lock = stream, bytearray(), 0, threading.Lock()
        self.thread = threading.Thread(target=self._read, name="process output", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._stream:
            while data := os.read(self._stream.fileno(), 1 << 16):
                with self._lock:
                    self._kept += data
                    excess = max(0, len(self._kept) - MAX_KEPT_BYTES)
                    del self._kept[:excess]
                    self._start += excess

    def read(self, offset: int) -> tuple[int, bytes]:
        """What came after this byte and is still kept, and the offset of the next call."""
        with self._lock:
            return self._start + len(self._kept), bytes(self._kept[max(0, offset - self._start) :])


class ProcessHost:
    """Starts a Python process, and after its end another. The process sees the end of its host as the end of a pipe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._tails: list[OutputTail] = []
        self._write_end = -1
        self._ended_at = 0.0

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: str = "") -> int:
        """Start the interpreter with these arguments, in a folder. Returns the process's number."""
        self.end()
        if folder and not os.path.isdir(folder):
            raise UsageError(
                f"{socket.gethostname()} has no folder {folder}: start the job in one that all machines see"
            )
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, *argv],
                env={**os.environ, **environment, PIPE_VARIABLE: str(read_end)},
                cwd=folder or None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[read_end],
                start_new_session=True,  # a signal reaches it through its host alone
            )
        finally:
            os.close(read_end)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._tails, self._ended_at = [OutputTail(self._process.stdout), OutputTail(self._process.stderr)], 0.0
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, a negative one for a signal; None while it runs, or its last output is not read yet."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._ended_at = self._ended_at or time.monotonic()
        reading = any(tail.thread.is_alive() for tail in self._tails)
        return None if reading and time.monotonic() - self._ended_at < _LAST_OUTPUT_SECONDS else code

    def read(self, out_offset: int, err_offset: int) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        """What it wrote to standard output and to standard error, from these bytes on."""
        if not self._tails:
            return (0, b""), (0, b"")
        return self._tails[0].read(out_offset), self._tails[1].read(err_offset)

    def send_signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill the process, whatever state it is in."""
        if self._process is not None:
            self.send_signal(signal.SIGKILL)
            self._process.wait()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


def import_path() -> str:
    """PYTHONPATH for a process that runs this very code: a checkout, too, and from any folder."""
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *given]))


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def end_with_launcher() -> None:
    """In a process that was started for a job: end when the one that started it does, however that ends."""
    if not (pipe := os.environ.get(PIPE_VARIABLE, "")).isdecimal():
        return

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(int(pipe), 1)
        os._exit(1)

    threading.Thread(target=wait, name="launcher", daemon=True).start()
