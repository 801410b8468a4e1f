"""`POST /v1/chat/completions` with `stream`: the reply in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.serve.api.chat import counts_logprobs, extensions, logprob_entries, reply_head
from ponder.serve.api.token_texts import TokenTexts
from ponder.serve.events import Content, Event, Finished, Reasoning, Started, StepsChanged, TextEvent, ToolCallDelta
from ponder.serve.generation import GenerationRequest
from ponder.serve.http_replies import DONE, sse, to_json
from ponder.serve.json_body import Fields


@dataclass(frozen=True, slots=True)
class StreamOptions:
    stream: bool
    include_usage: bool = False  # a chunk with the usage comes at the end
    include_steps: bool = False  # of a chat: the steps of a search come while it adds them


def read_stream_options(fields: Fields, is_chat: bool = False) -> StreamOptions:
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options is None:
        return StreamOptions(stream)
    if not stream:
        raise fields.error("stream_options", "left out, since stream is not true")
    usage, steps = options.flag("include_usage"), is_chat and options.flag("include_steps")
    options.ignore("include_obfuscation", "continuous_usage_stats")
    options.refuse_unread(())
    return StreamOptions(stream, usage, steps)


async def stream_chat(
    events: AsyncIterator[Event],
    request: GenerationRequest,
    request_id: str,
    created: int,
    texts: TokenTexts,
    include_usage: bool,
) -> AsyncGenerator[bytes]:
    """Server-sent events: the role of each choice, then its text (and the steps of its search, in chunks without
    choices), why it ended, the usage, and [DONE]. Where no search runs, the roles are sent with the first token:
    clients take the first chunk for it."""
    head = reply_head(request, request_id, created, "chat.completion.chunk")
    if include_usage:
        head["usage"] = None

    start = b"data: " + to_json(head)[:-1] + b',"choices":['  # the same for every chunk

    def chunk(choice: int, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        entry = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **more}
        return start + to_json(entry) + b"]}\n\n"

    wants_tokens = request.logprobs or request.return_token_ids
    text_start = [start + b'{"index":%d,"delta":{"content":' % choice for choice in range(request.n)]
    text_end = b'},"logprobs":null,"finish_reason":null}]}\n\n'
    prompt: Sequence[int] = ()
    piece = b""  # not sent yet
    async for event in events:
        match event:
            case Started():
                prompt = event.prompt_token_ids
                role = {"role": "assistant", "content": "", "refusal": None}
                piece = b"".join(chunk(choice, role) for choice in range(request.n))
                if not event.searches:
                    continue
            case Content() if event.text and not wants_tokens:  # most chunks: nothing but text
                piece += text_start[event.choice] + to_json(event.text) + text_end
            case Reasoning() | Content():
                delta, more = _text_delta(event, request, texts)
                if not (delta or more):
                    continue
                piece += chunk(event.choice, delta, **more)
            case ToolCallDelta():
                piece += chunk(event.choice, {"tool_calls": [_call_delta(event)]})
            case StepsChanged():
                steps = {"index": event.choice, "steps": event.steps, "chosen": event.chosen}
                piece += sse({**head, "choices": [], "search": steps})
            case Finished():
                end = [chunk(choice, {}, reason) for choice, reason in enumerate(event.finish_reasons)]
                if include_usage:
                    end.append(sse({**head, "choices": [], "usage": event.usage.to_chat_json()}))
                if extra := extensions(request, event, prompt):
                    end.append(sse({**head, "choices": [], **extra}))
                piece += b"".join([*end, DONE])
        yield piece
        piece = b""


def _text_delta(
    event: TextEvent, request: GenerationRequest, texts: TokenTexts
) -> tuple[dict[str, Any], dict[str, Any]]:
    delta: dict[str, Any] = {}
    if event.text:
        is_answer = isinstance(event, Content)
        delta = {"content": event.text} if is_answer else {"reasoning_content": event.text, "reasoning": event.text}
    more: dict[str, Any] = {}
    if event.token_ids and counts_logprobs(event, request):
        more["logprobs"] = {"content": logprob_entries(event, texts), "refusal": None}
    if event.token_ids and request.return_token_ids:
        more["token_ids"] = list(event.token_ids)
    return delta, more


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    """The first delta of a call says which it is."""
    function: dict[str, Any] = {"arguments": event.arguments}
    if not event.id:
        return {"index": event.index, "function": function}
    return {
        "index": event.index, "id": event.id, "type": "function", "function": {"name": event.name, **function},
    }  # fmt: skip
