"""`PonderPolicy`: one of ponder's own networks, sampled in this process from the weights that the learner trains."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ponder.engine.engine import Engine
from ponder.engine.mailbox import TokenChunk, TokenEvent
from ponder.engine.request import Request, SequenceState
from ponder.engine.sampler import logprobs_from_hidden
from ponder.errors import UsageError
from ponder.models.chunk_policy import ChunkPolicy
from ponder.models.engine_policy import EnginePolicy, hit_stop_string
from ponder.models.picture_prompt import encode_pictures
from ponder.models.tokenizer import Tokenizer
from ponder.nets.decoder import Decoder
from ponder.nets.parameter_list import ParameterList
from ponder.pictures.message_parts import content_pictures
from ponder.protocols import GenerateCall, PolicyWrapper
from ponder.reason.tools.tool_messages import ToolSchema
from ponder.types import Completion, Floats, Ids, Message, Sampling, ids
from ponder.weak_method import weak_method

_data_ptr = torch.Tensor.data_ptr


class PonderPolicy(EnginePolicy, ChunkPolicy):
    """A `Policy` over a `Decoder`. Its engine batches calls continuously."""

    def __init__(
        self, net: Decoder, tokenizer: Tokenizer, seed: int = 0, cache_bytes: int | None = None, quantization: str = ""
    ) -> None:
        tokenizer.check_fits(net.config)
        self.net = net
        self.engine = Engine(
            net,
            frozenset(tokenizer.eos),
            partial(hit_stop_string, tokenizer),
            cache_bytes=cache_bytes,
            quantization=quantization,
        )
        super().__init__(tokenizer, net.config.vocab, net.config.context, seed)
        if net.config.vision is not None:
            self.sees, self.image_token = True, net.config.vision.image_token
        self.engine.on_tokens = weak_method(self._tell_tokens, lambda: None)
        self.engine.beside_device = weak_method(self.decode_ahead, lambda: None)
        # Called with each token as it is sampled: (index of the sequence in its request, token, log-probability).
        self.on_token: Callable[[TokenEvent], None] | None = None
        self.engine.mailbox.before_submit = weak_method(
            self.drop_stale_cache, self.engine.mailbox.notify_weights_changed
        )
        self._parameters = ParameterList(net)
        self._weights: list[nn.Parameter] = []
        self.weights_stamp: tuple[int, ...] = ()

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Ids:
        if self.net.config.vision is None or not any(content_pictures(m.get("content")) for m in messages):
            return super().encode(messages, tools)
        if tools:
            raise UsageError("a conversation with pictures cannot have tools yet; leave out one of them")
        return encode_pictures(self.tokenizer, messages, self.net.config.vision)

    def engine_ids(self, prefix: Ids) -> Ids:
        return prefix if self.net.config.vision is None else self.net.picture_table.local_ids(prefix)

    def reseed(self, *seed: int) -> None:
        """Restart the random stream and empty the cache: the same calls then give the same bits."""
        super().reseed(*seed)
        self.engine.refresh_weights()

    def with_adapter(self, name: str) -> AdapterPolicy:
        """This policy with a LoRA adapter that its engine holds."""
        return AdapterPolicy(self, name)

    async def stream_tokens(
        self, prefix: Ids, sampling: Sampling, n: int = 1, adapter: str = ""
    ) -> AsyncIterator[tuple[int, int] | Completion]:
        """Yield each token as it is drawn, as (continuation, token); then the completions."""
        request = self.request(prefix, sampling, n, adapter)
        async for event in self.engine.stream(request):
            if isinstance(event, tuple):
                yield event[:2]
            else:
                for completion in self.completions(event):
                    yield completion

    async def stream_chunks(
        self, prefix: Ids, sampling: Sampling, n: int = 1, adapter: str = ""
    ) -> AsyncGenerator[TokenChunk | list[Completion]]:
        """Yield the tokens that each look at the device brought; then the completions."""
        async with aclosing(self.engine.stream_chunks(self.request(prefix, sampling, n, adapter))) as events:
            async for event in events:
                yield event if isinstance(event, TokenChunk) else self.completions(event)

    async def generate_with_chunks(
        self, prefix: Ids, sampling: Sampling, n: int, on_chunk: Callable[[TokenChunk], None], adapter: str = ""
    ) -> list[Completion]:
        """The completions. `on_chunk` is called in the event loop with the tokens that each look at the device brought,
        which costs less than `stream_chunks`; it must not raise."""
        request = self.request(prefix, sampling, n, adapter)
        return self.completions(await self.engine.generate(request, on_chunk))

    async def hidden_states(self, tokens: Ids, begin: int = 0, adapter: str = "") -> Tensor:
        """Hidden states [t, E] from position `begin` on, after the last norm: what a value or reward head reads."""
        tokens = ids(tokens)
        self._check_tokens(tokens)
        if not 0 <= begin < len(tokens):
            raise UsageError(f"begin is {begin}; the text has {len(tokens)} tokens")
        return await self.engine.read_hidden_states(self.engine_ids(tokens), begin, adapter)

    async def token_logprobs(self, prefix: Ids, text: Ids, adapter: str = "") -> Floats:
        """The log-probability of each token of a text after a prefix, at temperature 1."""
        tokens = np.append(ids(prefix), ids(text))
        self._check_tokens(tokens)
        if not len(prefix) or not len(text):
            raise UsageError("log-probabilities need at least one token before the text, and one of the text")
        hidden = await self.engine.read_hidden_states(self.engine_ids(tokens[:-1]), len(prefix) - 1, adapter)
        with torch.inference_mode():
            targets = torch.from_numpy(ids(text).astype(np.int64)).to(hidden.device)
            logprobs = logprobs_from_hidden(self.net, hidden, targets)
        return np.asarray(logprobs.cpu().numpy(), np.float32)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this block the weights may change while requests are in flight. The requests continue afterwards, and
        each token records its version."""
        with self.engine.paused():
            try:
                yield
            finally:
                self._weights = self._parameters()  # the parameters may be new objects
                self.drop_stale_cache()  # before the next pass reads the cache

    def sleep(self) -> None:
        """On a GPU, free the cache's memory until the next call, so that a learner can use it."""
        if self.net.device.type == "cuda" and not self.engine.busy:
            self.engine.sleep()

    async def _generate(self, request: Request) -> list[SequenceState]:
        if self.on_token is None:
            return await self.engine.generate(request)
        seqs: list[SequenceState] = []
        async for event in self.engine.stream(request):
            if isinstance(event, list):
                seqs = event
            else:
                self.on_token(event)
        return seqs

    async def _generate_many(self, requests: Sequence[Request]) -> list[list[SequenceState]]:
        if self.on_token is None:
            return await self.engine.generate_many(requests)
        return await super()._generate_many(requests)

    def _tell_tokens(self, tokens: int) -> None:
        self.on_tokens(tokens)

    def _flops(self, context: int) -> float:
        return self.net.model_config.flops_per_token(context)

    def _check_tokens(self, tokens: Ids) -> None:
        if not len(tokens) or (tokens.min() < 0 and not self.sees) or tokens.max() >= self.vocab_size:
            raise UsageError(f"a text needs at least one token, each below the vocabulary's {self.vocab_size}")
        if len(tokens) > self.context_length:
            raise UsageError(f"the text has {len(tokens)} tokens, the model's context only {self.context_length}")

    def drop_stale_cache(self) -> None:
        """Empty the cache if the weights changed: `version` was raised, or a tensor was written to. Writes that torch
        does not count (`p.data.copy_`, torch's fused optimisers) are not seen: raise `version` or call
        `engine.refresh_weights()`.
        """
        if not self.engine.has_requests:
            self._weights = self._parameters()
        try:
            written = [w._version for w in self._weights]
        except RuntimeError:  # one was made under `inference_mode` and counts no writes
            written = [0 if w.is_inference() else w._version for w in self._weights]
        stamp = (self.version, *written, *map(_data_ptr, self._weights))
        if stamp != self.weights_stamp:
            self.engine.version = self.version
            self.engine.refresh_weights()
            self.weights_stamp = stamp  # last: a call in another thread that sees it must see the empty cache too

    def weight_versions(self) -> tuple[int, ...]:
        """Changes when the weights do, but not when the engine moves the same weights to other memory."""
        return self.weights_stamp[: 1 + len(self._weights)]


