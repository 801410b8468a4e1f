"""Requests to the engine: sample continuations of a prefix, or read the hidden states of given tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ponder import memory_check
from ponder.engine import rng
from ponder.engine.radix_tree import RadixNode
from ponder.errors import UsageError
from ponder.types import Floats, Ids, Sampling, StopReason, tokens_fit
from ponder.validate import short_repr


class GrammarMatcher(Protocol):
    """Decides which tokens may come next; one matcher for each sequence."""

    def allowed_mask(self) -> NDArray[np.bool_]:
        """A mask over the vocabulary: True where a token is allowed."""
        ...

    def accept_token(self, token: int) -> None:
        """This token was sampled."""
        ...


@dataclass(eq=False, slots=True)
class Request:
    """Sample n continuations of these tokens. `seed` and the continuation's index determine what is sampled."""

    prefix: Ids
    sampling: Sampling
    n: int
    seed: int
    adapter: str = ""
    grammar: Callable[[], GrammarMatcher] | None = None


@dataclass(eq=False, slots=True)
class SequenceState:
    """One continuation of a request, and its state."""

    request: Request
    index: int  # which of the request's n
    rng_key: int  # of its random numbers, see rng.py
    num_tokens: int = 0  # that were sampled
    sampled_ids: array[int] = field(default_factory=lambda: array("i"))
    sampled_logprobs: array[float] = field(default_factory=lambda: array("f"))
    version_runs: list[tuple[int, int]] = field(default_factory=list)  # of the weights, each with its first token
    notes: dict[str, list[float]] = field(default_factory=dict)
    top_logprobs: list[tuple[Ids, Floats]] = field(default_factory=list)
    grammar: GrammarMatcher | None = None
    samples_on_device: bool = False  # needs temperature and truncation only, which the device can do
    emitted_tokens: int = 0  # that a caller who hears them has heard
    emitted_at: float = float("-inf")  # when it heard the last ones
    text: bytearray = field(default_factory=bytearray)  # of the tokens whose bytes are known already
    text_tokens: int = 0  # how many these are
    stop: StopReason | None = None
    prefill_tokens: int = 0  # tokens of its prefix that were computed for it; the others were in the cache
    discarded_tokens: int = 0  # tokens sampled after its end
    seconds: float = 0.0  # its share of the time of its steps
    # Where its keys and values are: of all tokens up to `node.end` in the tree, of those after it in `slots`.
    node: RadixNode | None = None
    slots: array[int] = field(default_factory=lambda: array("i"))
    priority: tuple[int, int] = (0, 0)

    @classmethod
    def from_request(cls, request: Request) -> list[SequenceState]:
        """The request's n sequences."""
        return cls.from_requests([request])

    @classmethod
    def from_requests(cls, requests: Sequence[Request]) -> list[SequenceState]:
        """The n sequences of each request."""
        keys = iter(rng.stream_keys_of_all([int(r.seed) for r in requests], [int(r.n) for r in requests]))
        seqs: list[SequenceState] = []
        s: Sampling | None = None  # of the request before
        for request in requests:
            grammar = request.grammar
            if request.sampling is not s:
                s = request.sampling
                plain = not (s.edits_logits or s.forced_token_ids or s.token_stats or s.logprobs)
            on_device = plain and grammar is None
            for j in range(request.n):
                own = grammar() if grammar else None
                seqs.append(cls(request, j, next(keys), grammar=own, samples_on_device=on_device))
        return seqs

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def adapter(self) -> str:
        return self.request.adapter

    def append(self, token: int, logprob: float, version: int) -> None:
        """A token was sampled, with weights of this version."""
        if not self.version_runs or self.version_runs[-1][0] != version:
            self.version_runs.append((version, self.num_tokens))
        self.sampled_ids.append(token)
        self.sampled_logprobs.append(logprob)
        self.num_tokens += 1

    def extend(self, count: int, token_ids: bytes, logprobs: bytes, version: int) -> None:
        """So many tokens were sampled: their int32 and the float32 of their log-probabilities."""
        if not self.version_runs or self.version_runs[-1][0] != version:
            self.version_runs.append((version, self.num_tokens))
        self.sampled_ids.frombytes(token_ids)
        self.sampled_logprobs.frombytes(logprobs)
        self.num_tokens += count

    @property
    def token_ids(self) -> list[int]:
        """A new list; `sampled_ids` are the tokens themselves."""
        return self.sampled_ids.tolist()

    @property
    def logprobs(self) -> list[float]:
        return self.sampled_logprobs.tolist()

    @property
    def versions(self) -> list[int]:
        """Of the weights, for each token."""
        ends = [*(start for _, start in self.version_runs[1:]), self.num_tokens]
        runs = zip(self.version_runs, ends, strict=False)  # nothing sampled yet: no run, and an end
        return [version for (version, start), end in runs for _ in range(start, end)]

    @property
    def newest_token(self) -> int:
        """The input of the next step."""
        return self.sampled_ids[-1] if self.num_tokens else int(self.request.prefix[-1])

    def arrays(self) -> tuple[Ids, Floats]:
        """Tokens and log-probabilities of a finished sequence, without a copy."""
        assert self.stop is not None
        return np.frombuffer(self.sampled_ids, np.int32), np.frombuffer(self.sampled_logprobs, np.float32)

    @property
    def tokens(self) -> Ids:
        if not self.num_tokens:
            return self.request.prefix
        return np.concatenate([self.request.prefix, np.array(self.sampled_ids)])

    @property
    def length(self) -> int:
        return len(self.request.prefix) + self.num_tokens

    @property
    def start(self) -> int:
        """Tokens before this index must be in the cache; the last token is the input of the next step."""
        return self.length - 1


