"""The routes of the server. A handler parses, runs the service and writes; a client that goes away ends its request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router

from ponder.errors import PonderError
from ponder.serve.api.chat import whole_chat
from ponder.serve.api.chat_request import read_chat_request
from ponder.serve.api.chat_stream import StreamOptions, read_stream_options, stream_chat
from ponder.serve.api.completions import read_completion_request, stream_completion, whole_completion
from ponder.serve.api.control import control_request
from ponder.serve.api.episodes import episode_routes, read_episode_header
from ponder.serve.api.models import find_model_entry, list_models
from ponder.serve.api.response_run import ResponsesApi
from ponder.serve.api.responses_routes import responses_routes
from ponder.serve.api.token_texts import TokenTexts
from ponder.serve.errors import ApiError, from_exception, method_not_allowed, not_found
from ponder.serve.guard import Guard, GuardSettings
from ponder.serve.http_replies import ErrorReply, Reply, StreamReply, read_fields, unless_disconnected
from ponder.serve.metrics import CONTENT_TYPE
from ponder.serve.openapi import openapi_document
from ponder.serve.server_metrics import ServerMetrics
from ponder.serve.service import Service, new_id
from ponder.serve.token_routes import CHAT_PAGE_ROUTES, TOKEN_ROUTES

Handler = Callable[[Service, Request], Awaitable[Any]]


async def chat_completions(service: Service, http: Request) -> Any:
    fields = await read_fields(http, service.limits)
    options = read_stream_options(fields, is_chat=True)
    request = read_chat_request(fields, service.limits)
    episode = read_episode_header(http)
    if options.include_steps or episode:
        request = replace(request, include_steps=options.include_steps, episode=episode)
    return await _generate(service, http, request, "chatcmpl-", options, whole_chat, stream_chat)


async def completions(service: Service, http: Request) -> Any:
    fields = await read_fields(http, service.limits)
    options = read_stream_options(fields)
    request = read_completion_request(fields, service.limits, service.models)
    return await _generate(service, http, request, "cmpl-", options, whole_completion, stream_completion)


async def _generate(
    service: Service,
    http: Request,
    request: Any,
    prefix: str,
    options: StreamOptions,
    whole: Any,
    chunks: Any,
) -> Any:
    """Run a request and write its events, in one go or in chunks."""
    model, _ = service.models.find(request.model)
    request = request if request.model else replace(request, model=model.name)  # replies name it
    request_id, created, texts = new_id(prefix), int(time.time()), TokenTexts(model)
    events = service.events(request, request_id, owner_of(http))
    headers = {"x-request-id": request_id}
    if options.stream:
        pieces = chunks(events, request, request_id, created, texts, options.include_usage)
        return StreamReply(pieces, headers, service.limits.keepalive_seconds)
    reply = await unless_disconnected(whole(events, request, request_id, created, texts), http.receive)
    return Reply(reply, headers=headers)


async def control(service: Service, http: Request) -> Any:
    fields = await read_fields(http, service.limits)
    return Reply(control_request(fields, service.running, owner_of(http)))


async def models(service: Service, http: Request) -> Any:
    return Reply(list_models(service.models))


async def model(service: Service, http: Request) -> Any:
    return Reply(find_model_entry(service.models, http.path_params["name"]))


async def health(service: Service, http: Request) -> Any:
    """For load balancers: 503 while the server stops."""
    if service.running.draining:
        return Reply({"status": "stopping"}, 503)
    return Reply({"status": "ok"})


async def show_openapi(service: Service, http: Request) -> Any:
    return Reply(openapi_document(service.models, service.limits))


def metrics_handler(metrics: ServerMetrics) -> Handler:
    async def show_metrics(service: Service, http: Request) -> Any:
        return Reply(metrics.render().encode(), headers={"content-type": CONTENT_TYPE})

    return show_metrics


# Path, method, handler. Each part of the server adds its own.
ROUTES: list[tuple[str, str, Handler]] = [
    ("/v1/chat/completions", "POST", chat_completions),  # first: routes are looked through in this order
    ("/health", "GET", health),
    ("/openapi.json", "GET", show_openapi),
    ("/v1/models", "GET", models),
    ("/v1/models/{name:path}", "GET", model),
    ("/v1/chat/completions/control", "POST", control),
    ("/v1/completions", "POST", completions),
    *TOKEN_ROUTES,
    *CHAT_PAGE_ROUTES,
]


def own_routes(service: Service, metrics: ServerMetrics) -> list[tuple[str, str, Handler]]:
    """All routes of the server, those with a state of their own included."""
    responses = responses_routes(ResponsesApi(service), owner_of)
    return [*ROUTES, *responses, *episode_routes(owner_of), ("/metrics", "GET", metrics_handler(metrics))]


def make_app(
    service: Service, guard: GuardSettings | None = None, routes: Sequence[tuple[str, str, Handler]] = ()
) -> Any:
    """The ASGI application. `routes`: more of them."""
    table: dict[str, dict[str, Handler]] = {}
    metrics = ServerMetrics(service.models, lambda: service.recorder)
    service.observers.append(metrics)
    for path, method, handler in (*own_routes(service, metrics), *routes):
        table.setdefault(path, {})[method] = handler
    starlette_routes = [Route(path, _endpoint(service, handlers), methods=None) for path, handlers in table.items()]
    # A router alone: endpoints answer every error themselves. A path is there or not; every reply is JSON.
    app = Router(starlette_routes, redirect_slashes=False, default=_no_such_route)
    return metrics.counting_replies(Guard(app, guard or GuardSettings(), service))


def _endpoint(service: Service, handlers: dict[str, Handler]) -> Any:
    """An ASGI endpoint for a path. Whatever happens, the reply is the handler's or an error in OpenAI's shape."""

    class Endpoint:
        def __init__(self, scope: Any, receive: Any, send: Any) -> None:
            self.scope, self.receive, self.send = scope, receive, send

        def __await__(self) -> Any:
            return self._run().__await__()

        async def _run(self) -> None:
            http = Request(self.scope, self.receive)
            try:
                handler = handlers.get("GET" if http.method == "HEAD" else http.method)
                if handler is None:
                    raise method_not_allowed(http.method, ", ".join(handlers))
                reply = await handler(service, http)
            except ClientDisconnect:
                return  # nobody reads the reply
            except (ApiError, PonderError) as error:
                reply = ErrorReply(from_exception(error))
            except Exception as error:
                await ErrorReply(from_exception(error))(self.scope, self.receive, self.send)
                raise  # the server's log has the traceback
            await reply(self.scope, self.receive, self.send)

    return Endpoint


async def _no_such_route(scope: Any, receive: Any, send: Any) -> None:
    await ErrorReply(not_found(f"there is nothing at {scope['path'][:200]}"))(scope, receive, send)


def owner_of(http: Request) -> str:
    """Whose request it is: a digest of its key. Without keys all are one owner's."""
    return str(http.scope.get("ponder.owner", ""))
