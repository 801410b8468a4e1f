"""What happens while a request runs. Every API writes its reply from these events and from nothing else.

The order for one request: `Started`, then for each choice its `Reasoning`, then its `Content` and `ToolCallDelta`;
finally `Finished`. `StepsChanged` comes between them, for requests that ask for it. The texts of one choice's events of
a kind, joined, are its whole text. Events of several choices may interleave. While nothing
happens, `http_replies.StreamReply` keeps the connection alive by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ponder.serve.usage import Usage
from ponder.types import Trace

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The likeliest tokens at one position, and their log-probabilities."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted; nothing was sampled yet. `searches`: text may come late, or from one chain of many."""

    prompt_token_ids: Sequence[int] = ()
    searches: bool = False


@dataclass(frozen=True, slots=True)
class TextEvent:
    """More text of one choice, and the tokens that one look at the device brought.

    `token_ids` are those of the path that the answer lies on; a search that shows what it is doing has text alone. A
    piece may have tokens without text (half a character, a marker, the end of the sequence) or text without tokens.
    `logprobs` and `top_logprobs` are for each token, where they were asked for; a token that was written rather than
    sampled has the log-probability NaN.
    """

    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    top_logprobs: Sequence[TopLogprobs] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Reasoning(TextEvent):
    """Thinking: of the leading chain, or one line for each step that a search added."""


@dataclass(frozen=True, slots=True)
class Content(TextEvent):
    """The answer."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of one call of a tool. `id` and `name` stand in the first delta of a call only; `arguments` are pieces of
    its JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    choice: int = 0


@dataclass(frozen=True, slots=True)
class StepsChanged:
    """Steps of one choice's trace that are new or have other numbers, each with its `index`; only requests with
    `include_steps` have these. The last such event of a choice has `chosen`, the step that is the answer."""

    steps: Sequence[Mapping[str, Any]]
    choice: int = 0
    chosen: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """All choices are complete. `finish_reasons` and `traces` are by choice; `usage` counts all of them."""

    finish_reasons: tuple[FinishReason, ...]
    usage: Usage
    traces: tuple[Trace, ...] = field(default=(), repr=False)


Event = Started | Reasoning | Content | ToolCallDelta | StepsChanged | Finished
EventStream = AsyncIterator[Event]
