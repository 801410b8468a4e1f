"""A server under load: streams at a time, each a client that asks again as soon as it has its answer.

Every side gets the same chats from the same number of clients, by OpenAI's chat API with streaming: `ponder serve`, and
peers, each a command to start (`{port}`, `{folder}` and `{python}` are filled in) or a URL where one runs already. The
same work without HTTP, in a process of its own, says what the server costs: its share of the rate, and the time that it
adds until the first token. Tokens are those that `usage` counts. Results are written after every side, so a run that is
stopped keeps what it has, and a peer that fails is left out with its reason.

    python bench/serve_load.py                                      1, 8 and 64 streams on a CPU, llama.cpp beside it
    python bench/serve_load.py --device cuda --streams 1 16 64 256
        --peer "vllm={python} -m vllm.entrypoints.cli.main serve {folder} --port {port} --served-model-name smollm2"
    python bench/serve_load.py --peer "other=http://127.0.0.1:8080"
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from harness import HERE, RESULTS, make_parser, report
from serve_clients import HttpClients, InProcessChat, Load, ServerFailed, run_clients

LEAST_REQUESTS = 16  # of all clients together, so that a median means something
LLAMA_CPP = "{python} {bench}/llama_server.py {folder} --port {port}"
IN_PROCESS = "in process"
LOG_TAIL_CHARS = 1500  # of a server that failed


@contextlib.contextmanager
def running_server(command: str, folder: str, start_seconds: float) -> Iterator[str]:
    """Start a server, wait until it answers, and end it and its children afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    names = {"port": port, "folder": folder, "python": sys.executable, "bench": HERE}
    words = [word.format(**names) for word in shlex.split(command)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            end = time.monotonic() + start_seconds
            while True:
                if process.poll() is not None or time.monotonic() > end:
                    why = "ended" if process.poll() is not None else f"gave no answer for {start_seconds:g} s"
                    print(_tail(log), flush=True)
                    raise ServerFailed(f"`{command}` {why}")
                with contextlib.suppress(OSError), urlopen(f"{url}/health", timeout=2):
                    break
                time.sleep(0.2)
            yield url
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)


def _tail(log: Any) -> str:
    log.seek(0)
    return log.read()[-LOG_TAIL_CHARS:].strip()


def measure(run: Callable[[int, int, int], Load], args: Any, name: str) -> dict[int, Load]:
    """`run` takes the streams, the requests of each and a seed."""
    out = {}
    end = time.monotonic() + args.warm_seconds
    while time.monotonic() < end:
        run(max(args.streams), 1, 3)
    for streams in args.streams:
        run(streams, 1, 1)  # warm
        requests = max(args.requests, math.ceil(LEAST_REQUESTS / streams))
        out[streams] = run(streams, requests, 2)
        print(f"{name}, {streams} streams: {out[streams].to_json()}", flush=True)
    return out


def measure_in_process(args: Any) -> dict[int, Load]:
    from ponder.models.load import load_policy

    policy = load_policy(args.model, device=args.device, dtype=args.dtype)
    with asyncio.Runner() as runner:

        def run(streams: int, requests: int, seed: int) -> Load:
            return runner.run(run_clients(lambda: InProcessChat(policy, args.tokens), streams, requests, seed))

        try:
            return measure(run, args, IN_PROCESS)
        finally:
            policy.engine.close()


def measure_peer(place: str, args: Any, folder: str, name: str) -> dict[int, Load]:
    with contextlib.ExitStack() as stack:
        is_url = place.startswith("http")
        url = place if is_url else stack.enter_context(running_server(place, folder, args.start_seconds))
        clients = stack.enter_context(
            contextlib.closing(HttpClients(url, args.served_name, args.tokens, args.client_processes))
        )
        try:
            return measure(clients.run, args, name)
        except* (ServerFailed, OSError) as several:
            raise ServerFailed(str(several.exceptions[0])) from None


