"""The process of a replica: an engine that reads requests and writes replies, on standard input and output, or on a
connection to the learner that the environment names (see handshake.py).

A learner sends configuration and tokenizer, and publishes the weights; a server names the model, and gets tokens as
they are drawn. The process ends when the one that started it does, because its input then ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from ponder.cluster.wire import error_to_json, frame, read_frame
from ponder.cluster.worker_process import end_on_error, run_worker
from ponder.engine.mailbox import TokenChunk
from ponder.event_loop import share_interpreter
from ponder.models import chat_templates
from ponder.models.load import load_policy, load_shard
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.frames import chunks_to_json, completion_to_json, sampling_from_json
from ponder.models.replicas.shard_processes import ShardProcesses, ShardSettings, end_replica
from ponder.models.tokenizer import Tokenizer
from ponder.models.warm_up import warm_up
from ponder.nets.broadcast_weights import BroadcastFailed
from ponder.nets.config import from_hf, parse_token_id, parse_token_ids
from ponder.nets.gpu_share import limit_gpu_memory
from ponder.nets.load_weights import empty_decoder
from ponder.nets.publish_weights import WeightManifest, WeightReader
from ponder.nets.tensor_parallel import DecoderShard, Shard
from ponder.types import ids


class ReplicaServer:
    def __init__(self, reader: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
        self._reader, self._write = reader, write
        self._policy: PonderPolicy | None = None
        self._weights = WeightReader()
        self._shards: ShardProcesses | None = None  # where the network is split: the others
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tokens = 0
        self._chunks: list[tuple[int, TokenChunk]] = []  # of this turn of the loop, with their requests
        self._setup: set[asyncio.Task[None]] = set()
        self._can_sample = asyncio.Event()  # no version is being loaded
        self._can_sample.set()

    async def serve(self) -> None:
        """Answer until the input ends."""
        self._send({"kind": "hello"})
        while (message := await read_frame(self._reader)) is not None:
            kind = message["kind"]
            if kind == "ask":
                self._tasks[message["id"]] = asyncio.create_task(self._answer(message))
            elif kind == "cancel" and (task := self._tasks.get(message["id"])) is not None:
                task.cancel()
            elif kind == "ping":
                load = {} if self._policy is None else asdict(self._policy.engine.load)
                self._send({"kind": "pong", "tokens": self._tokens, "load": load})
            elif kind == "configure":
                self._begin(self._configure(message))
            elif kind == "weights":
                self._begin(self._load(WeightManifest.from_json(message["manifest"])))
            elif kind == "open":
                self._send({"kind": "loaded", **await self._open_model(message)})

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside this loop, which goes on to answer pings. The process ends where it fails."""
        task = asyncio.create_task(work)
        self._setup.add(task)
        task.add_done_callback(self._setup.discard)
        task.add_done_callback(end_on_error)

    async def _open_model(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            named = {name: message[name] for name in ("model", "template", "device", "dtype", "seed")}
            self._policy = load_policy(**named) if message["shards"] is None else self._open_shards(**message)
            self._policy.on_tokens = self._count
            await warm_up(self._policy, message["warm_sequences"])
        except Exception as error:
            return error_to_json(error)
        share_interpreter()
        return {}

    def _open_shards(
        self, shards: Mapping[str, Any], model: str, template: str | None, dtype: str, seed: int, threads: int, **_: Any
    ) -> PonderPolicy:
        """A model by its name, split over this process and others, each of which loads its part."""
        how = ShardSettings.from_json(shards)
        self._shards = ShardProcesses(how, end_replica)
        self._shards.open({"model": model, "dtype": dtype, "threads": threads})
        torch.set_num_threads(threads)
        net, tokenizer = load_shard(model, _take_device(how.devices[0]), dtype, Shard(0, how.count))
        self._shards.connect(net.requires_grad_(False))
        if template is not None:
            tokenizer = chat_templates.with_chat_template(tokenizer, template)
        return PonderPolicy(net, tokenizer, seed)

    async def _configure(self, message: Mapping[str, Any]) -> None:
        torch.set_num_threads(message["threads"])
        device = _take_device(message["device"])
        if message["shards"] is not None:
            self._shards = ShardProcesses(ShardSettings.from_json(message["shards"]), end_replica)
            self._shards.open({name: message[name] for name in ("config", "dtype", "threads")})
        self._policy = await asyncio.to_thread(self._build_policy, message, device)
        self._send({"kind": "configured"})

    def _build_policy(self, message: Mapping[str, Any], device: torch.device) -> PonderPolicy:
        ends = message["ends"]
        config = replace(
            from_hf(message["config"]),
            bos=parse_token_id("bos", ends["bos"]),
            eos=parse_token_ids("eos", ends["eos"]),
            pad=parse_token_id("pad", ends["pad"]),
        )
        shards, dtype = self._shards, getattr(torch, message["dtype"])
        net = empty_decoder(config, dtype, device, None if shards is None else Shard(0, shards.count))
        self._weights = WeightReader(device)
        if message["broadcast"]:
            self._weights.reserve(net)  # before the engine takes what is left for its cache
        if shards is not None and isinstance(net, DecoderShard):
            shards.connect(net)
        policy = PonderPolicy(net, Tokenizer.from_json(message["tokenizer"], "the learner"))
        policy.on_tokens = self._count
        return policy

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    async def _load(self, manifest: WeightManifest) -> None:
        """Swap the weights between two passes. New requests wait for them."""
        began = time.perf_counter()
        self._can_sample.clear()
        not_received = ""
        try:
            await asyncio.to_thread(self._swap_weights, manifest)
        except BroadcastFailed as error:  # the weights are those that they were; the learner sends these another way
            not_received = str(error)
        else:
            self._can_sample.set()
        took = time.perf_counter() - began
        self._send({"kind": "loaded", "version": manifest.version, "seconds": took, "not_received": not_received})

    def _swap_weights(self, manifest: WeightManifest) -> None:
        assert self._policy is not None
        if self._policy.net.device.type == "cuda":
            torch.cuda.set_device(self._policy.net.device)  # each thread has its own
        load = partial(self._weights.load_into, self._policy.net, manifest)
        with self._policy.paused():
            if self._shards is None:
                load()
            else:
                self._shards.load_weights(manifest, load)
            self._policy.version = manifest.version

    async def _answer(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        try:
            reply = await self._sample(number, message)
        except asyncio.CancelledError:
            return
        except Exception as error:
            reply = error_to_json(error)
        finally:
            self._tasks.pop(number, None)
        self._send_chunks()
        self._send({"kind": "answer", "id": number, **reply})

    async def _sample(self, number: int, message: Mapping[str, Any]) -> dict[str, Any]:
        await self._can_sample.wait()
        assert self._policy is not None
        prefix = ids(message["prefix"])
        if (text := message.get("text")) is not None:
            return {"logprobs": (await self._policy.token_logprobs(prefix, ids(text))).tolist()}
        sampling, n, streamed = sampling_from_json(message["sampling"]), message["n"], message.get("stream", False)
        if streamed:
            completions = await self._policy.generate_with_chunks(prefix, sampling, n, partial(self._hear, number))
        else:
            completions = await self._policy.generate(prefix, sampling, n)
        return {"completions": [completion_to_json(c, streamed) for c in completions]}

    def _hear(self, number: int, chunk: TokenChunk) -> None:
        """Chunks that one look at the device brought are sent together."""
        if not self._chunks:
            asyncio.get_running_loop().call_soon(self._send_chunks)
        self._chunks.append((number, chunk))

    def _send_chunks(self) -> None:
        if self._chunks:
            self._send({"kind": "chunks", **chunks_to_json(self._chunks)})
            self._chunks = []

    def _send(self, message: Mapping[str, Any]) -> None:
        self._write(frame(message))


def _take_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        limit_gpu_memory(device)
    return device


def main() -> None:
    run_worker(lambda reader, write: ReplicaServer(reader, write).serve())


if __name__ == "__main__":
    main()
