"""A place has slots, a slot runs one process at a time. Jobs start, watch and end their processes through these alone.

`LocalPlace` has them on this machine; `RayPlace` on the machines of a cluster (see ray_place.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ponder import rank_env
from ponder.cluster.process_host import ProcessHost, free_port, import_path

LOCAL = "local"  # the address that means this machine, without Ray
LOST = -1000  # the exit code of a process whose machine, or whose Ray actor, is gone


class Slot(Protocol):
    """Room for one process. Calls may take a moment, and have deadlines; a slot that is gone says so by `poll`."""

    host: str  # the address of its machine
    lost_reason: str  # why poll says `LOST`

    def free_port(self) -> int: ...
    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: str = "") -> int:
        """Start the interpreter with these arguments; the process before is ended. Returns its number."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Output is complete when it has ended."""
        ...

    def read_output(self) -> tuple[bytes, bytes]:
        """What it wrote to standard output and error since the last call."""
        ...

    def send_signal(self, number: int) -> None: ...
    def release(self) -> None:
        """Kill the process and give the room back."""
        ...


class Place(Protocol):
    host: str  # the address of this machine, by which the processes of the place reach it
    own_gpus: bool  # a process sees the GPU that was reserved for it, and no other

    @property
    def has_gpus(self) -> bool: ...

    def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1) -> Sequence[Slot]:
        """Room for so many processes, each with a GPU of its own or without one; all of it, or an error.
        `spread`: on as many machines as there are, else on as few. `size`: CPUs, and GPUs, of each process."""
        ...

    def close(self) -> None: ...


class LocalSlot:
    lost_reason = ""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self._process, self._offsets = ProcessHost(), (0, 0)

    def free_port(self) -> int:
        return free_port(self.host)

    def start(self, argv: Sequence[str], environment: Mapping[str, str], folder: str = "") -> int:
        self._offsets = (0, 0)
        return self._process.start(argv, {**rank_env.child_gpus(), "PYTHONPATH": import_path(), **environment}, folder)

    def poll(self) -> int | None:
        return self._process.poll()

    def read_output(self) -> tuple[bytes, bytes]:
        (out_end, out), (err_end, err) = self._process.read(*self._offsets)
        self._offsets = (out_end, err_end)
        return out, err

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def release(self) -> None:
        self._process.end()


class LocalPlace:
    """This machine: as many processes as are asked for."""

    host = "127.0.0.1"
    own_gpus = False
    has_gpus = False  # none to reserve

    def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1) -> list[LocalSlot]:
        return [LocalSlot() for _ in range(count)]

    def close(self) -> None:
        pass


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "it runs"
    if code == LOST:
        return "its place on the cluster is gone"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
