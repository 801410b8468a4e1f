"""The process of a replica whose engine is vLLM: it starts vLLM's server, and answers its learner as any replica does.

An answer is interrupted when new weights come, and goes on with them: vLLM gives back what it has, and is asked for the
rest with that as the prompt. So every token has a version. A request that cannot be continued so, such as one with a
stop string that may begin before the interruption and end after it, is waited for instead.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ponder.cluster.wire import error_to_json, frame, read_frame
from ponder.cluster.worker_process import end_on_error, run_worker
from ponder.errors import ModelError, UsageError
from ponder.models import sampling_params
from ponder.models.base_policy import gather_or_cancel
from ponder.models.replicas.frames import sampling_from_json
from ponder.models.replicas.vllm_server import MODEL_NAME, VLLMServer, device_settings, top_entries
from ponder.models.tokenizer import Tokenizer
from ponder.nets.weight_transports import CudaIpcTransport
from ponder.types import Cost, Sampling

_DRAIN_SECONDS = 10.0  # for interrupted answers to come back
_ANSWER_SECONDS = 24 * 3600.0  # a whole answer; that nothing is sampled for long is seen by the token count


@dataclass(slots=True)
class _Answer:
    """What a sequence has so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[list[int], list[float]]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = "abort"

    def add(self, choice: Mapping[str, Any], version: int, alternatives: int) -> None:
        """The tokens of one reply, all of one version."""
        entries = choice["logprobs"]["content"] if choice["token_ids"] else []
        if len(entries) != len(choice["token_ids"]):
            raise ModelError(f"vLLM sent {len(choice['token_ids'])} tokens with {len(entries)} log-probabilities")
        self.token_ids += choice["token_ids"]
        self.logprobs += [float(e["logprob"]) for e in entries]
        self.versions += [version] * len(entries)
        for e in entries if alternatives else ():
            best = sorted(top_entries(e["top_logprobs"]), key=lambda pair: -pair[1])[:alternatives]
            self.top.append(([t for t, _ in best], [x for _, x in best]))
        self.finish = choice["finish_reason"]


