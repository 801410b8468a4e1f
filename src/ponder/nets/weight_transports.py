"""Ways for weights from one process to another: a safetensors file, shared memory, CUDA IPC, TCP (tcp_weights.py), and
to several at once by broadcast (broadcast_weights.py).

Each has one buffer of bytes that the publisher fills, and a place, plain JSON, at which another process finds it. A
version stays there until the next one is begun.
"""

from __future__ import annotations

import base64
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ponder import rank_env
from ponder.errors import ModelError, UnknownName, UsageError
from ponder.nets.broadcast_weights import BROADCAST, BroadcastReceiver, BroadcastTransport
from ponder.nets.tcp_weights import TcpTransport, fetch_buffer

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor of a version: what it is, and where in the buffer."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def view(self, buffer: Tensor) -> Tensor:
        """This tensor in a buffer of bytes, not copied."""
        flat = buffer[self.offset : self.offset + self.nbytes]
        return flat.view(getattr(torch, self.dtype)).view(self.shape)


class WeightTransport(Protocol):
    """The publisher's end."""

    name: ClassVar[str]
    device: torch.device  # of the buffer

    def begin(self, nbytes: int) -> Tensor:
        """The buffer, of at least so many bytes. What was published before may be gone."""
        ...

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        """The buffer is full: where a reader finds it."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class FileTransport:
    """A safetensors file in a folder that both processes see: works everywhere, over a network file system too."""

    name: ClassVar[str] = "file"
    device = torch.device("cpu")

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._written: list[Path] = []

    def begin(self, nbytes: int) -> Tensor:
        if len(self._buffer) < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        return self._buffer

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"version-{version}.safetensors"
        unfinished = path.with_suffix(".unfinished")
        save_file({place.name: place.view(self._buffer) for place in places}, unfinished)
        unfinished.replace(path)
        self._remove_written([path])
        self._written = [path]
        return {"path": str(path.resolve())}

    def close(self) -> None:
        self._remove_written([])

    def _remove_written(self, keep: Sequence[Path]) -> None:
        for path in self._written:
            if path not in keep:
                path.unlink(missing_ok=True)


class SharedMemoryTransport:
    """Memory without a name (memfd), which other processes of this user open through /proc: nothing is left behind when
    the publisher is killed. Linux only."""

    name: ClassVar[str] = "shared_memory"
    device = torch.device("cpu")

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise UsageError("weights in shared memory need Linux: publish them as files")
        self._fd, self._map, self._buffer = -1, mmap.mmap(-1, 1), torch.empty(0, dtype=torch.uint8)

    def begin(self, nbytes: int) -> Tensor:
        if len(self._buffer) < nbytes:
            self.close()
            self._fd = os.memfd_create("ponder-weights", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, nbytes)
            self._map = mmap.mmap(self._fd, nbytes)
            self._buffer = torch.frombuffer(self._map, dtype=torch.uint8)
        return self._buffer

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}", "nbytes": len(self._buffer)}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._buffer = -1, torch.empty(0, dtype=torch.uint8)


class CudaIpcTransport:
    """Memory of a GPU that another process on the same machine opens: no byte goes through the host."""

    name: ClassVar[str] = "cuda_ipc"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._place: dict[str, Any] = {}

    def begin(self, nbytes: int) -> Tensor:
        if len(self._buffer) < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            gpu, *handle = self._buffer.untyped_storage()._share_cuda_()
            fields = [rank_env.gpu_for_child(gpu), *map(_encode_field, handle)]  # read by children of this process
            self._place = {"fields": fields, "nbytes": nbytes}
        return self._buffer

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        # Readers do not wait for this stream. Only it is waited for: another thread may be capturing a graph.
        torch.cuda.current_stream(self.device).synchronize()
        return dict(self._place)

    def close(self) -> None:
        self._buffer, self._place = torch.empty(0, dtype=torch.uint8, device=self.device), {}


def _encode_field(value: Any) -> Any:
    """A part of torch's handle as JSON. Bytes are told apart from numbers by their form."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _decode_field(value: Any) -> Any:
    return base64.b64decode(value["bytes"]) if isinstance(value, Mapping) else value


