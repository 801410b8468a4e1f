"""Weights to several processes at once: the publisher's buffer by broadcast, in a process group of their own.

The learner is rank 0 of the group, its replicas are the others. It is no part of torch's default group, which may be
the learner's own: it has its own store, on a port of the learner, and a prefix that only the manifests carry. Where
each member has a GPU of its own it is NCCL's; else gloo's, through host memory. Before a version is sent, each member
says in the store that it waits for it, so a member that is lost before then costs no deadline. What fails ends the
group: the version goes another way, and the next one begins another group.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ponder.errors import ModelError
from ponder.local_http import bind

if TYPE_CHECKING:
    from ponder.nets.weight_transports import TensorPlace, WeightTransport

BROADCAST = "broadcast"
BUCKET_BYTES = 128 << 20  # of one collective
_POLL_SECONDS = 0.005
_SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"  # with which NCCL 2.30 takes several processes on one GPU
_LOOK_SECONDS = 0.25  # between two looks of a receiver whether the learner has stopped a broadcast
_OWN_END_SECONDS = 2.0  # that gloo may take to notice the deadline itself, with a better reason
_STOP, _STOPPED = b"stop", "the learner has stopped it"
# NCCL's watchdog would end the process of the learner for a replica that is lost.
_NCCL_VARIABLES = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class BroadcastFailed(ModelError):
    """A version did not come, or not to all: the group could not be made, or a member of it was lost."""


class BroadcastTransport:
    """The publisher's end. A version is committed, then `invite` says who receives it and what each is to be told, and
    `send` sends it, in a thread: it returns or raises within the deadlines, whatever receivers do."""

    name: ClassVar[str] = BROADCAST

    def __init__(
        self,
        host: str,
        device: torch.device,
        fallback: WeightTransport,  # shares its buffer where that is on the same device
    ) -> None:
        self.device, self.fallback, self._host = device, fallback, host
        self.seconds = 30.0  # that one collective may take
        self.wait_seconds = 150.0  # until all wait for a version
        self._secret = secrets.token_hex(32)
        self._store: Any = None
        self._port = 0
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._nbytes, self._version = 0, -1
        self._members: tuple[str, ...] = ()
        self.generation = 0  # of the group
        self._group: _Group | None = None
        self._nccl_works, self._nccl_worked = True, False
        self._stopped = threading.Event()
        self._why = ""

    @property
    def backend(self) -> str:
        """Of the group; empty: there is none."""
        return self._group.backend if self._group is not None else ""

    def begin(self, nbytes: int) -> Tensor:
        self._nbytes = nbytes  # with what lies between tensors, which sums of blocks count
        if self.device.type == "cpu":
            self._buffer = self.fallback.begin(nbytes)
        elif len(self._buffer) < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return self._buffer

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self._version = version
        return {"nbytes": self._nbytes}  # and what `invite` adds

    def committed(self, places: Sequence[TensorPlace]) -> dict[str, Tensor]:
        """The tensors of the version, to publish them another way."""
        return {place.name: place.view(self._buffer) for place in places}

    def invite(self, members: Sequence[str]) -> list[dict[str, Any]]:
        """The source of the version for each receiver. A name is of one process: other names make another group."""
        self._stopped.clear()
        self._open_store()
        if tuple(members) != self._members or self._group is None:
            self._drop_group()
            self.generation, self._members = self.generation + 1, tuple(members)
        told = {
            "address": [self._host, self._port], "secret": self._secret, "generation": self.generation,
            "version": self._version, "size": len(members) + 1, "nbytes": self._nbytes,
            "seconds": self.seconds, "wait_seconds": self.wait_seconds,
        }  # fmt: skip
        return [{**told, "rank": rank} for rank in range(1, len(members) + 1)]

    def send(self) -> None:
        """Send the version to those who are invited. Raises `BroadcastFailed` where one of them may not have it."""
        store = _prefixed(self._store, self._secret, self.generation)
        go, backend = f"{self._version}/go", ""
        try:
            ready = [f"{self._version}/ready/{rank}" for rank in range(1, len(self._members) + 1)]
            self._await_members(store, ready)
            backend = self.backend or self._pick_backend([store.get(key).decode() for key in ready])
            store.set(go, backend)
            if self._group is None:
                self._group = _Group(
                    backend, store, 0, len(self._members) + 1, self._host, self.seconds, self._buffer.device
                )
            self._group.broadcast(self._buffer, self._nbytes, self._stopped_reason)
            self._nccl_worked |= backend == "nccl"
        except BaseException as error:
            with suppress(RuntimeError):
                store.set(go, _STOP)
            if backend == "nccl" and not self._nccl_worked:
                self._nccl_works = False  # gloo may
            self._drop_group()
            if isinstance(error, RuntimeError) and not isinstance(error, BroadcastFailed):
                raise BroadcastFailed(_in_a_line(error)) from error
            raise

    def stop(self, why: str) -> None:
        """From another thread: not all will receive the version. It goes to nobody, unless it is there already."""
        self._why = _in_a_line(why)
        self._stopped.set()

    def _stopped_reason(self) -> str:
        return self._why if self._stopped.is_set() else ""

    def close(self) -> None:
        self._drop_group()
        self._store = None
        self.fallback.close()

    def _open_store(self) -> None:
        if self._store is not None:
            return
        from torch._C._distributed_c10d import TCPStore  # a torch without distributed has none

        listener = bind(self._host, 0)  # on this address alone, where the store's own would be on all
        self._port = listener.getsockname()[1]
        self._store = TCPStore(
            self._host, self._port, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=self.seconds), master_listen_fd=listener.detach(),
        )  # fmt: skip

    def _await_members(self, store: Any, ready: Sequence[str]) -> None:
        until = time.monotonic() + self.wait_seconds
        while not store.check(list(ready)):
            if self._stopped.wait(_POLL_SECONDS):
                raise BroadcastFailed(self._why)
            if time.monotonic() > until:
                absent = [name for name, key in zip(self._members, ready, strict=True) if not store.check([key])]
                raise BroadcastFailed(f"{', '.join(absent)} did not come within {self.wait_seconds:g} seconds")

    def _pick_backend(self, gpus: Sequence[str]) -> str:
        """NCCL where each member has a GPU of its own."""
        gpus = [gpu_name(self.device), *gpus]
        own = len(set(gpus)) == len(gpus) or os.environ.get(_SHARED_GPU_VARIABLE) == "1"
        return "nccl" if self._nccl_works and all(gpus) and own and torch.distributed.is_nccl_available() else "gloo"

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group, self._members = None, ()


class BroadcastReceiver:
    """The reader's end: a member of the group, anew where the group is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._address: tuple[str, int] = ("", 0)
        self._store: Any = None
        self._group: _Group | None = None
        self._generation = -1

    def reserve(self, nbytes: int) -> None:
        """Have the buffer now: later there may be no memory for it."""
        if len(self.buffer) < nbytes:
            self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def receive(self, source: Mapping[str, Any]) -> Tensor:
        """The bytes of a version. Raises `BroadcastFailed` where they do not come."""
        self.reserve(source["nbytes"])
        try:
            store = self._join(source)
            version, rank, seconds = source["version"], source["rank"], source["seconds"]
            store.set(f"{version}/ready/{rank}", gpu_name(self.device))
            store.wait([f"{version}/go"], timedelta(seconds=source["wait_seconds"] + seconds))
            if (said := store.get(f"{version}/go")) == _STOP:
                raise BroadcastFailed(_STOPPED)
            if self._group is None:
                own = _own_address(*self._address)
                self._group = _Group(said.decode(), store, rank, source["size"], own, seconds, self.device)
            self._group.broadcast(self.buffer, source["nbytes"], _LookForStop(store, f"{version}/go"))
            return self.buffer
        except BaseException as error:
            self._drop_group()
            if self.device.type == "cpu":  # a bucket of the group that ends may still come, into the old memory
                self.buffer = torch.empty(0, dtype=torch.uint8)
            if isinstance(error, (RuntimeError, OSError)) and not isinstance(error, BroadcastFailed):
                raise BroadcastFailed(_in_a_line(error)) from error
            raise

    def _join(self, source: Mapping[str, Any]) -> Any:
        from torch._C._distributed_c10d import TCPStore  # a torch without distributed has none

        address = (source["address"][0], source["address"][1])
        if self._store is None or address != self._address:
            seconds = timedelta(seconds=source["seconds"])
            self._store, self._address = TCPStore(*address, is_master=False, timeout=seconds), address
        if source["generation"] != self._generation:
            self._drop_group()
            self._generation = source["generation"]
        return _prefixed(self._store, source["secret"], source["generation"])

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


