"""`VLLMPolicy`: a model in a local folder, run by vLLM in this process, for sizes where it is the faster engine.

It loads a copy of the weights, which takes a minute or more. `reload` reads new weights from a folder that a learner
saved. Log-probabilities are of the distribution sampled from (`logprobs_mode="processed_logprobs"`), but vLLM's kernels
compute them, so they differ from the learner's. A seed fixes the draws on one machine with one version, though other
requests in the batch may change the last bits of a sum. FLOPs are not counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ponder.errors import MissingExtra, ModelError, UsageError
from ponder.models import sampling_params
from ponder.models.base_policy import BasePolicy, RawCompletion, build_completion, gather_or_cancel
from ponder.models.tokenizer import Tokenizer
from ponder.nets.base_model import refuse_base
from ponder.runs import manifest
from ponder.types import Completion, Cost, Ids, Sampling, StopReason, ids

T = TypeVar("T")


class VLLMPolicy(BasePolicy):
    """A `Policy` over vLLM's asynchronous engine, which runs in an event loop and thread of its own."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, tokenizer: Tokenizer, seed: int = 0) -> None:
        config = engine.model_config
        super().__init__(tokenizer, config.get_vocab_size(), config.max_model_len, seed)
        self.engine, self._loop = engine, loop
        self._request_numbers = itertools.count()
        self._requests_in_flight = 0

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", seed: int = 0, **options: Any) -> VLLMPolicy:
        """`options`: more of vLLM's engine arguments, such as gpu_memory_utilization=0.5 or max_model_len=4096."""
        refuse_base(Path(folder).expanduser(), "vLLM")
        try:
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError:
            raise MissingExtra("a model named 'vllm:FOLDER'", "vllm", "vllm") from None
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise ModelError(f"no model folder at {folder}; check the path")
        manifest.verify(folder)
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork cannot use CUDA if its parent did
        fixed = {"trust_remote_code": False, "logprobs_mode": "processed_logprobs", "disable_log_stats": True}
        tokenizer = Tokenizer.from_folder(folder)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="vllm", daemon=True).start()

        async def begin() -> Any:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(folder), dtype=dtype, **{**fixed, **options}))

        try:
            engine = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        except Exception as reason:  # vLLM raises nothing narrower
            loop.call_soon_threadsafe(loop.stop)
            message = " ".join(str(reason).split()) or type(reason).__name__
            raise ModelError(f"vLLM cannot run {folder}: {message}") from reason
        return cls(engine, loop, tokenizer, seed)

    async def reload(self, folder: Path | str) -> None:
        """New weights of the same shape, from a folder; later completions carry the next version."""
        if self._requests_in_flight:
            raise UsageError(
                f"{self._requests_in_flight} requests are in flight: wait for them before the weights change"
            )
        manifest.verify(Path(folder))
        await self._in_engine_loop(self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)}))
        await self._in_engine_loop(self.engine.reset_prefix_cache())
        self.version += 1

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self.engine.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        if sampling.logprobs and sampling_params.changes_distribution(sampling):
            raise UsageError(
                "vLLM reports logprobs of the distribution sampled from: ask at temperature 1 or 0, and do not truncate"
            )
        seed = self._seed_for(prefix, sampling)
        all_params = [
            self._sampling_params(sampling, seed, number) for number in range(n)
        ]  # refuses before any request
        self._requests_in_flight += n
        try:
            return await gather_or_cancel(self._generate_one(prefix, sampling, params) for params in all_params)
        finally:
            self._requests_in_flight -= n

    def _sampling_params(self, sampling: Sampling, seed: int, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        continuation_seed = sampling_params.continuation_seed(seed, number)
        params = sampling_params.vllm_sampling_params(sampling, continuation_seed, self.eos)
        if form := params.pop("structured_outputs", None):
            params["structured_outputs"] = StructuredOutputsParams(**form)
        return SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)

    async def _generate_one(self, prefix: Ids, sampling: Sampling, params: Any) -> Completion:
        start = time.perf_counter()
        name = f"ponder-{next(self._request_numbers)}"
        result = await self._in_engine_loop(self._final_output(prefix.tolist(), params, name))
        (output,), k = result.outputs, sampling.logprobs
        token_ids = list(output.token_ids)
        logprobs = [entries[token].logprob for token, entries in zip(token_ids, output.logprobs, strict=True)]
        if output.finish_reason not in ("stop", "length"):
            raise ModelError(f"vLLM broke off an answer: {output.finish_reason}")
        at_end: StopReason = "eos" if output.stop_reason is None or token_ids[-1] in self.eos else "stop"
        stop: StopReason = "length" if output.finish_reason == "length" else at_end
        top_logprobs = []
        for entries in output.logprobs if k else ():
            best = sorted(((x.logprob, token) for token, x in entries.items()), reverse=True)[:k]
            top_logprobs.append((ids([t for _, t in best]), np.array([x for x, _ in best], np.float32)))
        prefilled = max(0, len(prefix) - (result.num_cached_tokens or 0) - 1)
        cost = Cost(
            prompt_tokens=prefilled,
            cached_tokens=len(prefix) - prefilled,
            generated_tokens=len(token_ids),
            seconds=time.perf_counter() - start,
        )
        self.on_tokens(len(token_ids))
        return build_completion(
            self.tokenizer, RawCompletion(token_ids, logprobs, stop, cost, top_logprobs), self.version
        )

    async def _final_output(self, prompt: list[int], params: Any, name: str) -> Any:
        async for result in self.engine.generate({"prompt_token_ids": prompt}, params, name):
            if result.finished:
                return result
        raise ModelError("vLLM ended a request without an answer")

    async def _in_engine_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await in the engine's loop. A cancelled caller cancels the request there, which frees its slot."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
