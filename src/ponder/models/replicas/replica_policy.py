"""`ReplicaPolicy`: a learner's policy over several sampler processes, which get its weights as they are published.

A request carries its seed, so one that is asked again is answered with the same draws: none is lost, none is answered
twice. The ledger in the run directory has a line for each of these events.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from ponder import rank_env
from ponder.cluster.handshake import ReplicaListener
from ponder.cluster.places import Place
from ponder.cluster.wire import request_error
from ponder.errors import UnknownName, UsageError
from ponder.models.base_policy import BasePolicy, build_completion
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.frames import completion_from_json, sampling_to_json
from ponder.models.replicas.ledger import RequestLedger
from ponder.models.replicas.pool import ReplicaPool
from ponder.models.replicas.replica import Replica, ReplicaDeadlines
from ponder.models.replicas.replica_process import REPLICA_MODULE, ReplicaProcess, SlotProcess, open_child
from ponder.models.replicas.shard_processes import ShardSettings
from ponder.models.replicas.weight_delivery import WeightDelivery
from ponder.nets import lora
from ponder.nets.broadcast_weights import BROADCAST, BroadcastTransport
from ponder.nets.config import to_hf
from ponder.nets.tensor_parallel import check_shard_count
from ponder.nets.weight_transports import TransportName, WeightTransport, open_transport
from ponder.types import Completion, Ids, Sampling, ids

LEDGER_FILE = "ledger.jsonl"
ReplicaEngine = Literal["ponder", "vllm"]
_MODULES = {"ponder": REPLICA_MODULE, "vllm": "ponder.models.replicas.vllm_replica_main"}


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
        transport: TransportName = "auto",  # of new weights
        place: Place | None = None,  # of the processes, which connect by TCP; None: children of this one, on pipes
        device: torch.device | None = None,  # of the replicas; None: as the original's
        next_gpu: int = 1,  # how far after the learner's GPU that of the first replica is; the others follow
        engine: ReplicaEngine = "ponder",
        tensor_parallel: int = 1,  # GPUs, or processes on the CPU, over which each replica's network is split
    ) -> None:
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}; give at least one")
        if original.net.config.vision is not None:
            raise UsageError("replicas sample text only: a network that sees samples in the learner's process")
        if engine not in get_args(ReplicaEngine):
            raise UnknownName("engine of replicas", engine, get_args(ReplicaEngine))
        check_shard_count(original.net.config, tensor_parallel)
        super().__init__(original.tokenizer, original.net.config.vocab, original.net.config.context)
        self.engine, self.tensor_parallel = engine, tensor_parallel
        self.original, self.folder, self._next_gpu = original, Path(folder), next_gpu
        self._device = device or original.net.device
        self.place, self._listener = place, None if place is None else ReplicaListener(place.host)
        self.deadlines = deadlines
        self.ledger = RequestLedger(self.folder / LEDGER_FILE)
        self._pool = ReplicaPool(
            replicas, self.folder, self._configure, self.ledger.replica_event, capacity, deadlines, self._open_process
        )
        self._delivery = WeightDelivery(
            self._open_transport(transport, replicas), 2 * deadlines.load, self.ledger.replica_event
        )
        # Of vLLM's servers, with short paths for their sockets: a replica is killed, and could not remove it itself.
        self._scratch = (
            tempfile.TemporaryDirectory(prefix="ponder-", ignore_cleanup_errors=True)
            if engine == "vllm" and place is None
            else None
        )
        self._publishing = asyncio.Lock()  # a version is read by all before the next is begun

    @property
    def replicas(self) -> Sequence[Replica]:
        return self._pool.replicas

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    async def __aenter__(self) -> ReplicaPolicy:
        await self.start()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all replicas and wait until they are ready."""
        if self._listener is not None:
            await self._listener.start()
        self._delivery.publish(self.original.version, lora.merged_weights(self.original.net))
        self.version = self.original.version
        try:
            await self._pool.start()
        except BaseException:
            await self.close()
            raise

    async def publish(self, version: int) -> None:
        """The original's weights, as they are now, are this version, which all replicas have when this returns. One
        that is lost meanwhile gets it when it is restarted."""
        await (await self.begin_publish(version))

    async def begin_publish(self, version: int) -> asyncio.Task[None]:
        """As `publish`, but the original may learn on as soon as this returns: its weights were copied. The task ends
        when all replicas have them."""
        await self._publishing.acquire()
        try:
            self._delivery.publish(version, lora.merged_weights(self.original.net))
        except BaseException:
            self._publishing.release()
            raise
        self.version = version
        self._pool.router.forget()
        loading = asyncio.create_task(self._delivery.deliver(self._pool.ready))
        loading.add_done_callback(lambda _: self._publishing.release())
        return loading

    async def close(self) -> None:
        await self._pool.close()
        self._delivery.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        if self._listener is not None and self.place is not None:
            await self._listener.close()
            self.place.close()
        self.ledger.close()

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        seed = self._seed_for(prefix, sampling)
        request = {"prefix": prefix.tolist(), "n": n, "sampling": {**sampling_to_json(sampling), "seed": seed}}
        number = self.ledger.asked(n)
        try:
            reply, replica = await self._pool.ask(number, prefix, request, lambda i: self.ledger.sent(number, i))
            if "error" in reply:
                raise request_error(reply)
        except BaseException as error:
            self.ledger.cancelled(number, type(error).__name__)
            raise
        self.ledger.answered(number, replica.index)
        raws = [completion_from_json(data) for data in reply["completions"]]
        completions = [build_completion(self.tokenizer, raw, version) for raw, version in raws]
        for c in completions:
            self._pool.add_to_cache(replica, np.append(prefix, c.token_ids))
        self.on_tokens(sum(len(c.token_ids) for c in completions))
        return completions

    async def _configure(self, replica: Replica) -> None:
        """Give a new process the network and its newest weights. Others may get new weights while it builds the
        network."""
        await replica.configure(self._settings(replica.index))
        async with self._publishing:
            await self._delivery.deliver_first(replica)

    async def _open_process(self, index: int, log: Path) -> ReplicaProcess:
        if self.place is None or self._listener is None:
            return await open_child(index, log, _MODULES[self.engine])
        gpu = self._device.type == "cuda"
        name, module = f"replica-{index}", _MODULES[self.engine]
        return await SlotProcess.start(self.place, self._listener, name, gpu, log, module, self.tensor_parallel)

    def _open_transport(self, name: TransportName, replicas: int) -> WeightTransport:
        whole = self.engine == "ponder" and self.tensor_parallel == 1
        if not whole and name == BROADCAST:
            raise UsageError("a broadcast reaches replicas of one process each, of ponder's engine: give tcp or auto")
        host = None if self.place is None else self.place.host
        if not whole and name == "auto" and host is not None:
            name = "tcp"
        opened = open_transport(name, self.original.net.device, self.folder / "weights", host, replicas)
        if isinstance(opened, BroadcastTransport):
            opened.seconds, opened.wait_seconds = self.deadlines.pong, self.deadlines.load / 2
        return opened

    def _settings(self, index: int) -> dict[str, Any]:
        """What a new process must know."""
        net = self.original.net
        config, devices = net.config, self._devices(index)
        return {
            "config": to_hf(config, str(net.dtype).removeprefix("torch.")),
            "ends": {"bos": config.bos, "eos": list(config.eos), "pad": config.pad},
            "tokenizer": self.tokenizer.to_json(),
            "dtype": str(net.dtype).removeprefix("torch."),
            "device": devices[0],
            "broadcast": self._delivery.broadcasts,
            "shards": None if self.tensor_parallel == 1 else self._shards(devices).to_json(),
            "learner_gpu": (
                rank_env.gpu_for_child(net.device.index or 0)
                if net.device.type == "cuda" and self.place is None
                else None
            ),
            "scratch": None if self._scratch is None else self._scratch.name,
            "threads": max(1, torch.get_num_threads() // (len(self.replicas) * self.tensor_parallel)),
        }

    def _devices(self, index: int) -> list[str]:
        """Of each shard of a replica, as its process numbers them: GPUs after the learner's in turn, or those that its
        place shows it."""
        own, shards = self.original.net.device, range(self.tensor_parallel)
        if self._device.type != "cuda":
            return [str(self._device)] * self.tensor_parallel
        if self.place is not None and self.place.own_gpus:
            return [f"cuda:{shard}" for shard in shards]
        first = rank_env.gpu_for_child(own.index or 0) + self._next_gpu if own.type == "cuda" else 0
        first += index * self.tensor_parallel
        count = rank_env.gpu_count_for_child(torch.cuda.device_count())
        return [f"cuda:{(first + shard) % count}" for shard in shards]

    def _shards(self, devices: Sequence[str]) -> ShardSettings:
        deadlines = self.deadlines
        return ShardSettings(tuple(devices), deadlines.pong, deadlines.start, deadlines.load)
