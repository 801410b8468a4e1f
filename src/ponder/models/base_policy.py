"""What policies in this process share: which calls can work, which random numbers they draw, what a completion says."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ponder import memory_check
from ponder.engine.request import Request, SequenceState
from ponder.errors import UsageError
from ponder.models import chat_templates
from ponder.models.grammar import GrammarCompiler
from ponder.models.tokenizer import Tokenizer
from ponder.types import Completion, Cost, Floats, Ids, Message, Sampling, ids
from ponder.validate import short_repr

_MAX_REMEMBERED_PREFIXES = 1 << 20  # prefixes of which is known how often they were asked for


class BasePolicy(ABC):
    """A `Policy`. `version` counts weight updates; each completion records the one that wrote it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, context: int, seed: int = 0) -> None:
        self.tokenizer = tokenizer
        self.eos = frozenset(tokenizer.eos)
        self.version = 0
        self.on_tokens: Callable[[int], None] = lambda tokens: (
            None
        )  # told of tokens as they are written; may raise to stop
        self.vocab_size, self.context_length = vocab, context
        self._grammars = GrammarCompiler(tokenizer, vocab)
        self.reseed(seed)

    @abstractmethod
    async def _generate(self, request: Request) -> list[SequenceState]:
        """Every continuation, each at its end."""

    @abstractmethod
    def _flops(self, context: int) -> float:
        """Of one token after so many others."""

    def encode(self, messages: Sequence[Message]) -> Ids:
        return chat_templates.encode_chat(self.tokenizer, messages)

    def tokens(self, text: str) -> Ids:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, tokens: Ids) -> str:
        return self.tokenizer.decode(tokens, keep_special=True)

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        request = self.request(prefix, sampling, n)
        return [self._completion(row) for row in await self._generate(request)]

    def request(self, prefix: Ids, sampling: Sampling, n: int = 1, adapter: str = "") -> Request:
        """What is asked of the engine, or an error that says what cannot work."""
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        guide = self._grammars(sampling)
        seed = self._next_seed(prefix, adapter) if sampling.seed is None else sampling.seed
        return Request(prefix, sampling, n, seed, adapter, guide)

    def reseed(self, *seed: int) -> None:
        """Start the policy's own random stream. A call's draws depend on it, the prefix, and how often that
        prefix was continued before; not on the order in which calls for different prefixes arrive."""
        self._stream_key = hashlib.blake2b(repr(seed).encode(), digest_size=16).digest()
        self._times_asked: Counter[bytes] = Counter()

    def _next_seed(self, prefix: Ids, adapter: str = "") -> int:
        key = hashlib.blake2b(prefix.tobytes() + adapter.encode(), key=self._stream_key, digest_size=16).digest()
        self._times_asked[key] += 1
        if (
            len(self._times_asked) > _MAX_REMEMBERED_PREFIXES
        ):  # go on with another stream, in which nothing was asked yet
            self._stream_key, self._times_asked = (
                hashlib.blake2b(self._stream_key, digest_size=16).digest(),
                Counter({key: 1}),
            )
        return int.from_bytes(hashlib.blake2b(key + self._times_asked[key].to_bytes(8), digest_size=8).digest())

    def _validate(self, prefix: Ids, sampling: Sampling, n: int) -> Sampling:
        if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1:
            raise UsageError(f"n is {short_repr(n)}; ask for at least one completion")
        memory_check.require_memory(n * memory_check.COMPLETION_BYTES, n=n)
        if prefix.ndim != 1 or not len(prefix) or prefix.min() < 0 or prefix.max() >= self.vocab_size:
            raise UsageError(f"a prefix needs at least one token, each below the vocabulary's {self.vocab_size}")
        if named := [token for token in sampling.named_token_ids if token >= self.vocab_size]:
            raise UsageError(
                f"token {named[0]} is allowed, forced, biased or a stop; the vocabulary has {self.vocab_size} tokens"
            )
        left = self.context_length - len(prefix)
        if left < max(1, sampling.min_tokens, len(sampling.forced_token_ids)):
            raise UsageError(f"the prompt has {len(prefix)} tokens, the model's context only {self.context_length}")
        return sampling if sampling.max_tokens <= left else replace(sampling, max_tokens=left)

    def _hit_stop_string(self, row: SequenceState) -> bool:
        """Has the newest token completed a stop string? A match ends in it, and each token has a byte or more."""
        stop = row.sampling.stop
        if not stop:
            return False
        reach = max(len(s.encode()) for s in stop)
        written = row.token_ids[len(row.sampling.forced_token_ids) :]
        tail = self.tokenizer.decode(written[-reach - 1 :], keep_special=True)
        found = [tail.rfind(s) + len(s) for s in stop if s in tail]
        if not found or not row.sampling.min_tokens:
            return bool(found)
        before = self.tokenizer.decode(written[-reach - 1 : -1], keep_special=True)
        return max(found) > len(before.rstrip("\ufffd"))  # one that was complete before `min_tokens` ends nothing

    def _completion(self, row: SequenceState) -> Completion:
        """The text keeps its stop string, since the tokens do; only the end-of-sequence token has no text."""
        assert row.stop is not None
        prompt, written = len(row.request.prefix), len(row.token_ids)
        fed = min(row.prefill_tokens, prompt)
        text = self.tokenizer.decode(row.token_ids[:-1] if row.stop == "eos" else row.token_ids, keep_special=True)
        notes: dict[str, Floats] = {name: np.asarray(values, np.float32) for name, values in row.notes.items()}
        if len(set(row.versions)) > 1:
            notes["version"] = np.asarray(row.versions, np.float32)
        return Completion(
            text=text,
            token_ids=ids(row.token_ids),
            logprobs=np.asarray(row.logprobs, dtype=np.float32),
            stop=row.stop,
            version=row.versions[0],
            cost=Cost(
                prompt_tokens=fed,
                cached_tokens=prompt - fed,
                generated_tokens=written,
                wasted_tokens=row.discarded_tokens,
                flops=self._flops(prompt + written // 2) * (fed + written - 1),
                seconds=row.seconds,
            ),
            notes=notes,
            top_logprobs=_stack_top_logprobs(row),
        )


def _stack_top_logprobs(row: SequenceState) -> tuple[Ids, Floats] | None:
    if not row.top_logprobs:
        return None
    tokens, logprobs = zip(*row.top_logprobs, strict=True)
    return np.stack(tokens), np.stack(logprobs).astype(np.float32)
