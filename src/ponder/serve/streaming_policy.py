"""`StreamingPolicy`: the policy of one choice of one request. It forwards what the leading chain samples, gives every
call a seed of its own, counts all tokens, and stops thinking when the client says so."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.engine.mailbox import TokenChunk
from ponder.errors import BudgetExhausted
from ponder.models.base_policy import RawCompletion, build_completion
from ponder.models.chunk_policy import ChunkPolicy
from ponder.protocols import PolicyWrapper
from ponder.serve.running_requests import Control
from ponder.serve.served_models import ServedModel
from ponder.types import Completion, Cost, Ids, Message, Sampling

Listener = Callable[[TokenChunk], None]


class StreamingPolicy(PolicyWrapper):
    """`listener` hears the first continuation of the next call. While `thinking`, the client may end what runs: a call
    then returns what it has, or raises `BudgetExhausted` where that is nothing."""

    def __init__(self, model: ServedModel, encode: Callable[[Sequence[Message]], Ids], seed: int, control: Control):
        self.model, self.policy, self._encode = model, model.policy, encode
        self.control, self.thinking = control, False
        self.listener: Listener | None = None
        self.after_call: Callable[[], None] = lambda: (
            None
        )  # called when a call has returned, before its steps are added
        self.sampled_tokens = 0
        self.cached_tokens = -1  # of the first call's prefix; -1: there was none
        self.top_logprobs: dict[int, Completion] = {}  # by the identity of their tokens' array, which steps keep
        self._seed, self._times_asked = seed, Counter[bytes]()

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        return self._encode(messages)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        if self.thinking and self.control.end_thinking.is_set():
            raise BudgetExhausted("the client ended the thinking")
        listener, self.listener = self.listener, None
        sampling = sampling.with_seed(self._next_seed(prefix))
        completions = await self._sample(prefix, sampling, n, listener)
        self.sampled_tokens += sum(c.cost.generated_tokens for c in completions)
        if self.cached_tokens < 0 and completions:
            self.cached_tokens = completions[0].cost.cached_tokens
        for c in completions if sampling.logprobs else ():
            self.top_logprobs[id(c.token_ids)] = c
        self.after_call()
        return completions

    def _next_seed(self, prefix: Ids) -> int:
        """A function of the request's seed, the prefix and how often it was continued: calls for other prefixes, of
        this request or another, do not change it."""
        key = hashlib.blake2b(prefix.tobytes(), digest_size=16).digest()
        self._times_asked[key] += 1
        text = f"{self._seed} {self._times_asked[key]} ".encode() + key
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())

    async def _sample(self, prefix: Ids, sampling: Sampling, n: int, listener: Listener | None) -> list[Completion]:
        if not isinstance(self.policy, ChunkPolicy):
            work = self.policy.generate(prefix, sampling, n)
            completions = await self._unless_ended(work, lambda: [])
            if listener is not None and completions:
                listener(_whole_chunk(completions[0]))
            return completions
        if not self.thinking and listener is None:
            return await self.policy.generate(prefix, sampling, n)
        heard = _HeardTokens(n if self.thinking else 0, listener)
        work = self._stream(prefix, sampling, n, heard)
        return await self._unless_ended(work, lambda: [self._partial(p) for p in heard.close() if p.token_ids])

    async def _stream(self, prefix: Ids, sampling: Sampling, n: int, heard: _HeardTokens) -> list[Completion]:
        assert isinstance(self.policy, ChunkPolicy)
        task = asyncio.current_task()
        assert task is not None
        heard.on_error = task.cancel
        try:
            return await self.policy.generate_with_chunks(prefix, sampling, n, heard.add)
        except asyncio.CancelledError:
            if heard.error is not None and not task.uncancel():  # else someone else ends the task too
                raise heard.error from None
            raise

    async def _unless_ended(self, work: Any, partial: Callable[[], list[Completion]]) -> list[Completion]:
        """The work's result, or what there is of it when the client ends the thinking."""
        if not self.thinking:
            return list(await work)
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self.control.end_thinking.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return list(task.result())
            if not (completions := partial()):
                raise BudgetExhausted("the client ended the thinking")
            return completions
        finally:
            ended.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _partial(self, part: TokenChunk) -> Completion:
        """A completion of the tokens that were sampled before the client ended it."""
        base = self.model.base
        assert base is not None
        cost = Cost(generated_tokens=len(part.token_ids))
        raw = RawCompletion(part.token_ids, part.logprobs, "length", cost, part.top_logprobs)
        return build_completion(base.tokenizer, raw, base.version)


@dataclass(eq=False)
class _HeardTokens:
    """The tokens of a call so far, of the first `n` continuations; `listener` hears those of the first. What comes
    after `close` is not heard any more."""

    n: int
    listener: Listener | None
    on_error: Callable[[], object] = lambda: None
    error: Exception | None = None
    is_open: bool = True

    def __post_init__(self) -> None:
        self.parts = [TokenChunk(i, [], [], []) for i in range(self.n)]

    def add(self, chunk: TokenChunk) -> None:
        if not self.is_open:
            return
        if chunk.sequence < self.n:
            part = self.parts[chunk.sequence]
            part.token_ids.extend(chunk.token_ids)
            part.logprobs.extend(chunk.logprobs)
            part.top_logprobs.extend(chunk.top_logprobs)
        if self.listener is not None and chunk.sequence == 0:
            try:
                self.listener(chunk)
            except Exception as reason:  # it must not reach the other requests, whose tokens came with these
                self.error, self.is_open = reason, False
                self.on_error()

    def close(self) -> list[TokenChunk]:
        self.is_open = False
        return self.parts


def _whole_chunk(c: Completion) -> TokenChunk:
    tops = [] if c.top_logprobs is None else list(zip(*c.top_logprobs, strict=True))
    return TokenChunk(0, c.token_ids.tolist(), c.logprobs.tolist(), tops)
