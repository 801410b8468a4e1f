"""`ThinkingPolicy`: whole answers of a model that thinks first, for strategies that sample answers side by side.

Each answer is sampled in two calls: the thinking up to its end marker, then the answer. So stop strings and grammars
hold for the answer alone, and thinking always leaves tokens for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ponder.models.base_policy import gather_or_cancel
from ponder.protocols import PolicyWrapper
from ponder.reason.operators.completions import keep_first_tokens
from ponder.serve.served_models import ThinkMarkers
from ponder.serve.strategy_choice import answer_reserve
from ponder.serve.streaming_policy import StreamingPolicy
from ponder.types import Completion, Ids, Sampling, ids

ANSWER_SEPARATOR = "\n\n"  # written after an end of thinking that the model did not write itself


class ThinkingPolicy(PolicyWrapper):
    """`answer_starts`: for each completion, by the identity of its tokens' array, where its answer begins."""

    policy: StreamingPolicy

    def __init__(
        self, policy: StreamingPolicy, markers: ThinkMarkers, is_open: Callable[[Ids], bool], max_thinking: int | None
    ) -> None:
        self.policy, self.markers, self.is_open, self.max_thinking = policy, markers, is_open, max_thinking
        self.answer_starts: dict[int, tuple[Ids, int]] = {}

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

    async def _answer(self, prefix: Ids, opening: Ids, thought: Completion | None, sampling: Sampling) -> Completion:
        parts, logprobs = [opening], [_written(opening)]
        used, cost = 0, None
        is_closed = False
        if thought is not None:
            used, cost, is_closed = thought.cost.generated_tokens, thought.cost, thought.stop == "stop"
            if thought.stop == "eos":
                thought = keep_first_tokens(thought, len(thought.token_ids) - 1, self.policy)
            parts.append(thought.token_ids)
            logprobs.append(thought.logprobs)
        if not is_closed:
            closing = self.policy.tokens(self.markers.end + ANSWER_SEPARATOR)
            parts.append(closing)
            logprobs.append(_written(closing))
        how = answer_sampling(sampling, sampling.max_tokens - used, forced=not is_closed)
        (answer,) = await self.policy.generate(np.concatenate([prefix, *parts[1:]]), how)
        tokens = np.concatenate([*parts, answer.token_ids])
        self.answer_starts[id(tokens)] = tokens, sum(map(len, parts))
        text = self.policy.text(tokens[:-1] if answer.stop == "eos" else tokens)
        scores = np.concatenate([*logprobs, answer.logprobs])
        total = answer.cost if cost is None else cost + answer.cost
        return Completion(text, tokens, scores, answer.stop, answer.version, total)


def thinking_sampling(sampling: Sampling, max_tokens: int, markers: ThinkMarkers) -> Sampling:
    """How thinking is sampled: up to its end marker, whatever the answer must look like."""
    return replace(
        sampling, max_tokens=max_tokens, min_tokens=0, stop=(markers.end,), stop_token_ids=(), regex="", json_schema="",
        logprobs=0, allowed_token_ids=(),
    )  # fmt: skip


def answer_sampling(sampling: Sampling, max_tokens: int, forced: bool) -> Sampling:
    """How the answer is sampled. `forced`: the model did not end its thinking itself, so at least a token follows."""
    least = min(sampling.min_tokens, max_tokens)
    if forced and not (sampling.regex or sampling.json_schema):
        least = max(1, least)
    return replace(sampling, max_tokens=max_tokens, min_tokens=least)


def _written(tokens: Ids) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Log-probabilities of tokens that were written, not sampled: nothing else could have stood there."""
    return np.zeros(len(tokens), np.float32)
