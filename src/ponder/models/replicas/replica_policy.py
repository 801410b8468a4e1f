"""`ReplicaPolicy`: one policy over several sampler processes.

A request goes to the replica that has most of its prompt in the cache, or to another where that one is full. A replica
that dies or hangs is restarted, and its requests are asked again with the same seeds: none is lost, none is answered
twice. The ledger in the run directory has a line for each of these events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder.errors import ModelError, PonderError, UsageError
from ponder.models.base_policy import BasePolicy, build_completion
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.frames import completion_from_json, sampling_to_json
from ponder.models.replicas.ledger import RequestLedger
from ponder.models.replicas.prefix_router import PrefixRouter
from ponder.models.replicas.replica import Replica, ReplicaDeadlines, ReplicaLost
from ponder.nets import lora
from ponder.nets.config import to_hf
from ponder.nets.publish_weights import WeightPublisher
from ponder.nets.weight_transports import WeightTransport, pick_transport
from ponder.types import Completion, Ids, Sampling, ids

MAX_ATTEMPTS = 8  # times that one request is asked: what kills every replica that reads it must not go on for ever
MAX_FAILED_STARTS = 3  # in a row, of one replica
LEDGER_FILE = "ledger.jsonl"


class ReplicaPolicy(BasePolicy):
    """Samples with the weights of `original`, as of the last `publish`. Use it as an async context manager, or call
    `start` and `close`."""

    def __init__(
        self,
        original: PonderPolicy,
        replicas: int,
        folder: Path | str,
        *,
        capacity: int = 256,  # sequences in flight of one replica, before requests spill over to others
        deadlines: ReplicaDeadlines = ReplicaDeadlines(),
        transport: WeightTransport | None = None,
    ) -> None:
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}; give at least one")
        if original.net.config.vision is not None:
            raise UsageError("replicas sample text only: a network that sees samples in the learner's process")
        super().__init__(original.tokenizer, original.net.config.vocab, original.net.config.context)
        self.original, self.folder, self.capacity = original, Path(folder), capacity
        self.replicas = [Replica(i, self.folder, deadlines) for i in range(replicas)]
        self.ledger = RequestLedger(self.folder / LEDGER_FILE)
        self.restarts = 0
        self._deadlines = deadlines
        self._publisher = WeightPublisher(transport or pick_transport(original.net.device, self.folder / "weights"))
        self._publishing = asyncio.Lock()  # a version is read by all before the next is begun
        self._router = PrefixRouter(replicas)
        self._changed = asyncio.Event()  # a replica became ready, or was given up
        self._given_up: dict[int, PonderError] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._closed = False

    async def __aenter__(self) -> ReplicaPolicy:
        await self.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all replicas and wait until they are ready."""
        self._publisher.publish(self.original.version, lora.merged_weights(self.original.net))
        self.version = self.original.version
        self._keepers = [asyncio.create_task(self._keep(replica)) for replica in self.replicas]
        while not all(r.ready for r in self.replicas):
            if self._given_up:
                error = next(iter(self._given_up.values()))
                await self.close()
                raise error
            await self._wait_for_change()

    async def publish(self, version: int) -> None:
        """The original's weights, as they are now, are this version, which all replicas have when this returns. One
        that is lost meanwhile gets it when it is restarted."""
        async with self._publishing:
            manifest = self._publisher.publish(version, lora.merged_weights(self.original.net))
            self.version = version
            self._router.forget()
            ready = [r for r in self.replicas if r.ready]
            results = await asyncio.gather(*(r.load(manifest) for r in ready), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ReplicaLost):
                raise result

    async def close(self) -> None:
        self._closed = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(r.close() for r in self.replicas))
        self._publisher.close()
        self.ledger.close()

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        seed = self._seed_for(prefix, sampling)
        request = {"prefix": prefix.tolist(), "n": n, "sampling": {**sampling_to_json(sampling), "seed": seed}}
        number = self.ledger.asked(n)
        try:
            reply, replica = await self._ask(number, prefix, request)
            if "error" in reply:
                raise _request_error(reply)
        except BaseException as error:
            self.ledger.cancelled(number, type(error).__name__)
            raise
        self.ledger.answered(number, replica.index)
        raws = [completion_from_json(data) for data in reply["completions"]]
        completions = [build_completion(self.tokenizer, raw, version) for raw, version in raws]
        for c in completions:
            self._router.add(replica.index, np.append(prefix, c.token_ids))
        self.on_tokens(sum(len(c.token_ids) for c in completions))
        return completions

    async def _ask(self, number: int, prefix: Ids, request: Mapping[str, Any]) -> tuple[dict[str, Any], Replica]:
        lost: ReplicaLost | None = None
        for _ in range(MAX_ATTEMPTS):
            replica = await self._choose(prefix, request["n"])
            self._router.add(replica.index, prefix)
            self.ledger.sent(number, replica.index)
            try:
                return await replica.ask(number, request), replica
            except ReplicaLost as why:
                lost = why
        raise ModelError(f"a request was lost {MAX_ATTEMPTS} times; the last time {lost}")

    async def _choose(self, prefix: Ids, sequences: int) -> Replica:
        while True:
            load = [r.sequences if r.ready else None for r in self.replicas]
            index = self._router.choose(prefix, sequences, load, self.capacity)
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
            raise ModelError(f"no replica became ready within {seconds:g} seconds: see {self.folder}") from None

    async def _keep(self, replica: Replica) -> None:
        """Keep a replica running."""
        failed_starts = 0
        while not self._closed:
            try:
                await replica.start()
                async with self._publishing:
                    assert self._publisher.latest is not None
                    await replica.configure(self._settings(replica.index), self._publisher.latest)
                failed_starts = 0
                self._router.forget(replica.index)
                self.ledger.replica_event("ready", replica.index, pid=replica.pid)
                self._changed.set()
                await replica.lost.wait()
                self.ledger.replica_event("died", replica.index, pid=replica.pid, why=replica.lost_reason)
                self.restarts += 1
            except (ReplicaLost, OSError) as why:
                failed_starts += 1
                self.ledger.replica_event("failed", replica.index, why=str(why))
                if failed_starts == MAX_FAILED_STARTS:
                    self._given_up[replica.index] = ModelError(f"{why!s}; it failed {failed_starts} times in a row")
                    self._changed.set()
                    return
            with suppress(ProcessLookupError):
                await replica.close()

    def _settings(self, index: int) -> dict[str, Any]:
        """What a new process must know. On a machine with several GPUs replicas take those after the learner's."""
        net = self.original.net
        config, device = net.config, net.device
        if device.type == "cuda":
            device = torch.device("cuda", ((device.index or 0) + 1 + index) % torch.cuda.device_count())
        return {
            "config": to_hf(config, str(net.dtype).removeprefix("torch.")),
            "ends": {"bos": config.bos, "eos": list(config.eos), "pad": config.pad},
            "tokenizer": self.tokenizer.to_json(),
            "dtype": str(net.dtype).removeprefix("torch."),
            "device": str(device),
            "threads": max(1, torch.get_num_threads() // len(self.replicas)),
        }


def _request_error(reply: Mapping[str, Any]) -> PonderError:
    """What a replica refused, as the error that it would be in this process."""
    kind = UsageError if reply["type"] == "UsageError" else ModelError
    return kind(reply["error"])
