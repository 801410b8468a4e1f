"""The `vllm` policy: a model in a local folder, run by vLLM in this process, for sizes where it is the faster engine.

It has its own copy of the weights, made when it loads (a minute or more); `reload` reads them anew from a folder that a
learner saved. Log-probabilities are those of the distribution sampled from (`logprobs_mode="processed_logprobs"`), but
computed by vLLM's kernels: they differ from the learner's. A seed fixes what is drawn on one machine with one version,
though other requests in the batch may still change a sum's last bits. FLOPs are not counted.
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

from ponder.engine.request import Request, SequenceState
from ponder.errors import MissingExtra, ModelError, UsageError
from ponder.models import sampling_params
from ponder.models.base_policy import BasePolicy
from ponder.models.tokenizer import Tokenizer
from ponder.runs import manifest
from ponder.types import ids

T = TypeVar("T")


class VLLMPolicy(BasePolicy):
    """A `Policy` over vLLM's asynchronous engine, which lives in an event loop of its own; callers come from any."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, tokenizer: Tokenizer, seed: int = 0) -> None:
        config = engine.model_config
        super().__init__(tokenizer, config.get_vocab_size(), config.max_model_len, seed)
        self.engine, self._loop = engine, loop
        self._request_numbers = itertools.count()
        self._requests_in_flight = 0

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", seed: int = 0, **options: Any) -> VLLMPolicy:
        """`options`: more of vLLM's engine arguments, such as gpu_memory_utilization=0.5 or max_model_len=4096."""
        try:
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError:
            raise MissingExtra("a model named 'vllm:FOLDER'", "vllm", "vllm") from None
        folder = Path(folder).expanduser()
        if not folder.is_dir():
            raise ModelError(f"no model folder at {folder}; check the path")
        manifest.verify(folder)
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork has no CUDA where there was any before
        told = {"trust_remote_code": False, "logprobs_mode": "processed_logprobs", "disable_log_stats": True, **options}
        tokenizer = Tokenizer.from_folder(folder)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="vllm", daemon=True).start()

        async def begin() -> Any:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(folder), dtype=dtype, **told))

        try:
            engine = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        except Exception as reason:  # vLLM raises nothing narrower
            loop.call_soon_threadsafe(loop.stop)
            said = " ".join(str(reason).split()) or type(reason).__name__
            raise ModelError(f"vLLM cannot run {folder}: {said}") from reason
        return cls(engine, loop, tokenizer, seed)

    async def reload(self, folder: Path | str) -> None:
        """New weights of the same shape, from a folder; later completions carry the next version."""
        if self._requests_in_flight:
            raise UsageError(f"{self._requests_in_flight} texts are in hand: wait for them before the weights change")
        manifest.verify(Path(folder))
        await self._in_engine_loop(self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)}))
        await self._in_engine_loop(self.engine.reset_prefix_cache())
        self.version += 1

    def close(self) -> None:
        """Give the memory back."""
        self.engine.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _generate(self, request: Request) -> list[SequenceState]:
        if request.sampling.logprobs and sampling_params.changes_distribution(request.sampling):
            raise UsageError(
                "vLLM's alternatives are of the distribution sampled from: ask at temperature 1 or 0, uncut"
            )
        options = [self._sampling_params(request, j) for j in range(request.n)]  # refuses before anything is asked
        tasks = [asyncio.ensure_future(self._row(request, j, params)) for j, params in enumerate(options)]
        self._requests_in_flight += request.n
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:  # one failed: nobody waits for the others
            for task in tasks:
                task.cancel()
            raise
        finally:
            self._requests_in_flight -= request.n

    def _flops(self, context: int) -> float:
        return 0.0

    def _sampling_params(self, request: Request, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        told = sampling_params.vllm_sampling_params(
            request.sampling, sampling_params.continuation_seed(request.seed, number), self.eos
        )
        if form := told.pop("structured_outputs", None):
            told["structured_outputs"] = StructuredOutputsParams(**form)
        return SamplingParams(**told, output_kind=RequestOutputKind.FINAL_ONLY)

    async def _row(self, request: Request, number: int, params: Any) -> SequenceState:
        began = time.perf_counter()
        name = f"ponder-{next(self._request_numbers)}"
        found = await self._in_engine_loop(self._final_output(request.prefix.tolist(), params, name))
        (said,), top = found.outputs, request.sampling.logprobs
        row = SequenceState(request, number, 0, token_ids=list(said.token_ids))
        row.logprobs = [told[token].logprob for token, told in zip(row.token_ids, said.logprobs, strict=True)]
        row.versions = [self.version] * len(row.token_ids)
        if said.finish_reason not in ("stop", "length"):
            raise ModelError(f"vLLM broke off an answer: {said.finish_reason}")
        ended = "eos" if said.stop_reason is None or row.token_ids[-1] in self.eos else "stop"
        row.stop = "length" if said.finish_reason == "length" else ended  # type: ignore[assignment]
        for told in said.logprobs if top else ():
            best = sorted(((x.logprob, token) for token, x in told.items()), reverse=True)[:top]
            row.top_logprobs.append((ids([t for _, t in best]), np.array([x for x, _ in best], np.float32)))
        row.prefill_tokens = max(0, len(request.prefix) - (found.num_cached_tokens or 0) - 1)
        row.seconds = time.perf_counter() - began
        self.on_tokens(len(row.token_ids))
        return row

    async def _final_output(self, prompt: list[int], params: Any, name: str) -> Any:
        async for found in self.engine.generate({"prompt_token_ids": prompt}, params, name):
            if found.finished:
                return found
        raise ModelError("vLLM ended a request without an answer")

    async def _in_engine_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """In the engine's loop. A caller that gives up cancels it there, which frees its place."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
