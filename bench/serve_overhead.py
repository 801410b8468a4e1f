"""What the server itself costs: the event loop's processor time for each streamed chat, and for each chunk of one.

The model is replaced by one that costs nothing: launches of several steps take as long as they would on a GPU (its
pace), and their tokens are drawn at random. All else is real: HTTP, the chat template and the tokenizer of SmolLM2, the
engine's thread with its scheduler, server-sent events. The clients are a process of their own. Chats with one token
and chats with many give two equations for the two costs. The same chats without HTTP, in the same kind of process, say
what share of the rate the server keeps when one interpreter does both.

    python bench/serve_overhead.py --streams 16 64 256
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, make_parser, report
from ponder.engine import engine
from ponder.engine.graph_buffers import STEPS_PER_LAUNCH
from ponder.engine.model_runner import ModelRunner, PendingTokens
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk
from serve_clients import HttpChat, InProcessChat, Load, run_clients

FIRST_ID, LAST_ID = 1000, 20_000  # random tokens: words and their parts, no special tokens
PREFILL_SECONDS = 1e-3


@dataclass
class Pace:
    """How long a step takes."""

    seconds: float = 4e-4
    seconds_per_sequence: float = 2.5e-6

    def of(self, sequences: int) -> float:
        return self.seconds + self.seconds_per_sequence * sequences


class PacedRunner(ModelRunner):
    """Random tokens after as long as a device would take. Launches queue up on it, as on a device."""

    pace = Pace()

    def __init__(self, net: Any, slots: int) -> None:
        super().__init__(net, slots)
        self._draw = np.random.default_rng(0)
        self._free_at = 0.0  # when the launches before are done

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Any:
        import torch

        self._wait(self._queue(PREFILL_SECONDS))
        return torch.zeros(sum(chunk.stop - chunk.start for chunk in chunks), 1)

    def mixed_batch(self, chunks: Sequence[PrefillChunk]) -> bool:
        return False

    def choose_sequences(self, seqs: Sequence[SequenceState]) -> tuple[Sequence[SequenceState], int]:
        return seqs, self.max_steps(seqs)

    def max_steps(self, seqs: Sequence[SequenceState], ahead: int = 0) -> int:
        return max(1, min(STEPS_PER_LAUNCH, max(seq.sampling.max_tokens - seq.num_tokens for seq in seqs) - ahead))

    def can_launch(self, seqs: Sequence[SequenceState], chunks: Sequence[PrefillChunk] = ()) -> bool:
        return True

    def can_launch_ahead(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        return True

    def launch(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, chunks: Sequence[PrefillChunk] = ()
    ) -> PendingTokens:
        done_at = self._queue(steps * self.pace.of(len(seqs)))
        shape = len(seqs), steps
        tokens_BS = self._draw.integers(FIRST_ID, LAST_ID, shape).astype(np.int32)
        logprobs_BS = np.full(shape, -1.0, np.float32)

        def results() -> tuple[Any, Any]:
            self._wait(done_at)
            return tokens_BS, logprobs_BS

        return results

    def _queue(self, seconds: float) -> float:
        self._free_at = max(self._free_at, time.perf_counter()) + seconds
        return self._free_at

    def _wait(self, until: float) -> None:
        if (left := until - time.perf_counter()) > 0:
            time.sleep(left)


def make_policy(model: str) -> Any:
    """The model's tokenizer over a network that is never computed."""
    from ponder.models.model_paths import find_model
    from ponder.models.ponder_policy import PonderPolicy
    from ponder.models.tokenizer import Tokenizer
    from ponder.nets.config import DecoderConfig
    from ponder.nets.decoder import init_decoder

    engine.make_runner = lambda net, slots, *_: PacedRunner(net, slots)
    tokenizer = Tokenizer.from_folder(find_model(model))
    net = init_decoder(DecoderConfig("llama", tokenizer.vocab_size, 8, 30, 1, 1, 8, 8, context=8192), 0)
    return PonderPolicy(net, tokenizer, cache_bytes=256 << 20)