class _LookForStop:
    """In a receiver that waits: has the learner stopped it? Asks the store now and then. Empty: no."""

    def __init__(self, store: Any, go: str) -> None:
        self._store, self._go, self._next = store, go, time.monotonic() + _LOOK_SECONDS

    def __call__(self) -> str:
        if time.monotonic() < self._next:
            return ""
        self._next = time.monotonic() + _LOOK_SECONDS
        return _STOPPED if self._store.get(self._go) == _STOP else ""


class _Group:
    """Rank 0 sends, the others receive."""

    def __init__(
        self, backend: str, store: Any, rank: int, size: int, host: str, seconds: float, device: torch.device
    ) -> None:
        self.backend, self._rank, self._seconds = backend, rank, seconds
        self._buckets: list[Tensor] = []  # of host memory, where the buffer is on a GPU and gloo sends
        # What the learner has queued on its own stream is not waited for.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        try:
            if backend == "nccl":
                with _nccl_variables(), torch.cuda.device(device):
                    self._group = _open_nccl(store, rank, size, seconds)
            else:
                self._group = _open_gloo(store, rank, size, host, seconds)
        except RuntimeError as error:
            raise BroadcastFailed(f"a group by {backend} cannot be made: {_in_a_line(error)}") from error

    def broadcast(self, buffer: Tensor, nbytes: int, stopped: Callable[[], str] = str) -> None:
        """Fill the buffer with rank 0's. Two buckets are on their way at a time. `stopped`: why not to wait on."""
        with torch.cuda.stream(self._stream):
            self._broadcast(buffer, nbytes, stopped)

    def _broadcast(self, buffer: Tensor, nbytes: int, stopped: Callable[[], str]) -> None:
        parts = buffer[:nbytes].split(BUCKET_BYTES)
        on_the_way: list[tuple[Any, Tensor, Tensor]] = []
        try:
            for i, part in enumerate(parts):
                if len(on_the_way) == 2:
                    self._finish(*on_the_way[0], stopped)
                    del on_the_way[0]
                sent = self._bucket(part, i % 2)
                if self._rank == 0 and sent is not part:
                    sent.copy_(part)
                on_the_way.append((self._group.broadcast(sent, 0), sent, part))
            while on_the_way:
                self._finish(*on_the_way[0], stopped)
                del on_the_way[0]
        except Exception as error:
            if self.backend == "gloo":  # what is on its way ends by itself, and until then there is its group
                threading.Thread(target=self._let_end, args=(on_the_way,), name="weights", daemon=True).start()
            if isinstance(error, RuntimeError):
                raise BroadcastFailed(f"a broadcast by {self.backend} failed: {_in_a_line(error)}") from error
            raise

    def _let_end(self, on_the_way: Sequence[tuple[Any, Tensor, Tensor]]) -> None:
        """The end of the group would wait for it, too, but with Python's lock."""
        for work, *_ in on_the_way:
            with suppress(RuntimeError):
                work.wait()

    def close(self) -> None:
        if self.backend == "nccl":  # also what waits on the GPU for a member that is lost
            threading.Thread(target=self._group.abort, name="weights", daemon=True).start()

    def _bucket(self, part: Tensor, which: int) -> Tensor:
        """What is sent: the part itself, or host memory for it."""
        if self.backend == "nccl" or part.device.type == "cpu":
            return part
        if len(self._buckets) == which:
            size = min(BUCKET_BYTES, part.untyped_storage().nbytes())
            self._buckets.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
        return self._buckets[which][: len(part)]

    def _finish(self, work: Any, sent: Tensor, part: Tensor, stopped: Callable[[], str]) -> None:
        self._wait(work, stopped)
        if self._rank != 0 and sent is not part:
            part.copy_(sent)

    def _wait(self, work: Any, stopped: Callable[[], str]) -> None:
        until = time.monotonic() + self._seconds + (_OWN_END_SECONDS if self.backend == "gloo" else 0.0)
        while not work.is_completed():
            if why := stopped():
                raise BroadcastFailed(why)
            if time.monotonic() > until:
                raise BroadcastFailed(f"a broadcast by {self.backend} took longer than {self._seconds:g} seconds")
            time.sleep(_POLL_SECONDS / 10)
        work.wait()  # raises what failed


def gpu_name(device: torch.device) -> str:
    """The same in all processes that see the GPU; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _prefixed(store: Any, secret: str, generation: int) -> Any:
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(f"{secret}/{generation}", store)


def _open_gloo(store: Any, rank: int, size: int, host: str, seconds: float) -> Any:
    from torch._C._distributed_c10d import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout, options._threads = timedelta(seconds=seconds), 2
    return gloo(store, rank, size, options)


def _open_nccl(store: Any, rank: int, size: int, seconds: float) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options: Any = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seconds)
    return ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def _nccl_variables() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _NCCL_VARIABLES}
    os.environ.update(_NCCL_VARIABLES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _own_address(host: str, port: int) -> str:
    """Of this machine, as the one with this address sees it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _in_a_line(error: BaseException | str) -> str:
    return str(error).strip().partition("\n")[0][:300]