class BufferReader:
    """The reader's end of all transports. It keeps the last buffer open: the publisher fills the same one again."""

    def __init__(self, device: torch.device) -> None:
        self._key = ""
        self.receiver = BroadcastReceiver(device)
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self._places: Sequence[TensorPlace] = ()
        self._views: dict[str, Tensor] = {}

    def read(self, transport: str, source: Mapping[str, Any], places: Sequence[TensorPlace]) -> dict[str, Tensor]:
        """The tensors, by name. Those of a buffer are views, which the next version overwrites."""
        try:
            if transport == FileTransport.name:
                tensors = load_file(source["path"])
                return {place.name: tensors[place.name] for place in places}
            key = f"{transport} {source}"
            if key != self._key:
                before = self.buffer
                self.buffer = (
                    self.receiver.receive(source) if transport == BROADCAST else _open_buffer(transport, source)
                )
                self._key, self._places = key, self._places if self.buffer is before else ()
            if places != self._places:
                self._views = {place.name: place.view(self.buffer) for place in places}
                self._places = places
            return dict(self._views)
        except (OSError, KeyError, ValueError, SafetensorError) as reason:
            raise ModelError(f"published weights cannot be read from {dict(source)!s:.200}: {reason!s:.200}") from None


def _open_buffer(transport: str, source: Mapping[str, Any]) -> Tensor:
    if transport == SharedMemoryTransport.name:
        fd = os.open(source["path"], os.O_RDWR)
        try:
            return torch.frombuffer(mmap.mmap(fd, source["nbytes"]), dtype=torch.uint8)
        finally:
            os.close(fd)
    if transport == CudaIpcTransport.name:
        torch.cuda.init()
        fields = [_decode_field(x) for x in source["fields"]]
        storage = torch.UntypedStorage._new_shared_cuda(*fields)
        device = torch.device("cuda", fields[0])
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[: source["nbytes"]]
    if transport == TcpTransport.name:
        return fetch_buffer(source)
    raise UnknownName("weight transport", transport, TRANSPORTS)


TRANSPORTS = (FileTransport.name, SharedMemoryTransport.name, CudaIpcTransport.name, TcpTransport.name, BROADCAST)
TransportName = Literal["auto", "cuda_ipc", "shared_memory", "broadcast", "tcp", "file"]


def open_transport(
    name: TransportName,
    device: torch.device,  # of the learner
    folder: Path,  # for files
    host: str | None,  # of the learner, as replicas on other machines reach it; None: all are on this one
    replicas: int,
) -> WeightTransport:
    """The transport with this name. `auto`: on one machine the fastest that works there; to other machines a broadcast
    where there are several replicas, else TCP."""
    if name not in get_args(TransportName):
        raise UnknownName("weight transport", name, get_args(TransportName))
    if name == "auto":
        if host is None:
            return pick_transport(device, folder)
        name = "broadcast" if replicas > 1 and torch.distributed.is_available() else "tcp"
    if name == "file":
        return FileTransport(folder)
    if name == "tcp":
        return TcpTransport(host or LOOPBACK)
    if name == "broadcast":
        if not torch.distributed.is_available():
            raise UsageError("this torch has no torch.distributed: publish weights by tcp")
        return BroadcastTransport(
            host or LOOPBACK, device, FileTransport(folder) if host is None else TcpTransport(host)
        )
    if host is not None:
        raise UsageError(f"{name} is for replicas of this machine: on a cluster give broadcast, tcp or file")
    if name == "shared_memory":
        return SharedMemoryTransport()
    if device.type != "cuda":
        raise UsageError(f"cuda_ipc needs a learner on a GPU: this one is on {device.type}")
    return CudaIpcTransport(device)


def pick_transport(device: torch.device, folder: Path) -> WeightTransport:
    """The fastest between processes of this machine that works."""
    if device.type == "cuda":
        ipc = CudaIpcTransport(device)
        try:
            ipc.begin(1)
            return ipc
        except RuntimeError:  # such as with expandable segments in torch's allocator: through the host instead
            pass
    return SharedMemoryTransport() if sys.platform.startswith("linux") else FileTransport(folder)
