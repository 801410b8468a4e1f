"""The process of a replica, as its learner holds it: a child on two pipes, or one in a slot that connects by TCP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ponder import rank_env
from ponder.cluster.handshake import ReplicaListener
from ponder.cluster.places import Place, Slot, how_it_ended
from ponder.cluster.process_host import PIPE_VARIABLE
from ponder.errors import PonderError

REPLICA_MODULE = "ponder.models.replicas.replica_main"
_POLL_SECONDS = 0.2
_REAP_SECONDS = 0.01
_OUTPUT_SECONDS = 2.0  # between two looks at what a process in a slot wrote
_END_SECONDS = (
    40.0  # that a killed process in a slot may take to be gone: the deadline of a call to its place, and more
)


class ReplicaProcess(Protocol):
    """A process that runs, or has run."""

    pid: int
    reader: asyncio.StreamReader

    def send(self, data: bytes) -> None: ...
    def kill(self) -> None: ...
    def cut(self) -> None:
        """Close the wire to it."""
        ...

    async def wait(self) -> str:
        """Until it has ended: how."""
        ...


class ChildProcess:
    """A child of this process. It reads standard input and writes standard output; errors go to the log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._writer = process, process.stdin
        self.reader, self.pid = process.stdout, process.pid

    @classmethod
    async def start(cls, log: Path, module: str) -> ChildProcess:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=file, env=_child_environment(),
                start_new_session=True,  # a Ctrl-C is for the learner, which finishes its step first
            )  # fmt: skip
        return cls(process)

    def send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def cut(self) -> None:
        self._writer.close()

    async def wait(self) -> str:
        # Not Process.wait: with some versions of Python it waits for the pipes, too, which are not read any more, or
        # which a process that this one started holds open.
        while self._process.returncode is None:
            await asyncio.sleep(_REAP_SECONDS)
        return how_it_ended(self._process.returncode)


async def open_child(index: int, log: Path, module: str = REPLICA_MODULE) -> ReplicaProcess:
    return await ChildProcess.start(log, module)


class ProcessEnded(PonderError):
    """A process ended before it connected."""

    def __init__(self, ended: str) -> None:
        super().__init__(ended)
        self.ended = ended


class SlotProcess:
    """A process in a slot of a place, connected by TCP. What it writes is appended to the log here."""

    def __init__(self, slot: Slot, pid: int, log: Path) -> None:
        self.pid, self._slot, self._log = pid, slot, log
        self.reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None
        self._ended = ""
        self._kills: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()  # of its output, by one at a time
        self._logger = asyncio.create_task(self._keep_log())

    @classmethod
    async def start(
        cls,
        place: Place,
        listener: ReplicaListener,
        name: str,
        gpu: bool,
        log: Path,
        module: str = REPLICA_MODULE,
        size: int = 1,
    ) -> SlotProcess:
        """Reserve a slot, start the process, and wait until it has connected. The caller sets the deadline. `size`:
        CPUs and GPUs of the slot."""
        reservation = Reservation(place, gpu, size)
        try:
            slot = await asyncio.to_thread(reservation.make)
        except BaseException:
            reservation.give_up()
            raise
        variables, connection = listener.expect(name)
        process = None
        try:
            process = cls(slot, await asyncio.to_thread(slot.start, ["-m", module], variables), log)
            while not connection.done():
                if (code := await process._poll()) is not None:
                    raise ProcessEnded(_in_words(slot, code))
                await asyncio.wait([connection], timeout=_POLL_SECONDS)
            process.reader, process._writer = connection.result()
            return process
        except BaseException:
            connection.cancel()
            if process is not None:
                process._logger.cancel()
            await asyncio.shield(asyncio.to_thread(slot.release))
            raise

    def send(self, data: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    def kill(self) -> None:
        task = asyncio.create_task(asyncio.to_thread(self._slot.send_signal, signal.SIGKILL))
        self._kills.add(task)
        task.add_done_callback(self._kills.discard)

    def cut(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def wait(self) -> str:
        deadline = time.monotonic() + _END_SECONDS
        while not self._ended:
            code = await self._poll()
            if code is not None or time.monotonic() > deadline:
                self._ended = _in_words(self._slot, code)
            else:
                await asyncio.sleep(_POLL_SECONDS)
        self._logger.cancel()
        self.cut()
        await asyncio.shield(asyncio.to_thread(self._slot.release))
        return self._ended

    async def _poll(self) -> int | None:
        """Whether it has ended; what it wrote meanwhile is in the log."""
        async with self._reading:
            code, (out, err) = await asyncio.to_thread(lambda: (self._slot.poll(), self._slot.read_output()))
            if out or err:
                with self._log.open("ab") as file:
                    file.write(out + err)
            return code

    async def _keep_log(self) -> None:
        while True:
            await asyncio.sleep(_OUTPUT_SECONDS)
            await self._poll()


class Reservation:
    """A slot that a thread reserves. One that comes after its caller gave up is released at once."""

    def __init__(self, place: Place, gpu: bool, size: int = 1) -> None:
        self._place, self._gpu, self._size = place, gpu, size
        self._lock, self._given_up = threading.Lock(), False
        self._slot: Slot | None = None

    def make(self) -> Slot:
        (slot,) = self._place.reserve(1, gpu=self._gpu, spread=True, size=self._size)
        with self._lock:
            self._slot = slot
            if self._given_up:
                slot.release()
        return slot

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            if self._slot is not None:
                threading.Thread(target=self._slot.release).start()


def _in_words(slot: Slot, code: int | None) -> str:
    return slot.lost_reason or how_it_ended(code)


def _child_environment() -> dict[str, str]:
    """This process's own, with its import path and all GPUs, and without its place among ranks."""
    path = os.pathsep.join(p for p in sys.path if p)
    own = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", PIPE_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, **rank_env.child_gpus(), "PYTHONPATH": path}
