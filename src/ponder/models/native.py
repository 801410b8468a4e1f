"""The `native` policy: ponder's own networks, sampled in this process from the weights the learner trains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from ponder.engine.engine import Engine, logprobs
from ponder.engine.request import Request, Row
from ponder.errors import UsageError
from ponder.models.local import Local
from ponder.models.tokenizer import Tokenizer
from ponder.nets.decoder import Decoder
from ponder.protocols import Through
from ponder.types import Completion, Floats, Ids, Sampling, ids


class Native(Local):
    """A `Policy` over a `Decoder`, by continuous batching."""

    def __init__(
        self, net: Decoder, tokenizer: Tokenizer, seed: int = 0, cache_bytes: int | None = None, small: str = ""
    ) -> None:
        tokenizer.fits(net.config)
        self.net = net
        self.engine = Engine(net, frozenset(tokenizer.eos), self._stopped, cache_bytes=cache_bytes, small=small)
        super().__init__(tokenizer, net.config.vocab, net.config.context, seed)
        self.engine.watch = lambda tokens: self.watch(tokens)
        self.engine.before = self._fresh
        self._weights: list[nn.Parameter] = []
        self._stamp: tuple[int, ...] = ()

    def stream(self, *seed: int) -> None:
        """Also forgets what is cached: what comes now is the same to the bit, whatever was asked before."""
        super().stream(*seed)
        self.engine.renew()

    def adapted(self, name: str) -> Adapted:
        """This policy with one of its engine's adapters."""
        return Adapted(self, name)

    async def words(
        self, prefix: Ids, sampling: Sampling, n: int = 1, adapter: str = ""
    ) -> AsyncIterator[tuple[int, int] | Completion]:
        """Each token as it is drawn, as (continuation, token); then the completions."""
        request = self.request(prefix, sampling, n, adapter)
        async for word in self.engine.stream(request):
            if isinstance(word, tuple):
                yield word[:2]
            else:
                for row in word:
                    yield self._completion(row)

    async def read(self, tokens: Ids, begin: int = 0, adapter: str = "") -> Tensor:
        """Hidden states [t, E] from position `begin` on, after the last norm: what a value or reward head reads."""
        tokens = ids(tokens)
        self._readable(tokens)
        if not 0 <= begin < len(tokens):
            raise UsageError(f"begin is {begin}; the text has {len(tokens)} tokens")
        return await self.engine.read(tokens, begin, adapter)

    async def score(self, prefix: Ids, text: Ids, adapter: str = "") -> Floats:
        """The log-probability of each token of a text after a prefix, at temperature 1."""
        tokens = np.append(ids(prefix), ids(text))
        self._readable(tokens)
        if not len(prefix) or not len(text):
            raise UsageError("a score needs at least one token before the text, and one of the text")
        hidden = await self.engine.read(tokens[:-1], len(prefix) - 1, adapter)
        with torch.inference_mode():
            said = logprobs(self.net, hidden, torch.from_numpy(ids(text).astype(np.int64)).to(hidden.device))
        return np.asarray(said.cpu().numpy(), np.float32)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In here the weights may change under texts in hand; then they go on, each token with its version."""
        with self.engine.paused():
            try:
                yield
            finally:
                self._weights = list(self.net.parameters())  # others may have taken their place
                self._fresh()  # before the next pass: what it finds in the cache is of these weights

    def sleep(self) -> None:
        """Give the cache's memory to others until the next call, where it is scarce: on a GPU, for a learner."""
        if self.net.device.type == "cuda" and not self.engine.busy:
            self.engine.sleep()

    async def _continue(self, request: Request) -> list[Row]:
        return await self.engine.generate(request)

    def _flops(self, context: int) -> float:
        return self.net.config.flops_per_token(context)

    def _readable(self, tokens: Ids) -> None:
        if not len(tokens) or tokens.min() < 0 or tokens.max() >= self._vocab:
            raise UsageError(f"a text needs at least one token, each below the vocabulary's {self._vocab}")
        if len(tokens) > self._context:
            raise UsageError(f"the text has {len(tokens)} tokens, the model's context only {self._context}")

    def _fresh(self) -> None:
        """Forget what was computed with older weights: another version, or a tensor written to since. Writing past
        torch's own count (`p.data.copy_`, torch's fused optimisers) is not seen: raise `version`, or `engine.renew()`.
        """
        if not self.engine.in_hand:
            self._weights = list(self.net.parameters())
        written = (0 if w.is_inference() else w._version for w in self._weights)
        stamp = (self.version, *written, *(w.data_ptr() for w in self._weights))
        if stamp != self._stamp:
            self.engine.version = self.version
            self.engine.renew()
            self._stamp = stamp  # last: a call in another thread that finds it must find the cache empty too


class Adapted(Through):
    """A `Policy`: another one with an adapter on. It has no memory of its own, and shares every batch."""

    policy: Native

    def __init__(self, policy: Native, name: str) -> None:
        with policy.engine.adapters.used(name):
            self.policy, self.name = policy, name

    @property
    def version(self) -> int:
        return self.policy.version

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        policy = self.policy
        rows = await policy._continue(policy.request(prefix, sampling, n, self.name))
        return [policy._completion(row) for row in rows]

    def words(self, prefix: Ids, sampling: Sampling, n: int = 1) -> AsyncIterator[tuple[int, int] | Completion]:
        return self.policy.words(prefix, sampling, n, self.name)

    async def read(self, tokens: Ids, begin: int = 0) -> Tensor:
        return await self.policy.read(tokens, begin, self.name)

    async def score(self, prefix: Ids, text: Ids) -> Floats:
        return await self.policy.score(prefix, text, self.name)
