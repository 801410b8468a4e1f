"""`POST /v1/completions`: a text or token ids, continued as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from ponder.serve.api.chat import extensions, reply_head
from ponder.serve.api.sampling_fields import (
    MAX_TOP_LOGPROBS,
    read_max_tokens,
    read_sampling,
    read_seed,
    read_thinking,
)
from ponder.serve.api.token_texts import TokenTexts
from ponder.serve.errors import invalid
from ponder.serve.events import Content, Event, Finished, Reasoning, Started, TextEvent
from ponder.serve.generation import GenerationRequest
from ponder.serve.http_replies import DONE, sse
from ponder.serve.json_body import Fields
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModels

DEFAULT_MAX_TOKENS = 16  # OpenAI's


def read_completion_request(fields: Fields, limits: Limits, models: ServedModels) -> GenerationRequest:
    """One prompt: a string, or token ids. A list of several prompts is refused: send one request for each."""
    tops = fields.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
    thinking = read_thinking(fields, limits)
    name = fields.text("model", "", 1000) or ""
    max_tokens = read_max_tokens(fields, limits, "max_tokens")
    if max_tokens is None and thinking.effort is None and thinking.strategy is None:
        max_tokens = DEFAULT_MAX_TOKENS
    sampling = read_sampling(fields, tops or 0)
    request = GenerationRequest(
        model=name,
        prompt_token_ids=_read_prompt(fields, name, models),
        prompt_field="prompt",
        sampling=sampling.sampling,
        given=sampling.given,
        n=fields.integer("n", 1, 1, limits.max_choices) or 1,
        seed=read_seed(fields),
        max_tokens=max_tokens,
        effort=thinking.effort,
        strategy=thinking.strategy,
        thinking=False,
        include_reasoning=thinking.include_reasoning,
        logprobs=tops is not None,
        top_logprobs=tops or 0,
        return_token_ids=thinking.return_token_ids,
        return_trace=thinking.return_trace,
    )
    if thinking.thinking_token_budget is not None:
        raise invalid(
            "thinking_token_budget is for chats: completions continue a text as it is", "thinking_token_budget"
        )
    for field_name in ("echo", "suffix", "best_of"):
        if fields.raw(field_name) not in (None, False, "", 1):
            raise invalid(f"{field_name} is not supported: leave it out", field_name, "unsupported_parameter")
    fields.refuse_unread()
    return request


def _read_prompt(fields: Fields, name: str, models: ServedModels) -> tuple[int, ...]:
    prompt = fields.raw("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
        fields = Fields({"prompt": prompt})
    if isinstance(prompt, str):
        model, _ = models.find(name)
        text = fields.text("prompt") or ""
        base = model.base
        return tuple((model.policy.tokens(text) if base is None else base.tokenizer.encode(text)).tolist())
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
        return fields.token_ids("prompt") or ()
    raise fields.error("prompt", "a string or a list of token ids: one prompt for each request")


async def whole_completion(
    events: AsyncIterator[Event], request: GenerationRequest, request_id: str, created: int, texts: TokenTexts
) -> dict[str, Any]:
    folds = [_TextFold(request, texts) for _ in range(request.n)]
    prompt: Sequence[int] = ()
    finished: Finished | None = None
    async for event in events:
        if isinstance(event, Started):
            prompt = event.prompt_token_ids
        elif isinstance(event, Content | Reasoning):
            folds[event.choice].add(event)
        elif isinstance(event, Finished):
            finished = event
    assert finished is not None
    choices = [
        {"index": i, "finish_reason": reason, **folds[i].to_json()} for i, reason in enumerate(finished.finish_reasons)
    ]
    reply = reply_head(request, request_id, created, "text_completion")
    return {
        **reply, "choices": choices, "usage": finished.usage.to_chat_json(), **extensions(request, finished, prompt)
    }  # fmt: skip


async def stream_completion(
    events: AsyncIterator[Event],
    request: GenerationRequest,
    request_id: str,
    created: int,
    texts: TokenTexts,
    include_usage: bool,
) -> AsyncGenerator[bytes]:
    head = reply_head(request, request_id, created, "text_completion")
    if include_usage:
        head["usage"] = None
    prompt: Sequence[int] = ()
    offsets = [0] * request.n
    async for event in events:
        if isinstance(event, Started):
            prompt = event.prompt_token_ids
        elif isinstance(event, Content | Reasoning):
            fold = _TextFold(request, texts, offsets[event.choice])
            fold.add(event)
            offsets[event.choice] = fold.offset
            yield sse({**head, "choices": [{"index": event.choice, "finish_reason": None, **fold.to_json()}]})
        elif isinstance(event, Finished):
            endings = [{"text": "", "logprobs": None, "finish_reason": reason} for reason in event.finish_reasons]
            end = [sse({**head, "choices": [{"index": i, **ending}]}) for i, ending in enumerate(endings)]
            if include_usage:
                end.append(sse({**head, "choices": [], "usage": event.usage.to_chat_json()}))
            if more := extensions(request, event, prompt):
                end.append(sse({**head, "choices": [], **more}))
            yield b"".join([*end, DONE])


class _TextFold:
    """A choice of a completion: its text, and its tokens in the old form of log-probabilities."""

    def __init__(self, request: GenerationRequest, texts: TokenTexts, offset: int = 0) -> None:
        self.request, self.texts, self.offset = request, texts, offset
        self.text, self.reasoning = "", ""
        self.token_ids: list[int] = []
        self.logprobs: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add(self, event: TextEvent) -> None:
        if isinstance(event, Reasoning):
            self.reasoning += event.text
            return
        self.text += event.text
        self.token_ids += event.token_ids
        for i, (token, logprob) in enumerate(zip(event.token_ids, event.logprobs, strict=False)):
            tops = event.top_logprobs[i] if i < len(event.top_logprobs) else None
            pairs = [] if tops is None else zip(tops.token_ids, tops.logprobs, strict=True)
            text = self.texts.text_and_bytes(token)[0]
            self.logprobs["tokens"].append(text)
            self.logprobs["token_logprobs"].append(None if logprob != logprob else logprob)
            self.logprobs["top_logprobs"].append(
                {self.texts.text_and_bytes(t)[0]: x for t, x in pairs if x > float("-inf")}
            )
            self.logprobs["text_offset"].append(self.offset)
            self.offset += len(text)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"text": self.text, "logprobs": self.logprobs if self.request.logprobs else None}
        if self.request.return_token_ids:
            out["token_ids"] = self.token_ids
        if self.reasoning:
            out |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        return out
