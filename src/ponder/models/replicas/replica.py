"""One sampler process, seen from outside: start it, ask it, feed it weights, notice that it died or hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.cluster.wire import frame, read_frame, request_error
from ponder.engine.engine import EngineLoad
from ponder.engine.mailbox import TokenChunk
from ponder.errors import PonderError
from ponder.models.replicas.frames import chunks_from_json
from ponder.models.replicas.replica_process import ProcessEnded, ReplicaProcess
from ponder.nets.publish_weights import WeightManifest

MAX_LAST_WORDS_CHARS = 2000


class ReplicaLost(PonderError):
    """A replica ended, or was ended because it did not answer. What it wrote last is in the message."""


@dataclass(frozen=True, slots=True)
class ReplicaDeadlines:
    """How long each wait may take, in seconds."""

    start: float = 300.0  # until a new process has imported what it needs, and until it has its first weights
    load: float = 300.0  # new weights
    ping_interval: float = 1.0
    pong: float = 30.0  # an answer to a ping
    stall: float = 600.0  # a new token, or another sign of progress, while requests are in flight


class Replica:
    """A process that `open_process` starts. It takes requests until it is lost; `start` then begins a new one."""

    def __init__(
        self,
        index: int,
        folder: Path,
        deadlines: ReplicaDeadlines,
        open_process: Callable[[int, Path], Awaitable[ReplicaProcess]],
        kind: str = "replica",  # what errors and the log call it
    ) -> None:
        self.index, self.deadlines, self._open_process, self.kind = index, deadlines, open_process, kind
        self.log = folder / f"{kind.replace(' ', '-')}-{index}.log"
        self.sequences = 0  # in flight
        self.load_of_engine = EngineLoad()  # as of the last ping
        self.ready = False
        self.lost = asyncio.Event()
        self.lost_reason = ""
        self.pid = 0
        self._process: ReplicaProcess | None = None
        self._ended = "it runs"
        self._hello: asyncio.Future[None]
        self._configured: asyncio.Future[dict[str, Any]] | None = None
        self._loaded: asyncio.Future[dict[str, Any]] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._on_chunk: dict[int, Callable[[TokenChunk], None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = (0, 0.0)  # tokens sampled, and when that number last changed
        self._silent_seconds = 0.0  # since its last sign of life

    async def start(self) -> None:
        """Start the process and wait until it has imported what it needs."""
        self.lost, self.lost_reason, self.ready = asyncio.Event(), "", False
        self.pid, self._process, self._ended = 0, None, "it runs"
        self._hello = asyncio.get_running_loop().create_future()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        await self._open()
        self._tasks = [asyncio.create_task(self._read())]
        await self._within(self._hello, self.deadlines.start, "start")

    async def _open(self) -> None:
        seconds = self.deadlines.start
        try:
            self._process = await asyncio.wait_for(self._open_process(self.index, self.log), seconds)
            self.pid = self._process.pid
            return
        except TimeoutError:
            self.lost_reason = f"it took longer than {seconds:g} seconds to start"
        except ProcessEnded as why:
            self.lost_reason, self._ended = "it did not start", why.ended
        except PonderError as why:
            self.lost_reason, self._ended = f"it cannot be placed: {why}", "never started"
        self.lost.set()
        raise self._error()

    async def configure(self, settings: Mapping[str, Any]) -> None:
        """Say which network it is. It builds it, and answers pings meanwhile."""
        self._watch_it()
        self._configured = self._expect_reply()
        self._send({"kind": "configure", **settings})
        await self._within(self._configured, self.deadlines.start, "build its network")

    async def load_first(self, manifest: WeightManifest) -> None:
        """Give it weights after `configure`. Then it is ready."""
        await self._load(manifest, self.deadlines.start)
        self._be_ready()

    async def open_model(self, settings: Mapping[str, Any]) -> None:
        """Let it load a model by name. Then it is ready. Raises what it says where it cannot."""
        self._loaded = self._expect_reply()
        self._send({"kind": "open", **settings})
        await self._within(self._loaded, self.deadlines.start, "load its model")
        if "error" in (reply := self._loaded.result()):
            raise request_error(reply)
        self._watch_it()
        self._be_ready()

    def _watch_it(self) -> None:
        self._silent_seconds = 0.0
        self._tasks.append(asyncio.create_task(self._watch()))

    def _be_ready(self) -> None:
        self._progress = (0, time.monotonic())
        self.ready = True

    async def load(self, manifest: WeightManifest) -> str:
        """Swap its weights between two passes; requests in flight go on. Returns why a broadcast did not reach it, in
        which case new requests wait for the version; empty: it has it."""
        self._require_ready()
        return await self._load(manifest, self.deadlines.load)

    async def _load(self, manifest: WeightManifest, deadline: float) -> str:
        self._loaded = self._expect_reply()
        self._send({"kind": "weights", "manifest": manifest.to_json()})
        await self._within(self._loaded, deadline, "load weights")
        return str(self._loaded.result().get("not_received", ""))

    async def ask(
        self, number: int, request: Mapping[str, Any], on_chunk: Callable[[TokenChunk], None] | None = None
    ) -> dict[str, Any]:
        """The reply to a request, and its tokens as they are drawn to `on_chunk`. Raises `ReplicaLost` when the process
        ends or hangs before."""
        self._require_ready()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        if on_chunk is not None:
            self._on_chunk[number] = on_chunk
        self.sequences += request["n"]
        try:
            self._send({"kind": "ask", "id": number, **request})
            return await answer
        except asyncio.CancelledError:
            self._send({"kind": "cancel", "id": number})
            raise
        finally:
            self._answers.pop(number, None)
            self._on_chunk.pop(number, None)
            self.sequences -= request["n"]

    def _expect_reply(self) -> asyncio.Future[dict[str, Any]]:
        """A future that is failed when the process is lost. One that is lost already would never reply."""
        if self.lost.is_set():
            raise self._error()
        return asyncio.get_running_loop().create_future()

    def _require_ready(self) -> None:
        """A message to a process that is gone, or not there yet, would never be answered."""
        if not self.ready:
            raise self._error()

    def kill(self, reason: str) -> None:
        """End the process, whatever state it is in: a stopped one, too."""
        self.lost_reason = self.lost_reason or reason
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        self.kill("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            self._ended = await self._process.wait()
            self._fail_all()

    async def _within(self, what: asyncio.Future[Any], seconds: float, doing: str) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(what), seconds)
        except TimeoutError:
            self.kill(f"it took longer than {seconds:g} seconds to {doing}")
            await self.lost.wait()
            raise self._error() from None

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._process is not None and not self.lost.is_set():  # else the loss is told by the future
            self._process.send(frame(message))

    async def _read(self) -> None:
        """Take its messages until it ends; then fail whoever waits."""
        assert self._process is not None
        try:
            while (message := await read_frame(self._process.reader)) is not None:
                self._take(message)
        except Exception as error:
            self.kill(f"it sent something that is no message ({error!s:.200})")
        self.kill("it closed its output")
        self._ended = await self._process.wait()
        self._fail_all()

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "chunks":
            for number, chunk in chunks_from_json(message):
                if (hear := self._on_chunk.get(number)) is not None:
                    hear(chunk)
            return
        if kind == "answer":
            future = self._answers.get(message["id"])
        elif kind == "configured":
            future = self._configured
        elif kind == "loaded":
            future = self._loaded
        elif kind == "hello":
            if not self._hello.done():
                self._hello.set_result(None)
            return
        else:  # pong
            self._silent_seconds = 0.0
            self.load_of_engine = EngineLoad(**message["load"])
            if message["tokens"] != self._progress[0]:
                self._progress = (message["tokens"], time.monotonic())
            return
        if future is not None and not future.done():
            future.set_result(message)

    async def _watch(self) -> None:
        """Ping it. One that does not answer, or samples nothing for long while it should, is killed. It answers while
        it loads weights, too: a stopped process is noticed whatever it was doing."""
        deadlines = self.deadlines
        while not self.lost.is_set():
            self._send({"kind": "ping"})
            # One interval, however long it took: while this loop is kept busy by others, pongs wait unread.
            self._silent_seconds += deadlines.ping_interval
            await asyncio.sleep(deadlines.ping_interval)
            now = time.monotonic()
            if not self.sequences or (self._loaded is not None and not self._loaded.done()):
                self._progress = (self._progress[0], now)
            if self._silent_seconds > deadlines.pong:
                self.kill(f"it did not answer for {deadlines.pong:g} seconds")
            elif now - self._progress[1] > deadlines.stall:
                self.kill(f"it got no further for {deadlines.stall:g} seconds")

    def _fail_all(self) -> None:
        self.ready = False
        self.lost.set()
        error = self._error()
        for future in (self._hello, self._configured, self._loaded, *self._answers.values()):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen, also where nobody waits

    def _error(self) -> ReplicaLost:
        words = last_words(self.log)
        said = f"; it wrote last: {words}" if words else ""
        return ReplicaLost(
            f"{self.kind} {self.index} (process {self.pid}) is lost: {self.lost_reason} ({self._ended}){said}"
        )


def last_words(log: Path) -> str:
    """The end of what a process wrote."""
    with suppress(OSError):
        return log.read_bytes()[-MAX_LAST_WORDS_CHARS:].decode(errors="replace").strip()
    return ""