@dataclass(eq=False, slots=True)
class ReadRequest:
    """Compute the hidden states of given tokens from `start` on."""

    tokens: Ids
    start: int
    adapter: str = ""
    hidden: list[Any] = field(default_factory=list)  # tensors [t, E], chunk by chunk
    prefill_tokens: int = 0
    seconds: float = 0.0
    node: RadixNode | None = None
    uncached: RadixNode | None = None  # the tokens from `start` on, not in the tree until they are computed
    priority: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        return len(self.tokens)


def check_requests(requests: Sequence[Request], vocab: int, pictures: bool = False) -> None:
    """Refuse what would make a step fail for the whole batch. Sampling options are validated again: they may have been
    unpickled or set by hand."""
    checked: object = requests  # no sampling yet
    for request in requests:
        if request.sampling is not checked:
            checked = _check_sampling(request.sampling, vocab)
        if not isinstance(request.adapter, str):
            raise UsageError("a request needs an adapter's name as a string")
        if not isinstance(request.n, int | np.integer) or isinstance(request.n, bool) or request.n < 1:
            raise UsageError(f"n is {short_repr(request.n)}; ask for at least one completion")
        if not isinstance(request.seed, int | np.integer) or request.seed < 0:
            raise UsageError(f"seed is {short_repr(request.seed)}; it must be 0 or positive")
    check_tokens([request.prefix for request in requests], vocab, pictures)
    n = sum([request.n for request in requests])
    memory_check.require_memory(n * memory_check.COMPLETION_BYTES, n=n)


def _check_sampling(sampling: Sampling, vocab: int) -> Sampling:
    if not isinstance(sampling, Sampling):
        raise UsageError("a request needs a Sampling")
    sampling.__post_init__()
    if outside := [token for token in sampling.named_token_ids if token >= vocab]:
        raise UsageError(f"token {outside[0]} is allowed, forced, biased or a stop; the vocabulary has {vocab} tokens")
    return sampling


def check_tokens(prefixes: Sequence[Any], vocab: int, pictures: bool = False) -> None:
    """`pictures`: ids below 0 stand for places of pictures."""
    sound = all(isinstance(p, np.ndarray) and p.ndim == 1 and p.dtype.kind == "i" and len(p) for p in prefixes)
    if not sound or not tokens_fit(np.concatenate(prefixes) if len(prefixes) > 1 else prefixes[0], vocab, pictures):
        raise UsageError(f"a prefix needs at least one token, each below the vocabulary's {vocab}")
