"""Who answers in `ponder chat`: a model in this process, or a server. Both give the events of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ponder.errors import ModelError, UsageError
from ponder.models.http_client import HttpClient, ReplyLimits
from ponder.models.ponder_server import OWNED_BY
from ponder.models.server_discovery import ServerName, api_key_for, choose_model, with_api_path
from ponder.serve.events import Content, Event, Finished, FinishReason, Reasoning
from ponder.serve.usage import SearchUsage, Usage
from ponder.types import Message

_TIMEOUT_SECONDS = 600.0  # without a byte
_MAX_REPLY_BYTES = 256 << 20


@dataclass(frozen=True)
class ChatSettings:
    """How hard to think, and how to sample. None: the model's or the server's own."""

    effort: str | None = None
    strategy: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


class ChatBackend(Protocol):
    @property
    def name(self) -> str:
        """The model's name."""
        ...

    def stream(self, messages: Sequence[Message], settings: ChatSettings) -> AsyncGenerator[Event]:
        """The events of one answer; `Finished` comes last."""
        ...


class ServerBackend:
    """The chat of an OpenAI-compatible server."""

    def __init__(self, http: HttpClient, model: str | None, is_ponder: bool) -> None:
        self.http, self.model, self.is_ponder = http, model, is_ponder

    @classmethod
    def connect(cls, address: str, api_key: str | None = None) -> ServerBackend:
        """Connect to "openai:URL#MODEL". A broken stream is not tried again: its beginning was shown."""
        server = ServerName.parse(address)
        if server.tokenizer is not None or server.effort is not None:
            raise UsageError("a chat is in text: give openai:URL or openai:URL#MODEL, and the effort as --effort")
        url = with_api_path(server.url)
        http = HttpClient(url, api_key_for(url, api_key), max_concurrency=2, timeout=_TIMEOUT_SECONDS, retries=0)
        name, entry = choose_model(http, server.model)
        return cls(http, name, entry.get("owned_by") == OWNED_BY)

    @property
    def name(self) -> str:
        return self.model or self.http.url

    async def stream(self, messages: Sequence[Message], settings: ChatSettings) -> AsyncGenerator[Event]:
        body = self._body(messages, settings)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | None] = asyncio.Queue()

        def read(chunks: Iterator[Any]) -> None:  # in a thread of the client
            for event in read_chat_chunks(chunks):
                loop.call_soon_threadsafe(events.put_nowait, event)

        limits = ReplyLimits(max_body_bytes=_MAX_REPLY_BYTES, max_seconds=24 * 3600.0)
        call = asyncio.ensure_future(self.http.stream(self.http.url + "/chat/completions", body, read, limits))
        call.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await self._checked(call)
        finally:
            call.cancel()
            await asyncio.wait({call})

    async def _checked(self, call: asyncio.Future[None]) -> None:
        try:
            await call
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as reason:
            shown = self.http.redact_key(f"{type(reason).__name__}: {reason}"[:200])
            raise ModelError(f"{self.http.url} sent what no such server sends ({shown})") from None

    def _body(self, messages: Sequence[Message], settings: ChatSettings) -> dict[str, Any]:
        if settings.strategy is not None and not self.is_ponder:
            raise UsageError(f"{self.http.url} is not a ponder server, and has no strategies: leave out the strategy")
        sent = [{"role": m["role"], "content": m["content"]} for m in messages]
        given = {
            "reasoning_effort": settings.effort,
            "strategy": settings.strategy,
            "max_completion_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
        }
        return {
            "model": self.model, "messages": sent, "stream": True, "stream_options": {"include_usage": True},
            **{name: value for name, value in given.items() if value is not None},
        }  # fmt: skip


def read_chat_chunks(chunks: Iterator[Any]) -> Iterator[Event]:
    """The events in the chunks of a streamed chat completion. Raises where a chunk is not one."""
    usage: Mapping[str, Any] = {}
    finish_reason: FinishReason = "stop"
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"][:1]:
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                yield Reasoning(_text(thought))
            if content := delta.get("content"):
                yield Content(_text(content))
            if choice.get("finish_reason") == "length":
                finish_reason = "length"
    yield Finished((finish_reason,), parse_usage(usage))


def parse_usage(usage: Mapping[str, Any]) -> Usage:
    """A server's `usage`; what it does not report is 0."""
    search = usage.get("search") or {}
    return Usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        reasoning_tokens=_count(usage.get("completion_tokens_details") or {}, "reasoning_tokens"),
        cached_tokens=_count(usage.get("prompt_tokens_details") or {}, "cached_tokens"),
        search=SearchUsage(
            **{name: _count(search, name) for name in ("answers", "nodes", "pruned", "scorer_tokens")},
            flops=float(search.get("flops") or 0.0),
            seconds=float(search.get("seconds") or 0.0),
        ),
    )


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name) or 0
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {value!r:.40}, which is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value