def main() -> None:
    args = parse_arguments()
    from ponder.models.model_paths import find_model

    folder = str(find_model(args.model))
    if args.device == "cpu":  # as many threads for every side
        from ponder.nets.hardware import set_threads

        os.environ["OMP_NUM_THREADS"] = str(set_threads())
    own = f"{{python}} -m ponder serve {args.served_name}={shlex.quote(args.model)} --port {{port}}"
    own += f" --device {args.device} --dtype {args.dtype}"
    ours = measure_peer(own, args, folder, "ponder")
    # In a process of its own, so that a GPU's memory is free again for the peers.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sides: dict[str, dict[int, Load] | None] = {IN_PROCESS: pool.apply(measure_in_process, (args,))}
    report_levels(args, ours, sides, {})
    failed: dict[str, str] = {}
    for text in args.peer:
        name, _, place = text.partition("=")
        try:
            sides[name] = measure_peer(place, args, folder, name)
        except ServerFailed as why:
            sides[name], failed[name] = None, str(why)
            print(f"{name} cannot be measured here: {why}", flush=True)
        report_levels(args, ours, sides, failed)


def parse_arguments() -> Any:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--served-name", help="of the model, for every server; default: the model's")
    parser.add_argument("--dtype", help="default: float32, on a GPU bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", help="clients at a time; default: 1 8 64")
    parser.add_argument("--requests", type=int, default=4, help=f"of each client; {LEAST_REQUESTS} of all at least")
    parser.add_argument("--tokens", type=int, help="of an answer, at most; default: 32, on a GPU 256")
    parser.add_argument("--peer", action="append", metavar="NAME=COMMAND|URL", help="default on a CPU: llama.cpp")
    parser.add_argument(
        "--client-processes", type=int, help="that the clients are spread over; default: a third of the cores"
    )
    parser.add_argument("--warm-seconds", type=float, help="of load before the first level; default: 0, on a GPU 20")
    parser.add_argument("--start-seconds", type=float, default=240.0, help="that a server may take to start")
    parser.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder that the results are written to")
    args = parser.parse_args()
    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    args.streams = args.streams or [1, 8, 64]
    if args.warm_seconds is None:  # a GPU's kernels are compiled beside the first requests
        args.warm_seconds = 20.0 if args.device == "cuda" else 0.0
    args.tokens = args.tokens or (256 if args.device == "cuda" else 32)
    args.client_processes = args.client_processes or max(1, (os.cpu_count() or 1) // 3)
    args.served_name = args.served_name or Path(args.model).name
    if args.peer is None:
        has_llama = args.device == "cpu" and importlib.util.find_spec("xllamacpp") is not None
        slots = f" --slots {max(args.streams)} --dtype {args.dtype}"
        args.peer = [f"llama.cpp={LLAMA_CPP}{slots}"] if has_llama else []
    return args


def report_levels(
    args: Any, ours: dict[int, Load], sides: Mapping[str, dict[int, Load] | None], failed: Mapping[str, str]
) -> None:
    """One result for each number of streams. The ratio is of the same work without HTTP: what the server keeps."""
    packages = ["uvicorn", "starlette", *(p for n, p in (("vllm", "vllm"), ("llama.cpp", "xllamacpp")) if n in sides)]
    for streams, load in ours.items():
        measured = {name: loads[streams] for name, loads in sides.items() if loads is not None}
        details: dict[str, Any] = {name: one.to_json() for name, one in {"ponder": load, **measured}.items()}
        added = load.first_token_p50_ms - measured[IN_PROCESS].first_token_p50_ms
        details["added_first_token_p50_ms"] = round(added, 2)
        details |= {"peer_commands": args.peer, "failed": dict(failed), "note": args.note}
        details["client_processes"] = args.client_processes
        details["threads"] = os.environ.get("OMP_NUM_THREADS", "")
        report(
            f"serve_load_{streams}",
            f"{args.served_name}, {args.dtype}: {streams} streams at a time over HTTP, {args.requests} requests each,"
            f" at most {args.tokens} tokens",
            load.rate, {name: measured[name].rate if name in measured else None for name in sides},
            load.rate / measured[IN_PROCESS].rate, 0.95, unit="tokens/s", device=args.device, packages=packages,
            details=details, results=args.results,
        )  # fmt: skip


if __name__ == "__main__":
    main()
