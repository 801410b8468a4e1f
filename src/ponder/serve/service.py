"""`Service`: what all handlers share. It runs a request and yields its events."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from ponder.serve import errors
from ponder.serve.episode_recorder import EpisodeRecorder
from ponder.serve.events import Event, Finished
from ponder.serve.generation import GenerationRequest, StrategySpec
from ponder.serve.limits import Limits
from ponder.serve.reasoner import reason
from ponder.serve.recorded_call import RecordedCall
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
    keep_trace: Callable[[str, Finished], None] | None = None  # of a request that is no call of an episode, by its id
    recorder: EpisodeRecorder | None = None

    def __post_init__(self) -> None:
        self.running = RunningRequests(self.limits.max_concurrent)

    async def events(self, request: GenerationRequest, request_id: str, owner: str = "") -> AsyncGenerator[Event]:
        """Run a request. Closing the generator, or cancelling the task that reads it, ends the work at once."""
        model, strategy = self.models.find(request.model)
        with self.running.admit(request_id, owner) as running, self._recorded(request, request_id, owner) as call:
            error: BaseException | None = None
            for observer in self.observers:
                observer.started(request, request_id)
            try:
                async with asyncio.timeout(self.limits.request_seconds):
                    sampled = reason(with_call_grammar(request), model, running.control, self.limits, strategy, call)
                    async with aclosing(separate_calls(sampled, request, request_id)) as events:
                        async for event in events:
                            for observer in self.observers:
                                observer.event(request_id, event)
                            self._keep(event, request_id, call, owner)
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

    @contextmanager
    def _recorded(self, request: GenerationRequest, request_id: str, owner: str) -> Iterator[RecordedCall | None]:
        """Within this block the request is a call of an episode. A prompt of tokens or text is none."""
        if self.recorder is None or request.prompt_token_ids is not None:
            yield None
            return
        model, strategy = self.models.find(request.model)
        searched = replace(request, strategy=request.strategy or StrategySpec(strategy)) if strategy else request
        call = self.recorder.begin(searched, model, request_id, owner)
        try:
            yield call
        finally:
            self.recorder.end(call, owner)

    def _keep(self, event: Event, request_id: str, call: RecordedCall | None, owner: str) -> None:
        """Record an event: in the trace of its episode, or in one of its own."""
        if call is not None:
            call.observe(event)
        if isinstance(event, Finished):
            if call is not None and self.recorder is not None:
                self.recorder.record(call, event, owner)
            elif self.keep_trace is not None:
                self.keep_trace(request_id, event)


def new_id(prefix: str) -> str:
    """An id that nobody can guess: `chatcmpl-...`, `resp_...`."""
    return prefix + uuid.uuid4().hex
