"""What a server counts: requests, tokens and times, from the events of its requests and the load of its engines."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ponder.engine.engine import EngineLoad
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.model_replicas import ModelReplicas
from ponder.reason.effort import EFFORTS
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import STRATEGIES
from ponder.serve.episode_recorder import EpisodeRecorder
from ponder.serve.events import Event, Finished, TextEvent
from ponder.serve.generation import GenerationRequest
from ponder.serve.metrics import SECONDS, TOKENS, Counter, Gauge, Histogram, Labels, Metric, render_metrics
from ponder.serve.served_models import ServedModel, ServedModels
from ponder.serve.usage import Usage

_MODEL = ("model_name",)


@dataclass(slots=True)
class _Watched:
    """A request that runs."""

    model: str
    begin: float
    last_token: dict[int, float] = field(default_factory=dict)  # when, by choice
    finished: bool = False


class ServerMetrics:
    """Observes all requests of a service. The names are vLLM's where the meaning is equal; `ponder:` is for what only a
    server with strategies has."""

    def __init__(
        self,
        models: ServedModels,
        recorder: Callable[[], EpisodeRecorder | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._models, self._recorder, self._clock = models, recorder, clock
        self._watched: dict[str, _Watched] = {}  # requests that run, by id
        self.prompt_tokens = Counter("vllm:prompt_tokens_total", "Tokens of prompts", _MODEL)
        self.generation_tokens = Counter("vllm:generation_tokens_total", "Tokens that were sampled", _MODEL)
        self.cached = Counter("vllm:prefix_cache_hits_total", "Tokens of prompts that were cached", _MODEL)
        self.queried = Counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up", _MODEL)
        self.successes = Counter(
            "vllm:request_success_total", "Choices that came to an end", (*_MODEL, "finished_reason")
        )
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "Seconds until the first text, thoughts included", _MODEL, SECONDS
        )
        self.between_tokens = Histogram(
            "vllm:inter_token_latency_seconds", "Seconds from one token of a choice to its next", _MODEL, SECONDS
        )
        self.latency = Histogram("vllm:e2e_request_latency_seconds", "Seconds of whole requests", _MODEL, SECONDS)
        self.prompt_lengths = Histogram("vllm:request_prompt_tokens", "Tokens of a prompt", _MODEL, TOKENS)
        self.answer_lengths = Histogram(
            "vllm:request_generation_tokens", "Tokens that a request sampled", _MODEL, TOKENS
        )
        self.reasoning_tokens = Counter(
            "ponder:reasoning_tokens_total", "Tokens sampled outside of answers: thoughts, other branches", _MODEL
        )
        self.scorer_tokens = Counter("ponder:scorer_tokens_total", "Tokens that guides read and wrote", _MODEL)
        self.nodes = Counter("ponder:search_nodes_total", "Steps that strategies sampled", _MODEL)
        self.requests = Counter("ponder:requests_total", "Requests that began", (*_MODEL, "strategy"))
        self.unfinished = Counter(
            "ponder:requests_unfinished_total", "Requests that failed, were cancelled or lost their client", _MODEL
        )
        self.replies = Counter("ponder:http_replies_total", "HTTP replies", ("status",))

    def started(self, request: GenerationRequest, request_id: str) -> None:
        model, suffix = self._models.find(request.model)
        self._watched[request_id] = _Watched(model.name, self._clock())
        self.requests.add(1, model.name, _strategy_name(request, suffix))

    def event(self, request_id: str, event: Event) -> None:
        watched, now = self._watched[request_id], self._clock()
        model, last = watched.model, watched.last_token
        if isinstance(event, Finished):
            watched.finished = True
            self._count(event, model)
            self.latency.observe(now - watched.begin, model)
        elif isinstance(event, TextEvent):
            if not last:
                self.first_token.observe(now - watched.begin, model)
            count = len(event.token_ids)
            if count and event.choice in last:
                self.between_tokens.observe((now - last[event.choice]) / count, model, count=count)
            if count or event.choice not in last:
                last[event.choice] = now

    def ended(self, request_id: str, error: BaseException | None) -> None:
        watched = self._watched.pop(request_id)
        if not watched.finished:
            self.unfinished.add(1, watched.model)

    def _count(self, event: Finished, model: str) -> None:
        usage: Usage = event.usage
        self.prompt_tokens.add(usage.prompt_tokens, model)
        self.queried.add(usage.prompt_tokens, model)
        self.cached.add(usage.cached_tokens, model)
        self.generation_tokens.add(usage.completion_tokens, model)
        self.reasoning_tokens.add(usage.reasoning_tokens, model)
        self.scorer_tokens.add(usage.search.scorer_tokens, model)
        self.nodes.add(usage.search.nodes, model)
        self.prompt_lengths.observe(usage.prompt_tokens, model)
        self.answer_lengths.observe(usage.completion_tokens, model)
        for reason in event.finish_reasons:
            self.successes.add(1, model, reason)

    def counting_replies(self, app: Any) -> Any:
        """The same ASGI application; its replies are counted by status."""

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            async def count_and_send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self.replies.add(1, str(message["status"]))
                await send(message)

            await app(scope, receive, count_and_send)

        return counted

    def render(self) -> str:
        """The body of `/metrics`."""
        counted = [metric for metric in vars(self).values() if isinstance(metric, Metric)]
        return render_metrics([*self._gauges(), *counted])

    def _gauges(self) -> Iterator[Metric]:
        running = Counts(watched.model for watched in self._watched.values())
        yield Gauge("vllm:num_requests_running", "Requests that run", _MODEL,
                    lambda: [((name,), running[name]) for name in self._models.models])  # fmt: skip
        loads = [(model.name, load) for model in self._models.models.values() if (load := _load(model))]
        gauges: list[tuple[str, str, Callable[[EngineLoad], float]]] = [
            ("ponder:num_sequences_running", "Sequences in the engine's batches", lambda load: load.running),
            ("ponder:num_sequences_waiting", "Sequences that wait for room", lambda load: load.waiting),
            ("vllm:kv_cache_usage_perc", "The share of the cache in use, from 0 to 1", lambda load: load.cache_use),
        ]
        for name, help, read in gauges:
            rows: list[tuple[Labels, float]] = [((model,), read(load)) for model, load in loads]
            yield Gauge(name, help, _MODEL, lambda rows=rows: rows)  # type: ignore[misc]
        preemptions = Counter("vllm:num_preemptions_total", "Sequences that made room for others", _MODEL)
        for model, load in loads:
            preemptions.add(load.preemptions, model)
        yield preemptions
        if (recorder := self._recorder()) is not None:
            yield from _episode_counters(recorder)


def _episode_counters(recorder: EpisodeRecorder) -> Iterator[Metric]:
    """Of the agents whose calls are recorded."""
    for name, help, counts in (
        ("ponder:episode_calls_total", "Calls of recorded episodes", recorder.calls),
        (
            "ponder:episode_extra_prompts_total",
            "Calls of recorded episodes whose template or client rewrote what was said before",
            recorder.extra_prompts,
        ),
    ):
        counter = Counter(name, help, _MODEL)
        for model, count in counts.items():
            counter.add(count, model)
        yield counter


def _strategy_name(request: GenerationRequest, suffix: str) -> str:
    """The strategy that a request asks for; names that nobody has are one."""
    name = request.strategy.name if request.strategy else suffix
    if not name:
        return EFFORTS[request.effort].strategy if request.effort in EFFORTS else "chain"
    return name if name in STRATEGIES or name in PRESETS else "unknown"


def _load(model: ServedModel) -> EngineLoad | None:
    base = model.base
    if isinstance(base, ModelReplicas):
        return base.load
    return base.engine.load if isinstance(base, PonderPolicy) else None
