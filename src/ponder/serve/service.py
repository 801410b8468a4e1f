"""`Service`: what all handlers share. It runs a request and yields its events."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from ponder.serve import errors
from ponder.serve.events import Event, Finished
from ponder.serve.generation import GenerationRequest
from ponder.serve.limits import Limits
from ponder.serve.reasoner import reason
from ponder.serve.running_requests import RunningRequests
from ponder.serve.served_models import ServedModels
from ponder.serve.tool_events import separate_calls, with_call_grammar


class Observer(Protocol):
    """Hears of every request: metrics, a log."""

    def started(self, request: GenerationRequest, request_id: str) -> None: ...

    def event(self, request_id: str, event: Event) -> None: ...

    def ended(self, request_id: str, error: BaseException | None) -> None: ...


@dataclass(eq=False)
class Service:
    models: ServedModels
    limits: Limits = field(default_factory=Limits)
    observers: list[Observer] = field(default_factory=list)
    keep_trace: Callable[[str, Finished], None] | None = None  # called with the request's id

    def __post_init__(self) -> None:
        self.running = RunningRequests(self.limits.max_concurrent)

    async def events(self, request: GenerationRequest, request_id: str, owner: str = "") -> AsyncGenerator[Event]:
        """Run a request. Closing the generator, or cancelling the task that reads it, ends the work at once."""
        model, strategy = self.models.find(request.model)
        with self.running.admit(request_id, owner) as running:
            error: BaseException | None = None
            for observer in self.observers:
                observer.started(request, request_id)
            try:
                async with asyncio.timeout(self.limits.request_seconds):
                    sampled = reason(with_call_grammar(request), model, running.control, self.limits, strategy)
                    async with aclosing(separate_calls(sampled, request, request_id)) as events:
                        async for event in events:
                            for observer in self.observers:
                                observer.event(request_id, event)
                            if isinstance(event, Finished) and self.keep_trace is not None:
                                self.keep_trace(request_id, event)
                            yield event
            except TimeoutError:
                error = errors.ApiError(
                    408, f"the answer was not complete after {self.limits.request_seconds:g} s", code="timeout",
                    headers={"x-should-retry": "false"},
                )  # fmt: skip
                raise error from None
            except BaseException as reason_of_end:
                error = reason_of_end
                raise
            finally:
                for observer in self.observers:
                    observer.ended(request_id, error)


def new_id(prefix: str) -> str:
    """An id that nobody can guess: `chatcmpl-...`, `resp_...`."""
    return prefix + uuid.uuid4().hex
