"""How a published version gets to the replicas: each reads it where it lies, or all receive it at once by broadcast.

A broadcast needs all of them. Where one is lost meanwhile, or the group cannot be made, the version goes to the others
by the transport's fallback, as it does to a process that has just started. The next version is broadcast again.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ponder.models.replicas.replica import Replica, ReplicaLost
from ponder.nets.broadcast_weights import BroadcastFailed, BroadcastTransport
from ponder.nets.publish_weights import WeightManifest, WeightPublisher
from ponder.nets.weight_transports import WeightTransport

MAX_FAILED_BROADCASTS = 3  # in a row, of replicas that all live on; after that nothing is broadcast any more


class WeightDelivery:
    """Publishes and delivers one version at a time: the caller holds a lock. `on_event` hears of what failed."""

    def __init__(
        self,
        transport: WeightTransport,
        send_seconds: float,  # that a broadcast may take in all
        on_event: Callable[..., None],
    ) -> None:
        self._publisher = WeightPublisher(transport)
        self._broadcast = transport if isinstance(transport, BroadcastTransport) else None
        self._fallback = None if self._broadcast is None else WeightPublisher(self._broadcast.fallback)
        self._send_seconds, self._on_event = send_seconds, on_event
        self._failed = 0  # broadcasts, in a row

    @property
    def transport(self) -> WeightTransport:
        return self._publisher.transport

    @property
    def broadcasts(self) -> bool:
        """Whether the next version will be broadcast."""
        return self._broadcast is not None and self._failed < MAX_FAILED_BROADCASTS

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy the weights. They may then change."""
        self._publisher.publish(version, tensors)

    async def deliver(self, replicas: Sequence[Replica]) -> None:
        """Give all of them the version. One that is lost meanwhile gets it when it is restarted."""
        left = await self._broadcast_to(replicas) if self.broadcasts and replicas else replicas
        if left:
            manifest = await self._readable()
            _raise_errors(await asyncio.gather(*(r.load(manifest) for r in left), return_exceptions=True))

    async def deliver_first(self, replica: Replica) -> None:
        """Give the version to a process that has none yet, alone."""
        await replica.load_first(await self._readable())

    def close(self) -> None:
        self._publisher.close()

    async def _readable(self) -> WeightManifest:
        """The version where any process can read it by itself."""
        latest = self._publisher.latest
        assert latest is not None
        if self._broadcast is None or self._fallback is None:
            return latest
        kept = self._fallback.latest
        if kept is None or kept.version != latest.version:
            tensors = self._broadcast.committed(latest.places)
            kept = await asyncio.to_thread(self._fallback.publish, latest.version, tensors)
        return kept

    async def _broadcast_to(self, replicas: Sequence[Replica]) -> Sequence[Replica]:
        """Returns those that live and did not get it."""
        manifest, broadcast = self._publisher.latest, self._broadcast
        assert manifest is not None and broadcast is not None
        sources = broadcast.invite([f"replica {r.index} (process {r.pid})" for r in replicas])
        sending = _in_thread(broadcast.send)

        async def load(replica: Replica, source: Mapping[str, object]) -> str:
            try:
                why = await replica.load(replace(manifest, source=source))
            except BaseException as error:
                broadcast.stop(str(error))
                raise
            if why:
                broadcast.stop(f"replica {replica.index}: {why}")
            return why

        results = await asyncio.gather(*map(load, replicas, sources), return_exceptions=True)
        _raise_errors(results)
        reasons = [str(r) for r in results if r]
        try:
            await asyncio.wait_for(sending, self._send_seconds)
        except BroadcastFailed as error:
            reasons.insert(0, str(error))
        except TimeoutError:  # its thread is left behind, and so is the group
            self._failed, reasons = MAX_FAILED_BROADCASTS, [f"it took longer than {self._send_seconds:g} seconds"]
        self._count(manifest.version, reasons, any(isinstance(r, ReplicaLost) for r in results))
        return [r for r, result in zip(replicas, results, strict=True) if isinstance(result, str) and result]

    def _count(self, version: int, reasons: Sequence[str], lost: bool) -> None:
        if not reasons:
            self._failed = 0
            return
        assert self._broadcast is not None
        if not lost:
            self._failed += 1
        road = self._broadcast.fallback.name
        self._on_event("broadcast failed", -1, version=version, why=reasons[0])
        later = "" if self.broadcasts else f", and all after it, since {self._failed} broadcasts in a row failed"
        warnings.warn(
            f"version {version} of the weights went to replicas by {road}, not by broadcast{later}: {reasons[0]}",
            stacklevel=2,
        )


def _raise_errors(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, ReplicaLost):
            raise result


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run it in a thread that nobody has to wait for, not even at the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future
