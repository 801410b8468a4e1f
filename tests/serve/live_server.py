"""A real server on a free port of the loopback, over a small random model, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ponder.local_http import bind
from ponder.models import chat_templates
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.serve import reasoner
from ponder.serve.app import make_app
from ponder.serve.guard import GuardSettings
from ponder.serve.limits import Limits
from ponder.serve.served_models import ServedModel, ServedModels, ThinkMarkers
from ponder.serve.server import make_uvicorn, ready_models
from ponder.serve.service import Service

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
# The question, and the marker that opens the thinking where the request wants it.
TEMPLATE = "{{- messages[-1].content }}{% if enable_thinking is defined and enable_thinking %}<{% endif %}"
MARKERS = ThinkMarkers("<", ">")


@lru_cache
def small_policy(seed: int = 5, context: int = 512) -> PonderPolicy:
    """Reads and writes every character of a plain text. Its own end of thinking, '>', comes after some 90 tokens."""
    fresh = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=context, seed=seed)
    net, tokenizer = fresh.build(torch.float32, torch.device("cpu"))
    return PonderPolicy(net, chat_templates.with_chat_template(tokenizer, TEMPLATE), seed, cache_bytes=64 << 20)


def small_models() -> ServedModels:
    """`plain` answers at once; `thinker` is the same network, which thinks first."""
    policy = small_policy()
    return ServedModels([ServedModel("plain", policy), ServedModel("thinker", policy, MARKERS)])


@dataclass(eq=False)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def chunks(self) -> list[Any]:
        """The objects of a stream, which ends with [DONE]."""
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        assert lines and lines[-1] == "[DONE]", lines[-1:]
        return [json.loads(line) for line in lines[:-1]]


@dataclass(eq=False)
class LiveServer:
    service: Service
    port: int
    loop: asyncio.AbstractEventLoop
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self, timeout: float = 240.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = self.connect()
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {**self.headers, **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.send("POST", path, body, headers)

    def chat(self, content: str = "2+2?", model: str = "plain", **fields: Any) -> Reply:
        return self.post(
            "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": content}], **fields}
        )


@contextmanager
def live_server(
    models: ServedModels | None = None, limits: Limits | None = None, guard: GuardSettings | None = None, **app: Any
) -> Iterator[LiveServer]:
    """Serve within this block, in a thread. Requests without a seed get the same seeds in every run of the tests."""
    service = Service(models or small_models(), limits or Limits())
    listener = bind("127.0.0.1", 0)
    server = make_uvicorn(make_app(service, guard, **app), service)
    loops: list[asyncio.AbstractEventLoop] = []

    def serve() -> None:
        async def main() -> None:
            loops.append(asyncio.get_running_loop())
            async with ready_models(service):
                await server.serve(sockets=[listener])

        asyncio.run(main())

    thread = threading.Thread(target=serve, name="live server", daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reasoner, "secrets", SimpleNamespace(randbits=random.Random(0).getrandbits))
        try:
            wait_until(lambda: server.started)
            yield LiveServer(service, listener.getsockname()[1], loops[0])
        finally:
            server.should_exit = True
            thread.join(120)
            listener.close()


@contextmanager
def pausing_engine(steps: int = 20) -> Iterator[threading.Event]:
    """After so many steps the engine of `small_policy` waits until the event is set: no reply ends before, however slow
    the client is."""
    event, count, policy = threading.Event(), itertools.count(), small_policy()

    def pause(tokens: int) -> None:
        if next(count) >= steps:
            event.wait(120)

    policy.on_tokens = pause
    try:
        yield event
    finally:
        event.set()
        policy.on_tokens = lambda tokens: None


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)
