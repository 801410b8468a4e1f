"""One run, seen from the host: what to send, what it sends back, and how it ended."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ponder.verify.sandbox.codec import NotPlainData, Tree, dumps, loads
from ponder.verify.sandbox.results import RunStatus, SandboxLimits
from ponder.verify.sandbox.wire import CONFINEMENT_SECONDS

if TYPE_CHECKING:
    from ponder.verify.sandbox.worker import Worker

CONFINED_FRAME = b"\0\0\0\5snull"  # the frame that zygote.run sends once a run is confined
GRACE_SECONDS = 10.0  # after a run's deadline, in which the worker must end it, or counts as lost


class WorkerLost(Exception):
    """The jail broke, not the program in it."""


class RunEnded(Exception):
    """The program sends nothing more: it exited, timed out, or sent too much."""

    def __init__(self, end: RunStatus | None, detail: str = "") -> None:
        super().__init__(detail)
        self.run_status = end  # None: its process ended, and the zygote reports how


class RunExit(NamedTuple):
    """The zygote's report on how a run ended."""

    run_status: RunStatus
    status: int | None
    seconds: float
    detail: str


class SandboxRun:
    """One run: frames to and from it, and its exit."""

    def __init__(self, worker: Worker, channel: socket.socket, number: int, limits: SandboxLimits, wall: float) -> None:
        self.worker, self.channel, self.number, self.limits, self._wall = worker, channel, number, limits, wall
        self.reusable_until = time.monotonic() + wall
        self.deadline = self.reusable_until + CONFINEMENT_SECONDS  # until it is confined, which starts its clock
        self.served = 0
        self._buffer = bytearray()
        self._confined = False

    def send(self, tree: Tree, until: float | None = None) -> None:
        """A frame to the program; letters matter only on the way out."""
        self.send_bodies([dumps(tree)], until)

    def send_bodies(self, bodies: Sequence[bytes], until: float | None = None) -> None:
        """Send frames of trees that are already bytes."""
        view = memoryview(b"".join((len(body) + 1).to_bytes(4, "big") + b"h" + body for body in bodies))
        while view:
            self._set_socket_timeout(until)
            try:
                view = view[self.channel.send(view) :]
            except TimeoutError:
                raise RunEnded("timed out", "it did not read its input") from None
            except OSError:
                raise RunEnded(None) from None

    def receive(self, until: float | None = None) -> tuple[str, bytes]:
        """The next frame: its letter, and its tree as unparsed bytes. `until` moves by what the confinement took."""
        waited = self.await_confinement()
        return self._frame(until if until is None else until + waited)

    def await_confinement(self) -> float:
        """Wait until trusted code confirms the confinement, before the program begins; the seconds that this took.

        Raises `WorkerLost` where it does not.
        """
        if self._confined:
            return 0.0
        began = time.monotonic()
        self.channel.settimeout(CONFINEMENT_SECONDS + GRACE_SECONDS)
        try:
            while len(self._buffer) < len(CONFINED_FRAME) and (piece := self.channel.recv(1 << 16)):
                self._buffer += piece
        except OSError:
            pass
        if not self._buffer.startswith(CONFINED_FRAME):
            reason = self._buffer[5:300].decode(errors="replace") or "its process ended, or took too long, before that"
            raise WorkerLost(f"a run could not be confined: {reason}")
        del self._buffer[: len(CONFINED_FRAME)]
        self._confined = True
        self.deadline = time.monotonic() + self._wall
        return time.monotonic() - began

    def _frame(self, until: float | None) -> tuple[str, bytes]:
        size = int.from_bytes(self._receive_exactly(4, until), "big")
        if not 1 <= size <= self.limits.output_bytes:
            raise (
                RunEnded("too much output", f"a reply of {size} bytes")
                if size
                else RunEnded("malformed", "an empty reply")
            )
        body = self._receive_exactly(size, until)
        return chr(body[0]), body[1:]

    def _receive_exactly(self, count: int, until: float | None) -> bytes:
        while len(self._buffer) < count:
            self._set_socket_timeout(until)
            try:
                piece = self.channel.recv(1 << 16)
            except TimeoutError:
                raise RunEnded("timed out") from None
            except OSError:
                raise RunEnded(None) from None
            if not piece:
                raise RunEnded(None)
            self._buffer += piece
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _set_socket_timeout(self, until: float | None) -> None:
        left = min(self.deadline, until if until is not None else self.deadline) - time.monotonic()
        if left <= 0:
            raise RunEnded("timed out")
        self.channel.settimeout(left)

    def pump_streams(self, feed: bytes, stdin: int, outputs: Sequence[int]) -> tuple[bytes, bytes, bool]:
        """Feed stdin and gather stdout and stderr until they are closed; True where there was too much of it.

        Closes the descriptors.
        """
        gathered = {fd: bytearray() for fd in outputs}
        reading, feeding = set(outputs), True
        events = select.poll()  # which, unlike select, takes descriptors beyond 1023
        for fd in (stdin, *outputs):
            os.set_blocking(fd, False)
            events.register(fd, select.POLLOUT if fd == stdin else select.POLLIN)
        view, over = memoryview(feed), False
        try:
            while reading and not over and (left := self.deadline - time.monotonic()) > 0:
                if feeding and not view:
                    feeding = False
                    events.unregister(stdin)
                    os.close(stdin)
                for fd, _ in events.poll(left * 1000 + 1):
                    if fd == stdin:
                        view = view[_write(stdin, view) :]
                        continue
                    piece = os.read(fd, 1 << 16)
                    gathered[fd] += piece
                    over = over or len(gathered[fd]) > self.limits.output_bytes
                    if not piece:
                        reading.discard(fd)
                        events.unregister(fd)
        finally:
            for fd in (*outputs, *([stdin] if feeding else [])):
                os.close(fd)
        out, err = (bytes(gathered[fd]) for fd in (outputs[0], outputs[-1]))
        return out, err if len(outputs) > 1 else b"", over

    def end_without_waiting(self) -> None:
        """End the run, without waiting until its process is gone."""
        try:
            self.worker.stop_without_waiting(self.number, self.limits)
        finally:
            self.channel.close()

    def wait_for_exit(self, stop: bool) -> RunExit:
        """How it ended; with `stop`, end it first."""
        try:
            if stop:
                self.worker.stop()
            return self.worker.report(self.number, self.limits, max(self.deadline, time.monotonic()) + GRACE_SECONDS)
        finally:
            self.channel.close()


def _write(descriptor: int, view: memoryview) -> int:
    """How many bytes need no further writing: all, where the reader is gone."""
    try:
        return os.write(descriptor, view[: 1 << 16])
    except BlockingIOError:
        return 0
    except OSError:
        return len(view)


def read_tree(body: bytes) -> Tree:
    """The tree in a frame; raises `RunEnded` where it is malformed."""
    try:
        return loads(body)
    except NotPlainData as error:
        raise RunEnded("malformed", str(error)) from None