@contextlib.contextmanager
def running_server(model: str) -> Iterator[tuple[str, threading.Thread]]:
    """`ponder serve` over the paced model, in a thread, whose processor time is that of the event loop."""
    from ponder.event_loop import share_interpreter
    from ponder.local_http import bind
    from ponder.serve.app import make_app
    from ponder.serve.served_models import ServedModel, ServedModels
    from ponder.serve.server import event_loop_runner, make_uvicorn
    from ponder.serve.service import Service

    service = Service(ServedModels([ServedModel("paced", make_policy(model))]))
    listener = bind("127.0.0.1", 0)
    server = make_uvicorn(make_app(service), service)
    share_interpreter()
    thread = threading.Thread(
        target=lambda: event_loop_runner()(server.serve(sockets=[listener])), name="event loop", daemon=True
    )
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", thread
    finally:
        server.should_exit = True
        thread.join(60)


def run_load(place: str, streams: int, requests: int, tokens: int, seed: int) -> tuple[Load, int]:
    """What clients got, and the events of all their streams: of the server at a URL, or of a model in this process."""
    clients: list[HttpChat] = []

    def connect() -> HttpChat:
        clients.append(HttpChat(place, "paced", tokens))
        return clients[-1]

    if place.startswith("http:"):
        load = asyncio.run(run_clients(connect, streams, requests, seed))
        return load, sum(client.events for client in clients)
    policy = make_policy(place)
    try:
        asyncio.run(run_clients(lambda: InProcessChat(policy, tokens), streams, 1, seed + 1))  # warm
        return asyncio.run(run_clients(lambda: InProcessChat(policy, tokens), streams, requests, seed)), 0
    finally:
        policy.engine.close()


def loop_seconds(thread: threading.Thread) -> float:
    """Processor time of the event loop so far."""
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


@dataclass
class Level:
    """Costs at one number of streams: seconds of the event loop."""

    streams: int
    per_request: float  # of a chat with one token
    per_chunk: float
    tokens_per_chunk: float
    load: Load
    in_process: Load

    @property
    def share(self) -> float:
        return self.load.rate / self.in_process.rate

    def to_json(self) -> dict[str, Any]:
        return {
            "request_ms": round(1e3 * self.per_request, 3), "chunk_ms": round(1e3 * self.per_chunk, 4),
            "tokens_per_chunk": round(self.tokens_per_chunk, 1), "share_of_in_process": round(self.share, 3),
            "served": self.load.to_json(), "in_process": self.in_process.to_json(),
        }  # fmt: skip


def measure(streams: int, args: Any) -> Level:
    with running_server(args.model) as (url, thread), multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(run_load, (url, streams, 1, args.tokens, 1))  # warm

        def cost(requests: int, tokens: int) -> tuple[float, float, Load]:
            """Seconds and events of a chat."""
            before = loop_seconds(thread)
            load, events = pool.apply(run_load, (url, streams, requests, tokens, 2))
            chats = streams * requests
            return (loop_seconds(thread) - before) / chats, events / chats, load

        short_seconds, short_events, _ = cost(max(args.requests, 512 // streams), 1)
        seconds, events, load = cost(max(args.requests, 64 // streams), args.tokens)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        in_process, _ = pool.apply(run_load, (args.model, streams, max(args.requests, 64 // streams), args.tokens, 2))
    chunks = events - short_events
    level = Level(
        streams, short_seconds, (seconds - short_seconds) / chunks, (args.tokens - 1) / chunks, load, in_process
    )
    print(f"{streams} streams: {level.to_json()}", flush=True)
    return level


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer and chat template are used")
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 256], help="clients at a time")
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that the results are written to")
    args = parser.parse_args()
    levels = [measure(streams, args) for streams in args.streams]
    for level in levels:
        report(
            f"serve_overhead_{level.streams}",
            f"{level.streams} streams of {args.tokens} tokens from a model without cost, at a GPU's pace: over HTTP,"
            " and in process",
            level.load.rate, {"in process": level.in_process.rate}, level.share, 0.95, unit="tokens/s",
            packages=["uvicorn", "starlette", "uvloop", "httptools"], details=level.to_json(), results=args.results,
        )  # fmt: skip


if __name__ == "__main__":
    main()
