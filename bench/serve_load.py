"""A server under load: streams at a time, each a client that asks again as soon as it has its answer.

Every side gets the same chats at the same rate of clients, by OpenAI's chat API with streaming: `ponder serve`, and any
peer that is given a command to start (`{port}` and `{folder}` are filled in) or a URL where it runs already. The same
work without HTTP, in this process, says what the server costs. Tokens are those that `usage` counts.

    python bench/serve_load.py                                      1, 8 and 64 streams on a CPU
    python bench/serve_load.py --device cuda --streams 1 16 64 256
        --peer "vllm=vllm serve {folder} --port {port} --served-model-name smollm2"
    python bench/serve_load.py --peer "llama.cpp=http://127.0.0.1:8080"
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from harness import make_parser, report

START_SECONDS = 300.0  # that a server may take to load


@dataclass
class Load:
    """What one side did at one number of streams."""

    tokens: int = 0
    seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)  # seconds from the request to the first text

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def to_json(self) -> dict[str, float]:
        waits = sorted(self.first_token)
        return {
            "tokens_per_second": round(self.rate, 1),
            "first_token_p50_ms": round(1000 * statistics.median(waits), 2),
            "first_token_p99_ms": round(1000 * waits[math.ceil(0.99 * len(waits)) - 1], 2),
            "requests": len(waits),
        }


Ask = Callable[[str, int], Awaitable[tuple[int, float]]]  # a question and its seed: tokens, seconds to the first one


def questions(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"What is {draw.randint(10, 99)} + {draw.randint(10, 99)}? Explain each step." for _ in range(count)]


async def run_clients(make_ask: Callable[[], Ask], streams: int, requests: int, seed: int) -> Load:
    """Each client asks its questions one after another."""
    load = Load()

    async def client(number: int) -> None:
        ask = make_ask()
        for i, question in enumerate(questions(requests, seed * 10_000 + number)):
            tokens, first = await ask(question, number * requests + i)
            load.tokens += tokens
            load.first_token.append(first)

    start = time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(streams)))
    load.seconds = time.perf_counter() - start
    return load


def http_ask(url: str, model: str, max_tokens: int) -> Ask:
    """A client with a connection of its own, which reads a stream as it comes."""
    place = urlsplit(url)
    connection: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(question: str, seed: int) -> tuple[int, float]:
        if not connection:
            connection.append(await asyncio.open_connection(place.hostname, place.port, limit=1 << 20))
        reader, writer = connection[0]
        body = json.dumps({
            "model": model, "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
            "temperature": 1.0, "seed": seed, "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        start, first, tokens = time.perf_counter(), 0.0, 0
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{url} answers {status.decode().strip()}: {(await reader.read(2000)).decode()[-400:]}")
        while (line := await reader.readline()).strip() != b"data: [DONE]":
            if not line:
                raise SystemExit(f"{url} ended a stream too early")
            if line.startswith(b'data: {"error"'):
                raise SystemExit(f"{url}: {line.decode()[:400]}")
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if usage := chunk.get("usage"):
                    tokens = usage["completion_tokens"]
                if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = time.perf_counter() - start
        while (await reader.readline()).strip() != b"0":  # the last piece of a chunked body
            pass
        await reader.readline()
        return tokens, first or time.perf_counter() - start

    return ask


@contextlib.contextmanager
def running_server(command: str, folder: str) -> Iterator[str]:
    """Start a server, wait until it answers, and end it afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(shlex.split(command.format(port=port, folder=folder)), stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"`{command}` did not start")
            with contextlib.suppress(OSError), urlopen(f"{url}/health", timeout=2):
                break
            time.sleep(0.2)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()


def in_process(args: Any) -> Callable[[], Ask]:
    """The same chats without a server."""
    from ponder.models.load import load_policy
    from ponder.types import Completion, Sampling, user_messages

    policy = load_policy(args.model, device=args.device, dtype=args.dtype)

    async def ask(question: str, seed: int) -> tuple[int, float]:
        start, first, tokens = time.perf_counter(), 0.0, 0
        sampling = Sampling(temperature=1.0, max_tokens=args.tokens, seed=seed)
        async for event in policy.stream_tokens(policy.encode(user_messages(question)), sampling):
            if isinstance(event, Completion):
                tokens = len(event.token_ids)
            elif not first:
                first = time.perf_counter() - start
        return tokens, first

    return lambda: ask


def measure(make_ask: Callable[[], Ask], args: Any) -> dict[int, Load]:
    async def all_levels() -> dict[int, Load]:
        out = {}
        for streams in args.streams:
            await run_clients(make_ask, streams, 1, seed=1)  # warm
            out[streams] = await run_clients(make_ask, streams, args.requests, seed=2)
        return out

    return asyncio.run(all_levels())


def peer_loads(args: Any, folder: str) -> dict[str, dict[int, Load]]:
    out = {}
    for text in args.peer:
        name, _, place = text.partition("=")
        with contextlib.ExitStack() as stack:
            url = place if place.startswith("http") else stack.enter_context(running_server(place, folder))
            out[name] = measure(lambda url=url: http_ask(url, args.model, args.tokens), args)  # type: ignore[misc]
    return out


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", help="default: float32, on a GPU bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", help="clients at a time; default: 1 8 64")
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--tokens", type=int, help="of an answer, at most; default: 32, on a GPU 256")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND|URL")
    args = parser.parse_args()
    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    args.streams = args.streams or [1, 8, 64]
    args.tokens = args.tokens or (256 if args.device == "cuda" else 32)

    from ponder.models.model_paths import find_model

    folder = str(find_model(args.model))
    own = f"{sys.executable} -m ponder serve {args.model} --port {{port}} --device {args.device} --dtype {args.dtype}"
    with running_server(own, folder) as url:
        ours = measure(lambda: http_ask(url, args.model, args.tokens), args)
    sides: dict[str, dict[int, Load]] = {**peer_loads(args, folder), "in process": measure(in_process(args), args)}
    report_levels(args, ours, sides)


def report_levels(args: Any, ours: dict[int, Load], sides: dict[str, dict[int, Load]]) -> None:
    """One result for each number of streams. The ratio is of the same work without HTTP: what the server keeps."""
    packages: Sequence[str] = ("uvicorn", "starlette", *(name for name in ("vllm",) if name in sides))
    for streams, load in ours.items():
        peers = {name: loads[streams].rate for name, loads in sides.items()}
        details = {"ponder": load.to_json(), **{name: loads[streams].to_json() for name, loads in sides.items()}}
        report(
            f"serve_load_{streams}",
            f"{args.model}, {args.dtype}: {streams} streams at a time over HTTP, {args.requests} requests each, at most"
            f" {args.tokens} tokens",
            load.rate, peers, load.rate / peers["in process"], 0.95, unit="tokens/s", device=args.device,
            packages=packages, details=details,
        )  # fmt: skip


if __name__ == "__main__":
    main()
