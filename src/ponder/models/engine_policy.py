"""What policies that sample in this process share: requests with grammars, stop strings, and FLOP counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from ponder.engine.request import GrammarMatcher, Request, SequenceState
from ponder.models.base_policy import BasePolicy, gather_or_cancel, stack_top_logprobs
from ponder.models.grammar import GrammarCompiler
from ponder.models.tokenizer import Tokenizer
from ponder.protocols import GenerateCall
from ponder.types import Completion, Cost, Ids, Sampling, ids, tokens_fit


class EnginePolicy(BasePolicy):
    """A `Policy` that draws its tokens with ponder's own sampler, and so knows every log-probability."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, context_length: int, seed: int = 0) -> None:
        super().__init__(tokenizer, vocab_size, context_length, seed)
        self._grammars = GrammarCompiler(tokenizer, vocab_size)

    @abstractmethod
    async def _generate(self, request: Request) -> list[SequenceState]:
        """Write all continuations of a request to their ends."""

    async def _generate_many(self, requests: Sequence[Request]) -> list[list[SequenceState]]:
        """The same of several requests."""
        return await gather_or_cancel(map(self._generate, requests))

    @abstractmethod
    def _flops(self, context: int) -> float:
        """FLOPs of one token after `context` others."""

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        return await self.complete(self.request(prefix, sampling, n))

    async def generate_many(self, calls: Sequence[GenerateCall], adapter: str = "") -> list[list[Completion]]:
        """Several calls of `generate` as one, for less of the host's time. If one fails, all do."""
        requests = self.requests(calls, adapter)
        groups = await self._generate_many(requests)
        completions = iter(self.completions([seq for seqs in groups for seq in seqs]))
        return [list(islice(completions, len(seqs))) for seqs in groups]

    async def complete(self, request: Request) -> list[Completion]:
        """The completions of a request."""
        return self.completions(await self._generate(request))

    def request(self, prefix: Ids, sampling: Sampling, n: int = 1, adapter: str = "") -> Request:
        """The engine's request for a call, or an error that names what cannot work."""
        prefix = ids(prefix)
        sampling = self._validate(prefix, sampling, n)
        grammar = self._grammars(sampling)
        seed = self._seed_for(prefix, sampling, adapter)
        return Request(self.engine_ids(prefix), sampling, n, seed, adapter, grammar)

    def requests(self, calls: Sequence[GenerateCall], adapter: str = "") -> list[Request]:
        """`request` of each call. All are checked before a seed is drawn for the first."""
        known = [(ids(prefix), sampling, n) for prefix, sampling, n in calls]
        if not self._valid_together(known):
            known = [(prefix, self._validate(prefix, sampling, n), n) for prefix, sampling, n in known]
        grammars: dict[int, Callable[[], GrammarMatcher] | None] = {}
        for _, sampling, _ in known:
            if id(sampling) not in grammars:
                grammars[id(sampling)] = self._grammars(sampling)
        return [
            Request(self.engine_ids(p), s, n, self._seed_for(p, s, adapter), adapter, grammars[id(s)])
            for p, s, n in known
        ]

    def _valid_together(self, calls: Sequence[GenerateCall]) -> bool:
        """Whether `_validate` would return each sampling as it is, where all are alike. False: ask it."""
        if len(calls) < 2:
            return False
        prefixes, samplings, counts = zip(*calls, strict=True)
        return (
            all(sampling is samplings[0] or sampling == samplings[0] for sampling in samplings)
            and all(prefix.ndim == 1 and len(prefix) for prefix in prefixes)
            and all(type(n) is int and n > 0 for n in counts)
            and tokens_fit(np.concatenate(prefixes), self.vocab_size, self.sees)
            and self._validate(max(prefixes, key=len), samplings[0], sum(counts)) is samplings[0]
        )

    def check_call(self, prefix: Ids, sampling: Sampling, n: int = 1) -> None:
        """Raise what a call would. Its grammar stays compiled."""
        self._grammars(self._validate(ids(prefix), sampling, n))

    def engine_ids(self, prefix: Ids) -> Ids:
        """A prefix as the engine takes it."""
        return prefix

    def completions(self, seqs: Sequence[SequenceState]) -> list[Completion]:
        """Finished sequences as completions. The text keeps a stop string, because the tokens do; only the
        end-of-sequence token has no text. Where the weights changed while a sequence was written, its notes have the
        version of each token."""
        arrays = [seq.arrays() for seq in seqs]
        texts = self._texts(seqs, [tokens for tokens, _ in arrays])
        flops_per_token: dict[int, float] = {}
        done: list[Completion] = []
        for seq, text, (tokens, logprobs) in zip(seqs, texts, arrays, strict=True):
            assert seq.stop is not None
            prompt, written = len(seq.request.prefix), seq.num_tokens
            prefilled, context = min(seq.prefill_tokens, prompt), prompt + written // 2
            if context not in flops_per_token:
                flops_per_token[context] = self._flops(context)
            flops = flops_per_token[context] * (prefilled + written - 1)
            cost = Cost(prefilled, prompt - prefilled, written, seq.discarded_tokens, flops, seq.seconds)
            notes = {name: np.asarray(values, np.float32) for name, values in seq.notes.items()} if seq.notes else {}
            if len(seq.version_runs) > 1:
                notes["version"] = np.asarray(seq.versions, np.float32)
            version, top = seq.version_runs[0][0], stack_top_logprobs(seq.top_logprobs)
            done.append(Completion(text, tokens, logprobs, seq.stop, version, cost, notes, top))
        return done

    def decode_ahead(self, seqs: Sequence[SequenceState]) -> None:
        """Decode what unfinished sequences have so far, so that `completions` decodes their last tokens only."""
        new = [np.frombuffer(seq.sampled_ids[seq.text_tokens :], np.int32) for seq in seqs]
        for seq, tokens, written in zip(seqs, new, self.tokenizer.written_bytes(new) or (), strict=False):
            seq.text += written
            seq.text_tokens += len(tokens)

    def _texts(self, seqs: Sequence[SequenceState], sampled: Sequence[Ids]) -> list[str]:
        """The texts of finished sequences, from their tokens."""
        shown = [tokens[:-1] if seq.stop == "eos" else tokens for seq, tokens in zip(seqs, sampled, strict=True)]
        if any([seq.text_tokens for seq in seqs]):
            rest = [tokens[seq.text_tokens :] for seq, tokens in zip(seqs, shown, strict=True)]
            if (written := self.tokenizer.written_bytes(rest)) is not None:
                return [(seq.text + end).decode(errors="replace") for seq, end in zip(seqs, written, strict=True)]
        return self.tokenizer.decode_many(shown)


def hit_stop_string(tokenizer: Tokenizer, seq: SequenceState) -> bool:
    """Whether the newest token completes a stop string. Each token has at least one byte, so a match that ends in
    the newest token lies within the last `reach` tokens."""
    stop = seq.sampling.stop
    if not stop:
        return False
    reach = max(len(s.encode()) for s in stop)
    first = max(len(seq.sampling.forced_token_ids), seq.num_tokens - reach - 1)
    written = seq.sampled_ids[first:].tolist()
    tail = tokenizer.decode(written, keep_special=True)
    ends = [tail.rfind(s) + len(s) for s in stop if s in tail]
    if not ends or not seq.sampling.min_tokens:
        return bool(ends)
    before = tokenizer.decode(written[:-1], keep_special=True)
    return max(ends) > len(before.rstrip("\ufffd"))  # a match that was complete before `min_tokens` does not stop
