"""`GenerationRequest`: what a request asks for, whichever API it came through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ponder.types import Message, Sampling

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A strategy by name, with settings in place of its own."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    guide: str = ""  # a name in the server's table of guides; empty: the strategy's own


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request. The prompt is `messages`, or `prompt_token_ids` where those are given.

    `sampling` is how the answer is sampled: its `max_tokens` and `seed` are not read, and `given` names those of its
    fields that the client set, since a strategy keeps its own for the others. Stop strings and grammars are for the
    answer and never for the thinking before it.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_field: str = "messages"  # where the request has its prompt, for errors
    sampling: Sampling = Sampling()
    given: frozenset[str] = frozenset()
    n: int = 1  # choices; each has its own bound on tokens
    seed: int | None = None
    max_tokens: int | None = None  # of all that is sampled for one choice; None: the effort's, or the server's default
    effort: str | None = None  # a level of `ponder.reason.effort`
    strategy: StrategySpec | None = None
    thinking: bool | None = None  # None: where the effort is not "none" and the model thinks
    thinking_token_budget: int | None = None
    include_reasoning: bool = True  # False: thoughts are sampled and counted, but not sent
    logprobs: bool = False
    top_logprobs: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()
    strict_tools: frozenset[str] = frozenset()  # names of those whose calls must follow their schemas
    tool_choice: ToolChoice | str = "auto"  # or the name of the one tool to call
    parallel_tool_calls: bool = True
    template_fields: Mapping[str, Any] = field(default_factory=dict)  # chat_template_kwargs
    return_token_ids: bool = False
    return_trace: bool = False
    episode: str = ""  # that the client says it belongs to, where the server records episodes
    include_steps: bool = False  # of a stream: emit `StepsChanged` while the search runs
