"""A stream of events in which calls of tools are apart from the answer's text."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ponder.reason.tools.call_parser import CallPiece, ToolCallParser
from ponder.serve.events import Content, Event, Finished, ToolCallDelta
from ponder.serve.generation import GenerationRequest
from ponder.serve.tools import call_schema, call_structural_tag, tool_names


def calls_tools(request: GenerationRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


def must_call(request: GenerationRequest) -> bool:
    """Whether the answer is a call and nothing else."""
    return calls_tools(request) and request.tool_choice != "auto"


def with_call_grammar(request: GenerationRequest) -> GenerationRequest:
    """The request as it is sampled. Where a tool must be called, the answer follows the schema of a call; where one may
    be and some are strict, what stands between the marks of a call does."""
    grammar: dict[str, Any]
    if must_call(request):
        grammar = {"json_schema": call_schema(request.tools, request.tool_choice), "regex": ""}
    elif calls_tools(request) and request.strict_tools and not request.sampling.has_grammar:
        grammar = {"structural_tag": call_structural_tag(request.tools, request.strict_tools)}
    else:
        return request
    return replace(request, sampling=replace(request.sampling, **grammar), given=request.given | set(grammar))


def separate_calls(events: AsyncGenerator[Event], request: GenerationRequest, request_id: str) -> AsyncGenerator[Event]:
    """The same events, with the calls in `Content` as `ToolCallDelta`. Token ids stay where they were."""
    return _separate_calls(events, request, request_id) if calls_tools(request) else events


async def _separate_calls(
    events: AsyncGenerator[Event], request: GenerationRequest, request_id: str
) -> AsyncGenerator[Event]:
    names, bare = tool_names(request.tools), must_call(request)
    parsers = [ToolCallParser(names, bare, request.parallel_tool_calls) for _ in range(request.n)]
    called: set[int] = set()
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Content):
                pieces = parsers[event.choice].feed(event.text)
                for one in _events(pieces, event, request_id):
                    yield one
                called |= {event.choice for piece in pieces if isinstance(piece, CallPiece)}
            elif isinstance(event, Finished):
                for choice, parser in enumerate(parsers):
                    rest = parser.close()
                    called |= {choice for piece in rest if isinstance(piece, CallPiece)}
                    for one in _events(rest, Content("", choice=choice), request_id):
                        yield one
                reasons = tuple(
                    "tool_calls" if choice in called and reason == "stop" else reason
                    for choice, reason in enumerate(event.finish_reasons)
                )
                yield replace(event, finish_reasons=reasons)
            else:
                yield event


def _events(pieces: list[str | CallPiece], source: Content, request_id: str) -> list[Event]:
    """An event for each piece, in order. All of the source's tokens go with the first text."""
    out: list[Event] = []
    if len(source.token_ids) and not (pieces and isinstance(pieces[0], str)):
        pieces = ["", *pieces]
    for at, piece in enumerate(pieces):
        if isinstance(piece, CallPiece):
            call_id = _call_id(request_id, source.choice, piece.index) if piece.name else ""
            out.append(ToolCallDelta(piece.index, call_id, piece.name, piece.arguments, source.choice))
        else:
            out.append(replace(source, text=piece) if at == 0 else Content(piece, choice=source.choice))
    return out


def _call_id(request_id: str, choice: int, index: int) -> str:
    digest = hashlib.blake2b(f"{request_id}/{choice}/{index}".encode(), digest_size=12)
    return f"call_{digest.hexdigest()}"
