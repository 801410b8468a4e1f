"""`POST /v1/chat/completions`: the whole reply."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ponder.serve.api.token_texts import TokenTexts
from ponder.serve.events import Content, Event, Finished, Reasoning, Started, TextEvent, ToolCallDelta
from ponder.serve.generation import GenerationRequest


@dataclass(eq=False)
class ChoiceFold:
    """The events of one choice, joined."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def add_call(self, delta: ToolCallDelta) -> None:
        call = self.calls.setdefault(
            delta.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] += delta.id
        call["function"]["name"] += delta.name
        call["function"]["arguments"] += delta.arguments

    def message(self) -> dict[str, Any]:
        content, thought = "".join(self.content), "".join(self.reasoning)
        out: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if thought:
            out |= {"reasoning_content": thought, "reasoning": thought}
        if self.calls:
            out |= {"tool_calls": [self.calls[i] for i in sorted(self.calls)], "content": content or None}
        return out


def logprob_entries(event: TextEvent, texts: TokenTexts) -> list[dict[str, Any]]:
    """OpenAI's log-probabilities of the tokens of an event. A token that was not sampled has null."""
    entries = []
    for i, (token, logprob) in enumerate(zip(event.token_ids, event.logprobs, strict=True)):
        tops = event.top_logprobs[i] if i < len(event.top_logprobs) else None
        pairs = [] if tops is None else zip(tops.token_ids, tops.logprobs, strict=True)
        entries.append(
            {
                **texts.entry(token, None if math.isnan(logprob) else logprob),
                "top_logprobs": [texts.entry(t, x) for t, x in pairs if math.isfinite(x)],
            }
        )
    return entries


def counts_logprobs(event: TextEvent, request: GenerationRequest) -> bool:
    """Log-probabilities are of the answer; with `return_token_ids`, of all tokens that are returned."""
    return request.logprobs and (isinstance(event, Content) or request.return_token_ids)


def reply_head(request: GenerationRequest, request_id: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": request_id, "object": kind, "created": created, "model": request.model}


async def whole_chat(
    events: AsyncIterator[Event], request: GenerationRequest, request_id: str, created: int, texts: TokenTexts
) -> dict[str, Any]:
    """The whole reply."""
    folds = [ChoiceFold() for _ in range(request.n)]
    prompt: Sequence[int] = ()
    finished: Finished | None = None
    async for event in events:
        match event:
            case Started():
                prompt = event.prompt_token_ids
            case Reasoning() | Content():
                fold = folds[event.choice]
                (fold.content if isinstance(event, Content) else fold.reasoning).append(event.text)
                fold.token_ids += event.token_ids
                if counts_logprobs(event, request):
                    fold.logprobs += logprob_entries(event, texts)
            case ToolCallDelta():
                folds[event.choice].add_call(event)
            case Finished():
                finished = event
    assert finished is not None
    choices = []
    for i, fold in enumerate(folds):
        choice: dict[str, Any] = {"index": i, "message": fold.message(), "finish_reason": finished.finish_reasons[i]}
        choice["logprobs"] = {"content": fold.logprobs, "refusal": None} if request.logprobs else None
        if request.return_token_ids:
            choice["token_ids"] = fold.token_ids
        choices.append(choice)
    reply = reply_head(request, request_id, created, "chat.completion")
    reply |= {"choices": choices, "usage": finished.usage.to_chat_json(), **extensions(request, finished, prompt)}
    return reply


def extensions(request: GenerationRequest, finished: Finished | None, prompt: Sequence[int]) -> Mapping[str, Any]:
    """What a request may ask for beside OpenAI's fields."""
    out: dict[str, Any] = {}
    if request.return_token_ids:
        out["prompt_token_ids"] = list(prompt)
    if request.return_trace and finished is not None:
        out["traces"] = [trace.to_json() for trace in finished.traces]
    return out
