"""`ReplicaPool`: sampler processes that are kept running, and a way to ask one of them.

A request goes to the replica that has most of its prompt in the cache, or to another where that one is full. A replica
that dies or hangs is restarted, and its requests are asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ponder.engine.mailbox import TokenChunk
from ponder.errors import ModelError, PonderError
from ponder.models.replicas.prefix_router import PrefixRouter
from ponder.models.replicas.replica import Replica, ReplicaDeadlines, ReplicaLost
from ponder.models.replicas.replica_process import ReplicaProcess, open_child
from ponder.types import Ids

MAX_ATTEMPTS = 8  # times that one request is asked: what kills every replica that reads it must not go on for ever
MAX_FAILED_STARTS = 3  # in a row, of one replica


class RequestLost(ModelError):
    """Every process that was asked was lost before it answered."""


class ReplicaPool:
    """`configure` makes a started process ready: it may be called again and again. `on_event` hears what happens to
    replicas: "ready", "died" or "failed", the replica's number, and more by name."""

    def __init__(
        self,
        count: int,
        folder: Path,
        configure: Callable[[Replica], Awaitable[None]],
        on_event: Callable[..., None],
        capacity: int,  # sequences in flight of one replica, before requests spill over to others
        deadlines: ReplicaDeadlines,
        open_process: Callable[[int, Path], Awaitable[ReplicaProcess]] = open_child,
        kind: str = "replica",
        max_attempts: int = MAX_ATTEMPTS,
        isolate_retries: bool = False,  # one at a time: what ends its process takes no other retry with it
    ) -> None:
        self.replicas = [Replica(i, folder, deadlines, open_process, kind) for i in range(count)]
        self._kind, self._max_attempts = kind, max_attempts
        self._retries = asyncio.Lock() if isolate_retries else None
        self.router = PrefixRouter(count)
        self.restarts = 0
        self._folder, self._configure, self._on_event = folder, configure, on_event
        self._capacity, self._deadlines = capacity, deadlines
        self._changed = asyncio.Event()  # a replica became ready, or was given up
        self._given_up: dict[int, PonderError] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def ready(self) -> Sequence[Replica]:
        return [r for r in self.replicas if r.ready]

    async def start(self) -> None:
        """Start all replicas and wait until they are ready."""
        self._keepers = [asyncio.create_task(self._keep(replica)) for replica in self.replicas]
        while len(self.ready) < len(self.replicas):
            if self._given_up:
                error = next(iter(self._given_up.values()))
                await self.close()
                raise error
            await self._wait_for_change()

    async def close(self) -> None:
        self._closed = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(r.close() for r in self.replicas))

    async def ask(
        self,
        number: int,
        prefix: Ids,
        request: Mapping[str, Any],
        on_sent: Callable[[int], None] = lambda replica: None,  # called before each attempt
        on_chunk: Callable[[TokenChunk], None] | None = None,
    ) -> tuple[dict[str, Any], Replica]:
        """The reply, and who gave it."""
        lost: ReplicaLost | None = None
        for attempt in range(self._max_attempts):
            async with self._retries if attempt and self._retries is not None else nullcontext():
                replica = await self._choose(prefix, request["n"])
                self.add_to_cache(replica, prefix)
                on_sent(replica.index)
                try:
                    return await replica.ask(number, request, on_chunk), replica
                except ReplicaLost as why:
                    lost = why
        raise RequestLost(f"a request was lost {self._max_attempts} times; the last time {lost}")

    def add_to_cache(self, replica: Replica, tokens: Ids) -> None:
        """The replica has read, or written, these tokens."""
        if len(self.replicas) > 1:  # else there is nothing to choose
            self.router.add(replica.index, tokens)

    async def _choose(self, prefix: Ids, sequences: int) -> Replica:
        while True:
            load = [r.sequences if r.ready else None for r in self.replicas]
            index = self.router.choose(prefix, sequences, load, self._capacity)
            if index is not None:
                return self.replicas[index]
            if len(self._given_up) == len(self.replicas):
                raise next(iter(self._given_up.values()))
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        seconds = 2 * MAX_FAILED_STARTS * self._deadlines.start
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            raise ModelError(f"no {self._kind} became ready within {seconds:g} seconds: see {self._folder}") from None

    async def _keep(self, replica: Replica) -> None:
        """Keep a replica running."""
        failed_starts = 0
        while not self._closed:
            try:
                await replica.start()
                await self._configure(replica)
                failed_starts = 0
                self.router.forget(replica.index)
                self._on_event("ready", replica.index, pid=replica.pid)
                self._changed.set()
                await replica.lost.wait()
                self._on_event("died", replica.index, pid=replica.pid, why=replica.lost_reason)
                self.restarts += 1
            except (ReplicaLost, OSError) as why:
                failed_starts += 1
                self._on_event("failed", replica.index, why=str(why))
                if failed_starts == MAX_FAILED_STARTS:
                    return self._give_up(replica, ModelError(f"{why!s}; it failed {failed_starts} times in a row"))
            except PonderError as why:  # it says itself why it cannot
                self._on_event("failed", replica.index, why=str(why))
                return self._give_up(replica, why)
            with suppress(ProcessLookupError):
                await replica.close()

    def _give_up(self, replica: Replica, why: PonderError) -> None:
        self._given_up[replica.index] = why
        self._changed.set()
