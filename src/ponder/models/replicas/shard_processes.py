"""The other shards of a replica whose network is split, as its first process starts, feeds and watches them.

A shard is a child process on two pipes: messages are JSON with their length before it, and then the bytes of arrays.
One that ends, or does not take part in a pass within the deadline, ends the replica, which is started again as any
other that is lost: shards that are not in step any more cannot go on.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import torch

from ponder.cluster.places import how_it_ended
from ponder.cluster.process_host import import_path
from ponder.errors import ModelError
from ponder.nets.publish_weights import WeightManifest
from ponder.nets.shard_group import join_shards, pick_backend
from ponder.nets.tensor_parallel import DecoderShard

SHARD_MODULE = "ponder.models.replicas.shard_main"
_HEAD = struct.Struct(">QQ")  # bytes of the JSON, and of what follows it
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 1.0  # between a closed connection and the end of the process that had it


class ShardLost(ModelError):
    """A shard of a split network ended, failed, or did not take part in time."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a replica is split, as its learner says it."""

    devices: tuple[str, ...]  # of each shard; the first is the replica's own
    deadline: float  # seconds that shards wait for each other in a pass
    start: float  # and until all have built their networks
    load: float  # and new weights

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def backend(self) -> str:
        return pick_backend([torch.device(name) for name in self.devices])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "devices": list(self.devices)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShardSettings:
        return cls(tuple(data["devices"]), data["deadline"], data["start"], data["load"])


