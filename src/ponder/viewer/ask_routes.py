"""The routes of the page Ask. They exist only where `ponder view` was given `--serve`."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ponder.viewer.ask_proxy import MAX_BODY_BYTES, AskError, AskServer, read_question

ASK_PATH = "/api/ask"  # the only path that takes a POST


def ask_routes(server: AskServer) -> list[Route]:
    async def ask(request: Request) -> Response:
        try:
            body = read_question(await _read_body(request))
            pieces = await server.stream(body)
        except AskError as why:
            return _error(why)
        except ClientDisconnect:
            return Response(status_code=499)
        return StreamingResponse(pieces, media_type="text/event-stream")

    async def models(request: Request) -> Response:
        try:
            return _reply(200, {"models": await asyncio.to_thread(server.models)})
        except AskError as why:
            return _error(why)

    return [Route(ASK_PATH, ask, methods=["POST"]), Route(f"{ASK_PATH}/models", models)]


async def _read_body(request: Request) -> bytes:
    """JSON only, so that a form of another page cannot send it, and bounded."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise AskError(415, "send application/json")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise AskError(413, f"a question has at most {MAX_BODY_BYTES:,} bytes")
    return body


def _error(why: AskError) -> Response:
    return _reply(why.status, {"error": str(why)})


def _reply(status: int, value: object) -> Response:
    return Response(json.dumps(value).encode(), status, media_type="application/json")
