"""A server in a process of its own, whose engine takes a while for each token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ponder.local_http import bind
from ponder.serve.app import make_app
from ponder.serve.limits import Limits
from ponder.serve.server import run_server
from ponder.serve.service import Service
from serve.live_server import small_models, small_policy

TOKEN_SECONDS = 0.02


def main(drain_seconds: float) -> None:
    service = Service(small_models(), Limits(drain_seconds=drain_seconds))
    listener = bind("127.0.0.1", 0)
    small_policy().on_tokens = lambda tokens: time.sleep(TOKEN_SECONDS)
    port = listener.getsockname()[1]
    run_server(make_app(service), service, listener, lambda: print(f"at port {port}", flush=True))


@contextmanager
def slow_server(drain_seconds: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, and the port that it listens on."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "serve.slow_server", str(drain_seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"at port (\d+)", line)
        assert found, line + process.stderr.read()
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main(float(sys.argv[1]))
