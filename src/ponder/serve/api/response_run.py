"""Runs requests of the Responses API, and keeps the responses that are to be stored."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ponder.serve.api.chat import logprob_entries
from ponder.serve.api.response_frame import response_frame
from ponder.serve.api.response_items import Item
from ponder.serve.api.responses import ResponseRequest, read_response_request
from ponder.serve.api.responses_stream import ResponseWriter, StreamEvent
from ponder.serve.api.token_texts import TokenTexts
from ponder.serve.errors import ApiError, from_exception, invalid, not_found
from ponder.serve.events import Content, Finished, Started
from ponder.serve.http_replies import sse
from ponder.serve.json_body import Fields
from ponder.serve.service import Service, new_id
from ponder.serve.stored_responses import StoredResponse, StoredResponses
from ponder.trace_json import trace_to_json

MAX_LISTED_ITEMS = 100


class ResponsesApi:
    """`/v1/responses` over a service. An `owner` is the key that a request came with."""

    def __init__(self, service: Service, stored: StoredResponses | None = None) -> None:
        self.service = service
        self.stored = stored or StoredResponses()
        self._running: dict[str, ResponseWriter] = {}

    def read(self, fields: Fields, owner: str) -> ResponseRequest:
        return read_response_request(fields, self.service.limits, lambda name: self.stored.get(owner, name))

    async def events(
        self, request: ResponseRequest, owner: str, response_id: str | None = None
    ) -> AsyncGenerator[StreamEvent]:
        """The stream events of a response. An error after the first is an event too, before it is raised."""
        response_id = response_id or new_id("resp_")
        model, _ = self.service.models.find(request.generation.model)
        name = request.generation.model or model.name
        texts = TokenTexts(model)

        def read_logprobs(event: Content) -> list[dict[str, Any]]:
            return [entry for entry in logprob_entries(event, texts) if entry["logprob"] is not None]

        writer = ResponseWriter(
            response_frame(response_id, name, int(time.time()), request.settings),
            request.settings.summary is not None,
            read_logprobs if request.generation.logprobs else None,
        )
        started = False
        self._running[response_id] = writer
        try:
            async with aclosing(self.service.events(request.generation, response_id, owner)) as events:
                async for event in events:
                    if isinstance(event, Finished) and request.generation.return_trace:
                        writer.response["traces"] = [trace_to_json(trace) for trace in event.traces]
                    for written in writer.write(event):
                        if isinstance(event, Finished):
                            self._store(request, writer, owner)
                        yield written
                    started = started or isinstance(event, Started)
        except Exception as reason:
            if started:
                for written in self._end_early(request, writer, owner, from_exception(reason)):
                    yield written
            raise
        finally:
            del self._running[response_id]

    async def stream(self, request: ResponseRequest, owner: str, response_id: str) -> AsyncGenerator[bytes]:
        """The same as server-sent events, each under its name."""
        async with aclosing(self.events(request, owner, response_id)) as events:
            async for event in events:
                yield sse(event, event["type"])

    async def whole(self, request: ResponseRequest, owner: str, response_id: str) -> dict[str, Any]:
        """The response at its end."""
        last: StreamEvent = {}
        async with aclosing(self.events(request, owner, response_id)) as events:
            async for event in events:
                last = event
        return dict(last["response"])

    def _store(self, request: ResponseRequest, writer: ResponseWriter, owner: str) -> None:
        if request.settings.store:
            self.stored.put(owner, StoredResponse(dict(writer.response), request.input_items, request.history))

    def _end_early(
        self, request: ResponseRequest, writer: ResponseWriter, owner: str, error: ApiError
    ) -> list[StreamEvent]:
        """A response that was cancelled, for which there is no event, or one that failed."""
        events: list[StreamEvent] = []
        if error.code == "request_cancelled":
            writer.response["status"] = "cancelled"
        else:
            events = writer.fail("server_error", error.message)
        self._store(request, writer, owner)
        return events

    # stored responses

    def find(self, response_id: str, owner: str) -> StoredResponse:
        found = self.stored.get(owner, response_id)
        if found is None:
            raise not_found(f"no response {response_id[:100]!r} is stored", "response_not_found", "response_id")
        return found

    def get(self, response_id: str, owner: str) -> dict[str, Any]:
        """A stored response, or one that still runs."""
        if (running := self._running.get(response_id)) is not None:
            self.service.running.find(response_id, owner)
            return dict(running.response)
        return dict(self.find(response_id, owner).response)

    def delete(self, response_id: str, owner: str) -> dict[str, Any]:
        self.find(response_id, owner)
        self.stored.delete(owner, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    def cancel(self, response_id: str, owner: str) -> dict[str, Any]:
        """End a response that runs."""
        if response_id not in self._running:
            self.find(response_id, owner)
            raise invalid(f"response {response_id[:100]!r} is complete: there is nothing to cancel", "response_id")
        self.service.running.find(response_id, owner).control.cancel()
        return {**self._running[response_id].response, "status": "cancelled"}

    def input_items(
        self, response_id: str, owner: str, limit: int = 20, after: str = "", newest_first: bool = True
    ) -> dict[str, Any]:
        """A page of the request's items, as OpenAI lists them."""
        items = [_with_id(item, response_id, i) for i, item in enumerate(self.find(response_id, owner).input_items)]
        if newest_first:
            items.reverse()
        begin = next((i + 1 for i, item in enumerate(items) if item["id"] == after), 0) if after else 0
        page = items[begin : begin + min(limit, MAX_LISTED_ITEMS)]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
            "has_more": begin + len(page) < len(items),
        }


def _with_id(item: Item, response_id: str, index: int) -> dict[str, Any]:
    """An item as it is listed: messages have their content as parts, and every item an id."""
    out = {"id": f"item_{response_id.removeprefix('resp_')}_{index}", "type": "message", **item}
    if out["type"] == "message":
        content = out.get("content")
        kind = "output_text" if out.get("role") == "assistant" else "input_text"
        parts: Sequence[Any] = [{"type": kind, "text": content}] if isinstance(content, str) else content or []
        out |= {"content": parts, "status": "completed"}
    return out