class AdapterPolicy(PolicyWrapper, ChunkPolicy):
    """A `PonderPolicy` with a LoRA adapter. It shares the other's weights and batches."""

    policy: PonderPolicy

    def __init__(self, policy: PonderPolicy, name: str) -> None:
        with policy.engine.adapters.in_use(name):
            self.policy, self.name = policy, name

    @property
    def version(self) -> int:
        return self.policy.version

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        return await self.policy.complete(self.policy.request(prefix, sampling, n, self.name))

    async def generate_many(self, calls: Sequence[GenerateCall]) -> list[list[Completion]]:
        return await self.policy.generate_many(calls, self.name)

    def stream_tokens(self, prefix: Ids, sampling: Sampling, n: int = 1) -> AsyncIterator[tuple[int, int] | Completion]:
        return self.policy.stream_tokens(prefix, sampling, n, self.name)

    def stream_chunks(
        self, prefix: Ids, sampling: Sampling, n: int = 1
    ) -> AsyncGenerator[TokenChunk | list[Completion]]:
        return self.policy.stream_chunks(prefix, sampling, n, self.name)

    async def generate_with_chunks(
        self, prefix: Ids, sampling: Sampling, n: int, on_chunk: Callable[[TokenChunk], None]
    ) -> list[Completion]:
        return await self.policy.generate_with_chunks(prefix, sampling, n, on_chunk, self.name)

    async def hidden_states(self, tokens: Ids, begin: int = 0) -> Tensor:
        return await self.policy.hidden_states(tokens, begin, self.name)

    async def token_logprobs(self, prefix: Ids, text: Ids) -> Floats:
        return await self.policy.token_logprobs(prefix, text, self.name)
