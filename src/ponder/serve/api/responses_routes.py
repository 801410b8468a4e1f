"""The routes of the Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from ponder.serve.api.episodes import read_episode_header
from ponder.serve.api.response_run import MAX_LISTED_ITEMS, ResponsesApi
from ponder.serve.errors import invalid
from ponder.serve.http_replies import Reply, StreamReply, read_fields, unless_disconnected
from ponder.serve.service import Service, new_id

Handler = Callable[[Service, Request], Awaitable[Any]]


def responses_routes(api: ResponsesApi, owner_of: Callable[[Request], str]) -> list[tuple[str, str, Handler]]:
    """Path, method and handler of each route."""

    async def create(service: Service, http: Request) -> Any:
        owner, response_id = owner_of(http), new_id("resp_")
        request = api.read(await read_fields(http, service.limits), owner)
        request = replace(request, generation=replace(request.generation, episode=read_episode_header(http)))
        headers = {"x-request-id": response_id}
        if request.stream:
            pieces = api.stream(request, owner, response_id)
            return StreamReply(pieces, headers, service.limits.keepalive_seconds)
        return Reply(await unless_disconnected(api.whole(request, owner, response_id), http.receive), headers=headers)

    async def get(service: Service, http: Request) -> Any:
        if http.query_params.get("stream", "false").lower() == "true":
            raise invalid("a stored response is not streamed again: leave out stream", "stream")
        return Reply(api.get(http.path_params["id"], owner_of(http)))

    async def delete(service: Service, http: Request) -> Any:
        return Reply(api.delete(http.path_params["id"], owner_of(http)))

    async def cancel(service: Service, http: Request) -> Any:
        return Reply(api.cancel(http.path_params["id"], owner_of(http)))

    async def input_items(service: Service, http: Request) -> Any:
        limit, order = http.query_params.get("limit", "20"), http.query_params.get("order", "desc")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_LISTED_ITEMS):
            raise invalid(f"limit is {limit!r:.50}; it must be an integer from 1 to {MAX_LISTED_ITEMS}", "limit")
        if order not in ("asc", "desc"):
            raise invalid(f"order is {order!r:.50}; it must be asc or desc", "order")
        after = http.query_params.get("after", "")
        return Reply(api.input_items(http.path_params["id"], owner_of(http), int(limit), after, order == "desc"))

    return [
        ("/v1/responses", "POST", create),
        ("/v1/responses/{id}", "GET", get),
        ("/v1/responses/{id}", "DELETE", delete),
        ("/v1/responses/{id}/cancel", "POST", cancel),
        ("/v1/responses/{id}/input_items", "GET", input_items),
    ]
