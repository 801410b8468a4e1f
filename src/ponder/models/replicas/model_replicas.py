"""`ModelReplicas`: a model by its name, in sampler processes that load it themselves. A server that samples so has its
interpreter for HTTP alone, and may use several GPUs."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder.cluster.wire import request_error
from ponder.engine.engine import EngineLoad
from ponder.engine.mailbox import TokenChunk
from ponder.errors import ModelError, UsageError
from ponder.models import chat_templates
from ponder.models.base_policy import BasePolicy, build_completion
from ponder.models.chunk_policy import ChunkPolicy
from ponder.models.grammar import GrammarCompiler
from ponder.models.load import load_tokenizer
from ponder.models.model_paths import find_model
from ponder.models.replicas.frames import completion_from_json, sampling_to_json, streamed_completion
from ponder.models.replicas.pool import ReplicaPool
from ponder.models.replicas.replica import Replica, ReplicaDeadlines
from ponder.models.replicas.shard_processes import ShardSettings
from ponder.nets import gguf, hf
from ponder.nets.config import DecoderConfig
from ponder.nets.hardware import pick_device
from ponder.nets.tensor_parallel import check_shard_count
from ponder.nets.weight_files import read_config
from ponder.types import Completion, Floats, Ids, Sampling, ids

_CAPACITY = 256  # sequences in flight of one replica, before requests spill over to others


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """What every replica loads, by the names of `load_policy`."""

    model: str
    template: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0


class ModelReplicas(BasePolicy, ChunkPolicy):
    """Call `start` in the event loop that will use it, and `close` at the end. Its text is decoded here, its tokens are
    drawn there."""

    def __init__(
        self, model: ReplicaModel, replicas: int = 1, *, tensor_parallel: int = 1, warm_sequences: int = 256,
        deadlines: ReplicaDeadlines = ReplicaDeadlines(),
    ) -> None:  # fmt: skip
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}; give at least one")
        config = decoder_config(model.model)
        if config.vision is not None:
            raise UsageError("replicas read text only: leave out --replicas for a model that sees pictures")
        check_shard_count(config, tensor_parallel)
        tokenizer = load_tokenizer(model.model)
        if model.template is not None:
            tokenizer = chat_templates.with_chat_template(tokenizer, model.template)
        tokenizer.check_fits(config)
        super().__init__(tokenizer, config.vocab, config.context, model.seed)
        self.model, self.tensor_parallel, self._deadlines = model, tensor_parallel, deadlines
        self._warm_sequences, self._numbers = warm_sequences, itertools.count()
        self._grammars = GrammarCompiler(tokenizer, config.vocab)
        self._folder = tempfile.TemporaryDirectory(prefix="ponder-replicas-")  # what the processes write to stderr
        self._pool = ReplicaPool(
            replicas,
            Path(self._folder.name),
            self._configure,
            lambda event, replica, **more: None,
            _CAPACITY,
            deadlines,
        )

    @property
    def replicas(self) -> list[Replica]:
        return self._pool.replicas

    @property
    def load(self) -> EngineLoad:
        """Of all replicas together; the share of the cache is the fullest one's."""
        loads = [replica.load_of_engine for replica in self.replicas]
        sums = {f.name: sum(getattr(load, f.name) for load in loads) for f in fields(EngineLoad)}
        return EngineLoad(**{**sums, "cache_use": max(load.cache_use for load in loads)})

    async def start(self) -> None:
        """Start all replicas and wait until each has loaded the model."""
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()
        self._folder.cleanup()

    async def _configure(self, replica: Replica) -> None:
        named = {f.name: getattr(self.model, f.name) for f in fields(self.model)}
        device, shards, each = pick_device(self.model.device), None, self.tensor_parallel
        devices = [str(device)] * each
        if device.type == "cuda" and device.index is None:
            first = replica.index * each
            devices = [f"cuda:{(first + shard) % torch.cuda.device_count()}" for shard in range(each)]
            named["device"] = devices[0]
        if each > 1:
            d = self._deadlines
            shards = ShardSettings(tuple(devices), d.pong, d.start, d.load).to_json()
        threads = max(1, torch.get_num_threads() // (len(self.replicas) * each))
        sent = {**named, "shards": shards, "threads": threads, "warm_sequences": self._warm_sequences}
        await replica.open_model(sent)

    def check_call(self, prefix: Ids, sampling: Sampling, n: int = 1) -> None:
        """Raise what a call would."""
        self._grammars(self._validate(ids(prefix), sampling, n))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        reply = await self._ask(prefix, sampling, n)
        raws = [completion_from_json(data) for data in reply["completions"]]
        return [build_completion(self.tokenizer, raw, version) for raw, version in raws]

    async def generate_with_chunks(
        self, prefix: Ids, sampling: Sampling, n: int, on_chunk: Callable[[TokenChunk], None]
    ) -> list[Completion]:
        heard = _Heard(n, on_chunk)
        reply = await self._ask(prefix, sampling, n, heard)
        if heard.differs:
            raise ModelError("a sampler process was lost in the middle of an answer, which cannot go on: ask again")
        raws = [streamed_completion(data, heard.parts[i]) for i, data in enumerate(reply["completions"])]
        return [build_completion(self.tokenizer, raw, version) for raw, version in raws]

    async def stream_chunks(
        self, prefix: Ids, sampling: Sampling, n: int = 1
    ) -> AsyncGenerator[TokenChunk | list[Completion]]:
        queue: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        task = asyncio.ensure_future(self.generate_with_chunks(prefix, sampling, n, queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (chunk := await queue.get()) is not None:
                yield chunk
            yield await task
        finally:
            task.cancel()

    async def token_logprobs(self, prefix: Ids, text: Ids) -> Floats:
        prefix, text = ids(prefix), ids(text)
        reply = await self._send(prefix, {"prefix": prefix.tolist(), "text": text.tolist(), "n": 1})
        return np.asarray(reply["logprobs"], np.float32)

    async def _ask(self, prefix: Ids, sampling: Sampling, n: int, heard: _Heard | None = None) -> dict[str, Any]:
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        how = {**sampling_to_json(sampling), "seed": self._seed_for(prefix, sampling)}
        request = {"prefix": prefix.tolist(), "n": n, "sampling": how, "stream": heard is not None}
        return await self._send(prefix, request, heard)

    async def _send(self, prefix: Ids, request: Mapping[str, Any], heard: _Heard | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        if heard is None:
            reply, _ = await self._pool.ask(number, prefix, request)
        else:
            reply, _ = await self._pool.ask(number, prefix, request, heard.begin, heard.add)
        if "error" in reply:
            raise request_error(reply)
        return reply


class _Heard:
    """The tokens of a streamed request. Where it is asked again, since its process was lost, the same seed draws the
    same tokens: those that were passed on already are not passed on twice."""

    def __init__(self, n: int, on_chunk: Callable[[TokenChunk], None]) -> None:
        self.parts = [TokenChunk(i, [], [], []) for i in range(n)]
        self.differs = False  # another attempt drew other tokens
        self._on_chunk = on_chunk
        self._position = [0] * n

    def begin(self, replica: int) -> None:
        """Another attempt begins."""
        self._position = [0] * len(self.parts)

    def add(self, chunk: TokenChunk) -> None:
        part, position = self.parts[chunk.sequence], self._position[chunk.sequence]
        known = min(len(part.token_ids) - position, len(chunk.token_ids))
        self._position[chunk.sequence] += len(chunk.token_ids)
        if known:
            self.differs |= part.token_ids[position : position + known] != chunk.token_ids[:known]
            chunk = TokenChunk(
                chunk.sequence, chunk.token_ids[known:], chunk.logprobs[known:], chunk.top_logprobs[known:]
            )
        if chunk.token_ids and not self.differs:
            part.token_ids.extend(chunk.token_ids)
            part.logprobs.extend(chunk.logprobs)
            part.top_logprobs.extend(chunk.top_logprobs)
            self._on_chunk(chunk)


def decoder_config(model: str) -> DecoderConfig:
    """The configuration of a model, without its weights."""
    path = find_model(model)
    if path.is_file():
        return gguf.decoder_config(gguf.open_gguf(path))
    return hf.decoder_config(path, read_config(path))
