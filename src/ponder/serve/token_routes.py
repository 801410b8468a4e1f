"""Routes of the APIs in token ids, and of the chat page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from ponder.serve.api import generate as generate_api
from ponder.serve.api.generate import GenerateCall
from ponder.serve.api.score import score
from ponder.serve.api.tokenize import detokenize, tokenize, tokenizer
from ponder.serve.chat_files import PageFile, chat_page_files
from ponder.serve.http_replies import DONE, Reply, StreamReply, read_fields, sse, unless_disconnected
from ponder.serve.json_body import Fields
from ponder.serve.served_models import ServedModels
from ponder.serve.service import Service, new_id

Handler = Callable[[Service, Request], Awaitable[Any]]


def _json_handler(answer: Callable[[Fields, ServedModels], Any]) -> Handler:
    """A handler that answers a JSON body with a JSON object."""

    async def handle(service: Service, http: Request) -> Reply:
        fields = await read_fields(http, service.limits)
        with service.running.admit(new_id("req-")):
            return Reply(await unless_disconnected(answer(fields, service.models), http.receive))

    return handle


async def generate(service: Service, http: Request) -> Reply | StreamReply:
    fields = await read_fields(http, service.limits)
    call, request_id = generate_api.read_generate(fields, service.models, service.limits), new_id("gen-")
    headers = {"x-request-id": request_id}
    if call.stream:
        return StreamReply(_generate_pieces(service, call, request_id), headers, service.limits.keepalive_seconds)
    with service.running.admit(request_id):
        whole = generate_api.generate(call, request_id)
        return Reply(await unless_disconnected(whole, http.receive), headers=headers)


async def _generate_pieces(service: Service, call: GenerateCall, request_id: str) -> AsyncGenerator[bytes]:
    with service.running.admit(request_id):
        async with aclosing(generate_api.generate_stream(call, request_id)) as chunks:
            async for chunk in chunks:
                yield sse(chunk)
    yield DONE


def _page_handler(file: PageFile) -> Handler:
    async def handle(service: Service, http: Request) -> Reply:
        reply = Reply(file.body, headers=file.headers)
        reply.content_type = file.headers["content-type"]
        return reply

    return handle


# Path, method, handler. What vLLM has without /v1 is there too.
TOKEN_ROUTES: list[tuple[str, str, Handler]] = [
    *((prefix + "/tokenize", "POST", _json_handler(tokenize)) for prefix in ("/v1", "")),
    *((prefix + "/detokenize", "POST", _json_handler(detokenize)) for prefix in ("/v1", "")),
    ("/v1/tokenizer", "POST", _json_handler(tokenizer)),
    ("/v1/score", "POST", _json_handler(score)),
    ("/inference/v1/generate", "POST", generate),
]
CHAT_PAGE_ROUTES: list[tuple[str, str, Handler]] = [
    (path, "GET", _page_handler(file)) for path, file in chat_page_files().items()
]
