"""Clients that load a server: each has one connection, and asks again as soon as it has its answer."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit


class ServerFailed(Exception):
    """A server did not start, or did not answer as it should."""


class Client(Protocol):
    async def ask(self, question: str) -> tuple[int, float]:
        """The tokens of the answer, and seconds until its first text."""

    def close(self) -> None: ...


@dataclass
class Load:
    """What one side did at one number of streams."""

    tokens: int = 0
    seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)  # seconds from the request to the first text

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def first_token_p50_ms(self) -> float:
        return 1000 * statistics.median(self.first_token)

    def to_json(self) -> dict[str, float]:
        waits = sorted(self.first_token)
        return {
            "tokens_per_second": round(self.rate, 1),
            "first_token_p50_ms": round(self.first_token_p50_ms, 2),
            "first_token_p99_ms": round(1000 * waits[math.ceil(0.99 * len(waits)) - 1], 2),
            "requests": len(waits),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 2),
        }


def questions(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"What is {draw.randint(10, 99)} + {draw.randint(10, 99)}? Explain each step." for _ in range(count)]


async def run_clients(
    make_client: Callable[[], Client], streams: int, requests: int, seed: int, first_stream: int = 0
) -> Load:
    """Each client asks its questions one after another."""
    load = Load()

    async def run(number: int) -> None:
        client = make_client()
        try:
            for question in questions(requests, seed * 10_000 + number):
                tokens, first = await client.ask(question)
                load.tokens += tokens
                load.first_token.append(first)
        finally:
            client.close()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(first_stream, first_stream + streams):
            group.create_task(run(number))
    load.seconds = time.perf_counter() - start
    return load


class HttpChat:
    """Streams chats by OpenAI's API. No seed is sent: some servers sample seeded requests one by one."""

    def __init__(self, url: str, model: str, max_tokens: int) -> None:
        self.url, self.model, self.max_tokens = url, model, max_tokens
        self.events = 0  # of all streams so far
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: str) -> tuple[int, float]:
        place = urlsplit(self.url)
        body = json.dumps({
            "model": self.model, "messages": [{"role": "user", "content": question}], "max_tokens": self.max_tokens,
            "temperature": 1.0, "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        data = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        start = time.perf_counter()
        reader, status = await self._send(data)
        if not status:  # the server has closed the connection since the last answer
            self.close()
            reader, status = await self._send(data)
        if b" 200 " not in status:
            rest = (await reader.read(2000)).decode(errors="replace")
            raise ServerFailed(f"{self.url} answers {status.decode().strip()}: {rest[-400:]}")
        tokens, first = await self._read_events(reader, start)
        while (line := await reader.readline()) and line.strip() != b"0":  # the last piece of a chunked body
            pass
        await reader.readline()
        return tokens, first

    async def _send(self, data: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Where the reply is read from, and its first line."""
        if self._streams is None:
            place = urlsplit(self.url)
            self._streams = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
        reader, writer = self._streams
        try:
            writer.write(data)
            return reader, await reader.readline()
        except ConnectionError:
            return reader, b""

    async def _read_events(self, reader: asyncio.StreamReader, start: float) -> tuple[int, float]:
        """Only events that are needed are parsed: the client should not be what is measured."""
        first, tokens = 0.0, 0
        while (line := await reader.readline()).strip() != b"data: [DONE]":
            if not line:
                raise ServerFailed(f"{self.url} ended a stream too early")
            self.events += line.startswith(b"data: ")
            if line.startswith(b'data: {"error"'):
                raise ServerFailed(f"{self.url}: {line.decode(errors='replace')[:400]}")
            if line.startswith(b"data: {") and (not first or b'"completion_tokens"' in line):
                chunk = json.loads(line[6:])
                if usage := chunk.get("usage"):
                    tokens = usage["completion_tokens"]
                if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = time.perf_counter() - start
        return tokens, first or time.perf_counter() - start

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class HttpClients:
    """Clients of one server over several processes, so that they are not what is measured."""

    def __init__(self, url: str, model: str, max_tokens: int, processes: int) -> None:
        self._server = (url, model, max_tokens)
        self._count = processes
        self._processes = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def run(self, streams: int, requests: int, seed: int) -> Load:
        """From the first process's start to the last one's end."""
        counts = [streams // self._count + (number < streams % self._count) for number in range(self._count)]
        start = time.perf_counter()
        parts = [
            self._processes.submit(_run_http_clients, self._server, count, requests, seed, sum(counts[:number]))
            for number, count in enumerate(counts)
            if count
        ]
        loads = [part.result() for part in parts]
        waits = [wait for load in loads for wait in load.first_token]
        return Load(sum(load.tokens for load in loads), time.perf_counter() - start, waits)

    def close(self) -> None:
        self._processes.shutdown(cancel_futures=True)


def _run_http_clients(server: tuple[str, str, int], streams: int, requests: int, seed: int, first_stream: int) -> Load:
    return asyncio.run(run_clients(lambda: HttpChat(*server), streams, requests, seed, first_stream))


class InProcessChat:
    """The same chats without a server."""

    def __init__(self, policy: Any, max_tokens: int) -> None:
        self.policy, self.max_tokens = policy, max_tokens

    async def ask(self, question: str) -> tuple[int, float]:
        from ponder.types import Completion, Sampling, user_messages

        start, first, tokens = time.perf_counter(), 0.0, 0
        sampling = Sampling(temperature=1.0, max_tokens=self.max_tokens)
        async for event in self.policy.stream_tokens(self.policy.encode(user_messages(question)), sampling):
            if isinstance(event, Completion):
                tokens = len(event.token_ids)
            elif not first:
                first = time.perf_counter() - start
        return tokens, first

    def close(self) -> None:
        pass
