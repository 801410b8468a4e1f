"""Routes of the APIs in token ids, and of the chat page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from ponder.serve.api import generate as generate_api
from ponder.serve.api.generate import GenerateCall
from ponder.serve.api.score import score
from ponder.serve.api.tokenize import detokenize, tokenize, tokenizer
from ponder.serve.chat_files import PageFile, chat_page_files
from ponder.serve.http_replies import DONE, Reply, StreamReply, read_fields, sse, unless_disconnected
from ponder.serve.json_body import Fields
from ponder.serve.served_models import ServedModels
from ponder.serve.service import Service, new_id

Handler = Callable[[Fields, ServedModels], Awaitable[dict[str, Any]]]


def token_routes(service: Service) -> list[Route]:
    """Under /v1, and where vLLM has them."""
    handlers: dict[str, Handler] = {
        "/v1/tokenize": tokenize,
        "/tokenize": tokenize,
        "/v1/detokenize": detokenize,
        "/detokenize": detokenize,
        "/v1/tokenizer": tokenizer,
        "/v1/score": score,
    }
    routes = [Route(path, _json_endpoint(service, handler), methods=["POST"]) for path, handler in handlers.items()]
    return [*routes, Route("/inference/v1/generate", _generate_endpoint(service), methods=["POST"])]


def chat_page_routes() -> list[Route]:
    return [Route(path, _page_endpoint(file), methods=["GET"]) for path, file in chat_page_files().items()]


def _json_endpoint(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Reply]]:
    async def endpoint(request: Request) -> Reply:
        fields = await read_fields(request, service.limits)
        with service.running.admit(new_id("req-")):
            return Reply(await unless_disconnected(handler(fields, service.models), request.receive))  # type: ignore[arg-type]

    return endpoint


def _generate_endpoint(service: Service) -> Callable[[Request], Awaitable[Reply | StreamReply]]:
    async def endpoint(request: Request) -> Reply | StreamReply:
        fields = await read_fields(request, service.limits)
        call, request_id = generate_api.read_generate(fields, service.models, service.limits), new_id("gen-")
        headers = {"x-request-id": request_id}
        if call.stream:
            pieces = _generate_pieces(service, call, request_id)
            return StreamReply(pieces, headers, service.limits.keepalive_seconds)
        with service.running.admit(request_id):
            whole = generate_api.generate(call, request_id)
            return Reply(await unless_disconnected(whole, request.receive), headers=headers)

    return endpoint


async def _generate_pieces(service: Service, call: GenerateCall, request_id: str) -> AsyncGenerator[bytes]:
    with service.running.admit(request_id):
        async with aclosing(generate_api.generate_stream(call, request_id)) as chunks:
            async for chunk in chunks:
                yield sse(chunk)
    yield DONE


def _page_endpoint(file: PageFile) -> Callable[[Request], Awaitable[Reply]]:
    async def endpoint(request: Request) -> Reply:
        reply = Reply(file.body, headers=file.headers)
        reply.content_type = file.headers["content-type"]
        return reply

    return endpoint
