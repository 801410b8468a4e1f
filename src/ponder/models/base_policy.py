"""What every policy shares: the tokenizer, checks of a call, the random stream, and building a `Completion`."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ponder import memory_check
from ponder.errors import UsageError
from ponder.models import chat_templates
from ponder.models.tokenizer import Tokenizer
from ponder.models.turn_bridge import TurnBridge
from ponder.protocols import Policy, PolicyWrapper
from ponder.reason.tools.tool_messages import ToolSchema, takes_tools, without_tool_roles
from ponder.types import Completion, Cost, Floats, Ids, Message, Sampling, StopReason, ids, tokens_fit
from ponder.validate import short_repr

T = TypeVar("T")

_MAX_REMEMBERED_PREFIXES = 1 << 20  # prefixes whose number of calls is remembered


_ConversationKey = tuple[tuple[tuple[str, str], ...], ...] | None


def _conversation_key(messages: Sequence[Message]) -> _ConversationKey:
    """Equal for equal conversations. None: something in it is no text."""
    key = tuple([tuple(message.items()) for message in messages])
    return key if all(type(value) is str for message in key for _, value in message) else None


class SeedStream:
    """The seeds of calls that name none."""

    def reseed(self, *seed: int) -> None:
        """Restart the random stream. The draws of a call without a seed depend on the stream, the prefix and how often
        that prefix was continued before. They do not depend on the order of calls for other prefixes."""
        self._stream_key = hashlib.blake2b(repr(seed).encode(), digest_size=16).digest()
        self._times_asked: Counter[bytes] = Counter()

    def _next_seed(self, prefix: Ids, adapter: str = "") -> int:
        key = hashlib.blake2b(prefix.tobytes() + adapter.encode(), key=self._stream_key, digest_size=16).digest()
        self._times_asked[key] += 1
        if len(self._times_asked) > _MAX_REMEMBERED_PREFIXES:  # continue with a new stream, in which no prefix is known
            self._stream_key = hashlib.blake2b(self._stream_key, digest_size=16).digest()
            self._times_asked = Counter({key: 1})
        return int.from_bytes(hashlib.blake2b(key + self._times_asked[key].to_bytes(8), digest_size=8).digest())


class BasePolicy(SeedStream, ABC):
    """A `Policy` with a tokenizer. `version` counts weight updates; each completion records the one that wrote it.

    `on_tokens` is called with the number of tokens written since the last call; it may raise to stop.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, context_length: int, seed: int = 0) -> None:
        self.tokenizer = tokenizer
        self.eos = frozenset(tokenizer.eos)
        self.version = 0
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        self.vocab_size, self.context_length = vocab_size, context_length
        self.image_token: int | None = None  # a token that no text may hold: it stands for pictures in the vocabulary
        self.sees = False  # prompts may have ids below 0, which stand for pictures
        self._encoded_ahead: dict[_ConversationKey, Ids] = {}
        self.reseed(seed)

    @abstractmethod
    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        """Continue a prefix, n times."""

    def encode_ahead(self, conversations: Iterable[Sequence[Message]]) -> None:
        """Encode conversations that `encode` is asked for next, while there is time. Each is kept until then, or until
        the next call of this."""
        self._encoded_ahead = {}
        keys = {_conversation_key(messages): messages for messages in conversations}
        self._encoded_ahead = {key: self.encode(messages) for key, messages in keys.items() if key is not None}

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Ids:
        if self._encoded_ahead and not tools:
            known = self._encoded_ahead.pop(_conversation_key(messages), None)
            if known is not None:
                return known
        if not tools:
            return chat_templates.encode_chat(self.tokenizer, messages)
        if not takes_tools(self.tokenizer.chat_template):
            return chat_templates.encode_chat(self.tokenizer, without_tool_roles(messages, tools))
        return chat_templates.encode_chat(self.tokenizer, messages, tools=list(tools))

    def bridge(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), closed: bool = True) -> Ids | None:
        """The tokens from the end of a turn to the next one's beginning; None if the chat template rewrites what was
        said before. `closed`: the turn ended with the end-of-sequence token."""
        return self._turn_bridge(messages, tools, closed)

    def turn_content(self, text: str) -> str:
        """What the policy wrote in a turn, as the content of a message: with a <think> that the prompt opened."""
        return self._turn_bridge.content(text)

    def turn_text(self, content: str) -> str:
        """The other way round: what the policy would write for this content."""
        return self._turn_bridge.turn_text(content)

    @cached_property
    def _turn_bridge(self) -> TurnBridge:
        return TurnBridge(self.tokenizer)

    def tokens(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, tokens: Ids) -> str:
        return self.tokenizer.decode(tokens, keep_special=True)

    def _seed_for(self, prefix: Ids, sampling: Sampling, adapter: str = "") -> int:
        return self._next_seed(prefix, adapter) if sampling.seed is None else sampling.seed

    def _validate(self, prefix: Ids, sampling: Sampling, n: int) -> Sampling:
        """The sampling, with `max_tokens` cut to what the context has left; or an error that names what cannot work."""
        if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
            raise UsageError(f"n is {short_repr(n)}; ask for at least one completion")
        memory_check.require_memory(n * memory_check.COMPLETION_BYTES, n=n)
        if prefix.ndim != 1 or not len(prefix) or not tokens_fit(prefix, self.vocab_size, self.sees):
            raise UsageError(f"a prefix needs at least one token, each below the vocabulary's {self.vocab_size}")
        if self.image_token is not None and self.image_token in sampling.named_token_ids:
            raise UsageError(f"token {self.image_token} stands for pictures, which no model writes: leave it out")
        if outside := [token for token in sampling.named_token_ids if token >= self.vocab_size]:
            raise UsageError(
                f"token {outside[0]} is allowed, forced, biased or a stop; the vocabulary has {self.vocab_size} tokens"
            )
        left = self.context_length - len(prefix)
        if left < max(1, sampling.min_tokens, len(sampling.forced_token_ids)):
            raise UsageError(f"the prompt has {len(prefix)} tokens, the model's context only {self.context_length}")
        return sampling if sampling.max_tokens <= left else replace(sampling, max_tokens=left)