class ShardProcesses:
    """The shards from 1 on. `on_lost` is called, once, in any thread, before an error is raised. Start it in a thread
    that lives as long as they shall: Linux ends them with it."""

    def __init__(self, how: ShardSettings, on_lost: Callable[[ShardLost], None] = lambda error: None) -> None:
        self.how, self.count, self.deadline, self._on_lost = how, how.count, how.deadline, on_lost
        self.store, self._close_store = _open_store()
        self._lost: ShardLost | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._children = [self._start() for _ in range(1, how.count)]
        for child in self._children:
            os.set_blocking(_pipe(child.stdin).fileno(), False)  # one that is stopped reads nothing
        self._replies: list[queue.Queue[dict[str, Any]]] = [queue.Queue() for _ in self._children]
        for index in range(len(self._children)):
            threading.Thread(target=self._read, args=(index,), name=f"shard {index + 1}", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", SHARD_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([import_path(), *filter(None, sys.path)])},
        )  # it calls `end_with_parent` itself: a `preexec_fn` has to copy this process's memory map, which can fail

    def open(self, settings: Mapping[str, Any]) -> None:
        """Tell each what it is. It answers when it has built its network."""
        for index in range(len(self._children)):
            own = {
                "kind": "open", **settings, "rank": index + 1, "count": self.count, "store": str(self.store),
                "device": self.how.devices[index + 1], "backend": self.how.backend, "deadline": self.deadline,
            }  # fmt: skip
            self._write(index, pack_message(own))

    def connect(self, net: DecoderShard) -> None:
        """Join the group with the network of the first shard, which leads the others from now on."""
        self.collect_replies(self.how.start)
        self.send({"kind": "join"})
        try:
            net.all_reduce = join_shards(net.shard, self.store, self.how.backend, net.device, self.deadline)
        except RuntimeError as error:
            self.fail(error)
        self.collect_replies()
        net.followers = self

    def load_weights(self, manifest: WeightManifest, load: Callable[[], None]) -> None:
        """Let all load a version, and this process by `load`. No pass may run meanwhile."""
        self.send({"kind": "weights", "manifest": manifest.to_json()})
        load()
        self.collect_replies(self.how.load)

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        packed = pack_message(message, body)
        for index in range(len(self._children)):
            self._write(index, packed)

    def collect_replies(self, seconds: float | None = None) -> list[dict[str, Any]]:
        """One reply of each, within the deadline."""
        seconds, replies = self.deadline if seconds is None else seconds, []
        for index, waiting in enumerate(self._replies):
            try:
                replies.append(waiting.get(timeout=seconds))
            except queue.Empty:
                self.fail(ShardLost(f"{self._name(index)} did not answer for {seconds:g} seconds"))
            if replies[-1]["kind"] == "lost":
                self.fail(ShardLost(replies[-1]["error"]))
        return replies

    def fail(self, error: BaseException) -> NoReturn:
        """The shards are not in step any more: say why, and raise it."""
        with self._lock:
            if self._lost is None:
                self._lost = error if isinstance(error, ShardLost) else ShardLost(self._reason(error))
                self._on_lost(self._lost)
        raise self._lost from (None if error is self._lost else error)

    def close(self) -> None:
        """End the shards."""
        self._closed = True
        for child in self._children:
            child.kill()
            child.wait()
            _pipe(child.stdin).close()
        self._close_store()

    def _name(self, index: int) -> str:
        return f"shard {index + 1} of {self.count} (process {self._children[index].pid})"

    def _reason(self, error: BaseException) -> str:
        until = time.monotonic() + _END_SECONDS
        while time.monotonic() < until:
            for index, child in enumerate(self._children):
                if (code := child.poll()) is not None:
                    return f"{self._name(index)} is lost: {how_it_ended(code)}"
            time.sleep(0.01)
        return f"a pass over {self.count} shards failed, which wait {self.deadline:g} seconds for each other: {error}"

    def _write(self, index: int, packed: bytes) -> None:
        pipe, left = _pipe(self._children[index].stdin).fileno(), memoryview(packed)
        try:
            while left:
                if not select.select([], [pipe], [], self.deadline)[1]:
                    self.fail(ShardLost(f"{self._name(index)} read nothing for {self.deadline:g} seconds"))
                left = left[os.write(pipe, left) :]
        except (OSError, ValueError) as error:
            self.fail(error)

    def _read(self, index: int) -> None:
        """Take a shard's replies until it ends."""
        child = self._children[index]
        source = io.BufferedReader(cast(io.RawIOBase, _pipe(child.stdout)))
        while (received := read_message(source)) is not None:
            self._replies[index].put(received[0])
        if self._closed:
            return
        error = ShardLost(f"{self._name(index)} is lost: {how_it_ended(child.wait())}")
        self._replies[index].put({"kind": "lost", "error": str(error)})
        with suppress(ShardLost):  # whoever waits for it raises it
            self.fail(error)


def _open_store() -> tuple[Path, Callable[[], None]]:
    """A file for `join_shards`, and what closes it. On Linux it is memory without a name: a replica is killed, and
    could not remove a file."""
    if sys.platform.startswith("linux"):
        memory = open(os.memfd_create("ponder-shards", os.MFD_CLOEXEC), "rb")  # noqa: SIM115
        return Path(f"/proc/{os.getpid()}/fd/{memory.fileno()}"), memory.close
    folder = tempfile.TemporaryDirectory(prefix="ponder-shards-")  # of this user alone
    return Path(folder.name) / "store", folder.cleanup


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def end_replica(error: ShardLost) -> None:
    """As `on_lost`, in the process of a replica: end it at once. Its learner asks another the same."""
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(1)


def pack_message(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    head = json.dumps(message, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(head), len(body)), head, body])


def read_message(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message and its bytes; None: the other side is gone."""
    try:
        head = pipe.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        json_bytes, body_bytes = _HEAD.unpack(head)
        packed = pipe.read(json_bytes + body_bytes)
    except (OSError, ValueError):  # closed meanwhile
        return None
    if len(packed) < json_bytes + body_bytes:
        return None
    return json.loads(packed[:json_bytes]), packed[json_bytes:]


def end_with_parent() -> None:
    """In the child: from now on Linux ends it, a stopped one too, when the thread that started it ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