class VLLMReplicaServer:
    def __init__(self, reader: asyncio.StreamReader, write: Callable[[bytes], None]) -> None:
        self._reader, self._write = reader, write
        self._server: VLLMServer | None = None
        self._runs = False  # the server has started
        self._version = -1
        self._learner_index = 0  # of the learner's GPU, among those that vLLM sees
        self._eos: frozenset[int] = frozenset()
        self._open = asyncio.Event()  # requests may be sent: no version is being loaded
        self._posts: dict[asyncio.Task[Any], bool] = {}  # in flight, and whether each may be interrupted
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._loads = asyncio.Lock()

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
                self._begin(self._pong())
            elif kind == "configure":
                self._begin(self._start(message))
            elif kind == "weights":
                self._begin(self._load(message["manifest"]))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        task.add_done_callback(end_on_error)

    async def _start(self, message: Mapping[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="ponder-vllm-", dir=message["scratch"]))
        tokenizer = Tokenizer.from_json(message["tokenizer"], "the learner")
        self._eos = frozenset(tokenizer.eos)
        tokenizer.save(folder)
        ends = {f"{name}_token_id": value for name, value in message["ends"].items()}
        (folder / "config.json").write_text(json.dumps({**message["config"], **ends}))
        learner_gpu, shards = message["learner_gpu"], message["shards"]
        devices = [message["device"]] if shards is None else shards["devices"]
        gpus, memory = device_settings(devices, learner_gpu)
        learner = f"cuda:{learner_gpu}"
        self._learner_index = 0 if learner_gpu is None else [*devices, learner].index(learner)
        context = message["config"]["max_position_embeddings"]
        self._server = VLLMServer(
            folder,
            dtype=message["dtype"],
            context=context,
            gpu_memory=memory,
            gpus=gpus,
            tensor_parallel=len(devices),
        )
        await self._server.start()
        self._runs = True
        self._send({"kind": "configured"})

    async def _load(self, manifest: dict[str, Any]) -> None:
        assert self._server is not None
        began, first = time.perf_counter(), self._version < 0
        if manifest["transport"] == CudaIpcTransport.name:
            manifest["source"]["fields"][0] = self._learner_index
        async with self._loads:
            self._open.clear()
            if not first:
                mode = "abort" if all(self._posts.values()) else "wait"
                await self._server.post(f"/pause?mode={mode}", {})
                await self._drain()
            await self._server.load(manifest, first)
            self._version = manifest["version"]
            if not first:
                await self._server.post("/resume", {})
            self._open.set()
        self._send({"kind": "loaded", "version": self._version, "seconds": time.perf_counter() - began})

    async def _drain(self) -> None:
        """Wait until what was sent before the pause has come back. A request that reached vLLM after it waits there for
        the resume: it is taken back and sent again."""
        if self._posts:
            await asyncio.wait(list(self._posts), timeout=_DRAIN_SECONDS)
        late = list(self._posts)
        for post in late:
            post.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _pong(self) -> None:
        """While vLLM starts, this process alone answers; afterwards only where vLLM does."""
        tokens = await self._server.token_count() if self._runs and self._server is not None else 0
        self._send({"kind": "pong", "tokens": tokens, "load": {}})

    async def _answer(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        try:
            reply = await self._sample(message)
        except asyncio.CancelledError:
            return
        except Exception as error:
            reply = error_to_json(error)
        finally:
            self._tasks.pop(number, None)
        self._send({"kind": "answer", "id": number, **reply})

    async def _sample(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message.get("stream") or message.get("text") is not None:
            raise UsageError("a vLLM replica neither streams nor reads log-probabilities: use ponder's own engine")
        sampling = sampling_from_json(message["sampling"])
        if sampling.logprobs and sampling_params.changes_distribution(sampling):
            raise UsageError(
                "vLLM reports logprobs of the distribution sampled from: ask at temperature 1 or 0, and do not truncate"
            )
        assert sampling.seed is not None
        seeds = [sampling_params.continuation_seed(sampling.seed, i) for i in range(message["n"])]
        # One more than is wanted: the sampled token stands before the likeliest, and the reply is cut to this number.
        asked = sampling.logprobs + 1 if sampling.logprobs else 1
        bodies = [
            {**sampling_params.vllm_sampling_params(sampling, seed, self._eos), "logprobs": asked} for seed in seeds
        ]
        return {"completions": await gather_or_cancel(self._sequence(message["prefix"], sampling, b) for b in bodies)}

    async def _sequence(self, prefix: list[int], sampling: Sampling, params: dict[str, Any]) -> dict[str, Any]:
        began, answer, sent_prompts = time.perf_counter(), _Answer(), 0
        while answer.finish == "abort":
            await self._open.wait()
            left = sampling.max_tokens - len(answer.token_ids)
            seed = sampling_params.continuation_seed(params["seed"], len(answer.token_ids))
            changed = {"max_tokens": left, **({"seed": seed} if answer.token_ids else {})}
            body = {
                "model": MODEL_NAME, "token_ids": [*prefix, *answer.token_ids], "sampling_params": {**params, **changed}
            }  # fmt: skip
            version, reply = self._version, await self._post(body, may_interrupt(sampling))
            sent_prompts += len(body["token_ids"])
            if reply is not None:
                (choice,) = reply["choices"]
                answer.add(choice, version, sampling.logprobs)
        if answer.finish not in ("stop", "length") or not answer.token_ids:
            raise ModelError(f"vLLM broke off an answer: {answer.finish}")
        at_end = "eos" if answer.token_ids[-1] in self._eos else "stop"
        cost = Cost(
            prompt_tokens=sent_prompts,  # whole: vLLM does not tell what was in its cache
            generated_tokens=len(answer.token_ids),
            seconds=time.perf_counter() - began,
        )
        mixed = len(set(answer.versions)) > 1
        return {
            "token_ids": answer.token_ids, "logprobs": answer.logprobs, "version": answer.versions[0],
            "top": [[t for t, _ in answer.top], [x for _, x in answer.top]] if answer.top else None,
            "stop": "length" if answer.finish == "length" else at_end, "cost": asdict(cost),
            "notes": {"version": [float(v) for v in answer.versions]} if mixed else {},
        }  # fmt: skip

    async def _post(self, body: Mapping[str, Any], interruptible: bool) -> Any:
        """The reply; None: it was taken back before it was begun."""
        assert self._server is not None
        post = asyncio.create_task(self._server.post("/inference/v1/generate", body, _ANSWER_SECONDS))
        self._posts[post] = interruptible
        try:
            await asyncio.wait([post])
        except asyncio.CancelledError:
            post.cancel()
            raise
        finally:
            del self._posts[post]
        return None if post.cancelled() else post.result()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._write(frame(message))


def may_interrupt(sampling: Sampling) -> bool:
    """Whether the rest of an answer, asked with its beginning as the prompt, is drawn as it would have been: nothing
    may depend on what of the prompt is the answer's."""
    bound = (sampling.stop, sampling.regex, sampling.json_schema, sampling.structural_tag, sampling.min_tokens)
    return not any(bound) and not sampling.presence_penalty and not sampling.frequency_penalty


def main() -> None:
    run_worker(lambda reader, write: VLLMReplicaServer(reader, write).serve())


if __name__ == "__main__":
    main()
