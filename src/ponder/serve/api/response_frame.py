"""The response object of the Responses API before anything was sampled: what the request asked for, given back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """Fields of a request that its response repeats, or that say what to keep of it."""

    instructions: str | None = None
    previous_response_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    store: bool = True
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    max_output_tokens: int | None = None
    effort: str | None = None
    summary: str | None = None  # "auto", "concise" or "detailed": thoughts are sent as summaries
    text_format: Mapping[str, Any] = field(default_factory=lambda: {"type": "text"})
    tools: Sequence[Mapping[str, Any]] = ()  # in the form of chat templates
    strict_tools: Collection[str] = ()
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    user: str | None = None


def response_frame(response_id: str, model: str, created_at: int, settings: ResponseSettings) -> dict[str, Any]:
    """The response, in progress, with no output yet. `usage` comes with its end; OpenAI's schema has no null there."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": settings.instructions,
        "max_output_tokens": settings.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": settings.parallel_tool_calls,
        "previous_response_id": settings.previous_response_id,
        "reasoning": {"effort": settings.effort, "summary": settings.summary},
        "service_tier": "default",
        "store": settings.store,
        "temperature": settings.temperature,
        "text": {"format": dict(settings.text_format)},
        "tool_choice": settings.tool_choice,
        "tools": [_flat_tool(tool, settings.strict_tools) for tool in settings.tools],
        "top_logprobs": settings.top_logprobs,
        "top_p": settings.top_p,
        "truncation": "disabled",
        "metadata": dict(settings.metadata),
        **({"user": settings.user} if settings.user is not None else {}),
    }


def _flat_tool(tool: Mapping[str, Any], strict: Collection[str]) -> dict[str, Any]:
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function["parameters"],
        "strict": function["name"] in strict,
    }
