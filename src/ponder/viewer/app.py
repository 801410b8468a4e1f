"""The HTTP application: files of the page, and the JSON interface below /api. Requests are answered in threads, since
they read files."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ponder.errors import PonderError
from ponder.viewer.api import Api
from ponder.viewer.ask_proxy import AskServer
from ponder.viewer.ask_routes import ASK_PATH, ask_routes
from ponder.viewer.errors import NotFound
from ponder.viewer.events import growth_events
from ponder.viewer.guard import ViewerGuard, ViewerGuardSettings
from ponder.viewer.page_files import content_type, page_files
from ponder.viewer.plain_json import to_json
from ponder.viewer.run_listing import RunLibrary
from ponder.viewer.trace_facts import BAD_TRACE_ERRORS


def make_app(library: RunLibrary, guard: ViewerGuardSettings) -> Any:
    """The ASGI application."""
    files, api = page_files(), Api(library)

    async def show_file(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return error_reply(404, f"there is nothing at /{name[:200]}")
        body = await run_in_threadpool(files[name].read_bytes)
        return Response(body, media_type=content_type(name))

    async def answer(request: Request) -> Response:
        return await run_in_threadpool(_answer, api, request.url.path, dict(request.query_params))

    async def events(request: Request) -> Response:
        try:
            folder = await run_in_threadpool(library.find, request.query_params.get("run", ""))
        except PonderError as why:
            return error_reply(404, str(why))
        return StreamingResponse(growth_events(folder.path), media_type="text/event-stream")

    asking = ask_routes(AskServer.parse(library.serve_url)) if library.serve_url else []
    routes = [
        *asking,
        Route("/", show_file),
        Route("/api/events", events),
        Route("/api/{rest:path}", answer),
        Route("/{name:path}", show_file),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return ViewerGuard(app, guard, frozenset({ASK_PATH} if asking else ()))


def _answer(api: Api, path: str, parameters: dict[str, str]) -> Response:
    """Whatever a run directory holds, the reply is JSON: data, or one sentence."""
    try:
        try:
            value = api.get(path, parameters)
        except sqlite3.DatabaseError:  # the index of traces is damaged
            api.traces.discard_indexes()
            value = api.get(path, parameters)
        return Response(to_json(value), media_type="application/json")
    except NotFound as why:
        return error_reply(404, str(why))
    except PonderError as why:
        return error_reply(400, str(why))
    except BAD_TRACE_ERRORS as why:
        return error_reply(400, f"this cannot be shown, since the run holds something unusual: {type(why).__name__}")
    except OSError as why:
        return error_reply(400, f"the run cannot be read: {why.strerror or why}")


def error_reply(status: int, sentence: str) -> Response:
    return Response(to_json({"error": sentence}), status, media_type="application/json")