@dataclass(slots=True)
class RawCompletion:
    """A continuation as an engine or a server returns it, before its tokens are decoded."""

    token_ids: list[int]
    logprobs: list[float]
    stop: StopReason
    cost: Cost
    top_logprobs: Sequence[tuple[Ids, Floats]] = ()  # per token: the likeliest tokens and their log-probabilities
    notes: Mapping[str, Sequence[float]] = field(default_factory=dict)


def build_completion(tokenizer: Tokenizer, raw: RawCompletion, version: int) -> Completion:
    """The text keeps its stop string, because the tokens do. Only the end-of-sequence token has no text."""
    return Completion(
        text=tokenizer.decode(raw.token_ids[:-1] if raw.stop == "eos" else raw.token_ids, keep_special=True),
        token_ids=ids(raw.token_ids),
        logprobs=np.asarray(raw.logprobs, dtype=np.float32),
        stop=raw.stop,
        version=version,
        cost=raw.cost,
        notes={name: np.asarray(values, np.float32) for name, values in raw.notes.items()},
        top_logprobs=stack_top_logprobs(raw.top_logprobs),
    )


def stack_top_logprobs(rows: Sequence[tuple[Ids, Floats]]) -> tuple[Ids, Floats] | None:
    """Of each token the likeliest ones, as arrays [tokens, k]; None where they were not asked for."""
    if not rows:
        return None
    tokens, logprobs = zip(*rows, strict=True)
    return np.stack(tokens), np.stack(logprobs).astype(np.float32)


class SeededPolicy(SeedStream, PolicyWrapper):
    """A policy with a random stream of its own, so that what others ask of the same policy does not change its draws.

    With the same seed and weights it draws what the policy itself would after `reseed`.
    """

    def __init__(self, policy: Policy, *seed: int) -> None:
        self.policy = policy
        self.reseed(*seed)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        if sampling.seed is None:
            sampling = sampling.with_seed(self._next_seed(ids(prefix)))
        return await self.policy.generate(prefix, sampling, n)


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all at the same time. Where one fails or the caller is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
