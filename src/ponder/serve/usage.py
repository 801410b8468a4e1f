"""What a request cost, as clients read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.types import Cost, Trace


@dataclass(frozen=True, slots=True)
class SearchUsage:
    """What the strategy did: an extension beside OpenAI's counts."""

    answers: int = 0  # branches that came to an answer
    nodes: int = 0  # steps that the policy sampled
    pruned: int = 0
    scorer_tokens: int = 0  # read and written by guides
    flops: float = 0.0
    seconds: float = 0.0  # of the device, shared with other requests

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Usage:
    """`completion_tokens` are all tokens that were sampled; `reasoning_tokens` those of them outside the answers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0  # of the prompt
    search: SearchUsage = SearchUsage()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def from_traces(
        cls,
        traces: Sequence[Trace],
        prompt_tokens: int,
        cached_tokens: int,
        sampled_tokens: int,
        content_tokens: int,
    ) -> Usage:
        """Of one request's traces, one for each choice. `sampled_tokens`: all; `content_tokens`: of the answers."""
        cost = sum((trace.cost for trace in traces), Cost())
        steps = [step for trace in traces for step in trace.steps]
        search = SearchUsage(
            answers=sum(len(trace.answers()) for trace in traces),
            nodes=sum(step.sampled for step in steps),
            pruned=sum(bool(step.pruned) for step in steps),
            scorer_tokens=cost.scorer_tokens,
            flops=cost.flops,
            seconds=cost.seconds,
        )
        reasoning = max(0, sampled_tokens - content_tokens)
        return cls(prompt_tokens, sampled_tokens, reasoning, min(cached_tokens, prompt_tokens), search)

    def to_chat_json(self) -> dict[str, Any]:
        """`usage` of chat and of completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "search": self.search.to_json(),
        }
