"""`ThinkingPolicy`: whole answers of a model that thinks first, for strategies that sample answers side by side.

Each answer is sampled in two calls: the thinking up to its end marker, then the answer. So stop strings and grammars
hold for the answer alone, and thinking always leaves tokens for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ponder.models.base_policy import gather_or_cancel
from ponder.protocols import PolicyWrapper
from ponder.reason.operators.completions import keep_first_tokens
from ponder.serve.served_models import ThinkMarkers
from ponder.serve.strategy_choice import answer_reserve
from ponder.serve.streaming_policy import StreamingPolicy
from ponder.types import Completion, Cost, Floats, Ids, Sampling, ids

ANSWER_SEPARATOR = "\n\n"  # written after an end of thinking that the model did not write itself


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """The answer in a completion that also has its thinking: `start` tokens are before it."""

    completion_tokens: Ids
    start: int
    top_logprobs: tuple[Ids, Floats] | None  # of the answer's own tokens


class ThinkingPolicy(PolicyWrapper):
    """`answers`: the answer in each completion, by the identity of its array of tokens, which steps keep."""

    policy: StreamingPolicy

    def __init__(
        self, policy: StreamingPolicy, markers: ThinkMarkers, is_open: Callable[[Ids], bool], max_thinking: int | None
    ) -> None:
        self.policy, self.markers, self.is_open, self.max_thinking = policy, markers, is_open, max_thinking
        self.answers: dict[int, SampledAnswer] = {}

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        opening = ids([]) if self.is_open(prefix) else self.policy.tokens(self.markers.start + "\n")
        prefix = np.concatenate([prefix, opening])
        room = sampling.max_tokens - answer_reserve(sampling.max_tokens)
        room = room if self.max_thinking is None else min(room, self.max_thinking)
        thoughts: list[Completion | None] = [None] * n
        if room > 0 and not self.policy.control.end_thinking.is_set():
            how = thinking_sampling(sampling, room, self.markers)
            self.policy.thinking = True
            try:
                thoughts = list(await self.policy.generate(prefix, how, n))
            finally:
                self.policy.thinking = False
        return await gather_or_cancel(self._answer(prefix, opening, thought, sampling) for thought in thoughts)

    def find_answer(self, completion_tokens: Ids) -> SampledAnswer | None:
        known = self.answers.get(id(completion_tokens))
        return known if known is not None and known.completion_tokens is completion_tokens else None

    async def _answer(self, prefix: Ids, opening: Ids, thought: Completion | None, sampling: Sampling) -> Completion:
        parts = [self._written(opening, sampling)]
        used, cost, is_closed = 0, Cost(), False
        if thought is not None:
            used, cost, is_closed = thought.cost.generated_tokens, thought.cost, thought.stop == "stop"
            if thought.stop == "eos":
                thought = keep_first_tokens(thought, len(thought.token_ids) - 1, self.policy)
            parts.append(thought)
        if not is_closed:
            parts.append(self._written(self.policy.tokens(self.markers.end + ANSWER_SEPARATOR), sampling))
        how = answer_sampling(sampling, sampling.max_tokens - used, forced=not is_closed)
        (answer,) = await self.policy.generate(np.concatenate([prefix, *(p.token_ids for p in parts[1:])]), how)
        start = sum(len(part.token_ids) for part in parts)
        parts.append(answer)
        tokens = np.concatenate([part.token_ids for part in parts])
        self.answers[id(tokens)] = SampledAnswer(tokens, start, answer.top_logprobs)
        text = self.policy.text(tokens[:-1] if answer.stop == "eos" else tokens)
        logprobs = np.concatenate([part.logprobs for part in parts])
        known = [name for name in sampling.token_stats if all(name in part.notes for part in parts)]
        notes = {name: np.concatenate([part.notes[name] for part in parts]) for name in known}
        return Completion(text, tokens, logprobs, answer.stop, answer.version, cost + answer.cost, notes)

    def _written(self, tokens: Ids, sampling: Sampling) -> Completion:
        """Tokens that were written, not sampled: nothing else could have stood there, so every statistic is 0."""
        zeros = np.zeros(len(tokens), np.float32)
        return Completion(
            self.policy.text(tokens), tokens, zeros, "stop", notes=dict.fromkeys(sampling.token_stats, zeros)
        )


def thinking_sampling(sampling: Sampling, max_tokens: int, markers: ThinkMarkers) -> Sampling:
    """How thinking is sampled: up to its end marker, whatever the answer must look like."""
    return replace(
        sampling, max_tokens=max_tokens, min_tokens=0, stop=(markers.end,), stop_token_ids=(), regex="", json_schema="",
        structural_tag="", logprobs=0, allowed_token_ids=(),
    )  # fmt: skip


def answer_sampling(sampling: Sampling, max_tokens: int, forced: bool) -> Sampling:
    """How the answer is sampled. `forced`: the model did not end its thinking itself, so at least a token follows."""
    least = min(sampling.min_tokens, max_tokens)
    if forced and not sampling.has_grammar:
        least = max(1, least)
    if (max_tokens, least) == (sampling.max_tokens, sampling.min_tokens):
        return sampling
    return replace(sampling, max_tokens=max_tokens, min_tokens=least)
