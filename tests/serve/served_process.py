"""`ponder serve` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer


@contextmanager
def served_processes(*servers: Sequence[str | Path]) -> Iterator[list[str]]:
    """The addresses of servers over these models, which start side by side."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "ponder", "serve", *map(str, arguments), "--port", "0", "--device", "cpu"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )
        for arguments in servers
    ]  # fmt: skip
    late = [Timer(240, process.kill) for process in processes]
    for timer in late:
        timer.start()
    try:
        addresses = [_read_address(process) for process in processes]
        for timer in late:
            timer.cancel()
        yield addresses
    finally:
        for timer, process in zip(late, processes, strict=True):
            timer.cancel()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            finally:
                process.kill()
                process.communicate()


def _read_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    match = re.search(r"at (http://\S+)", line)
    assert match, f"the server did not start: {line}{process.stderr.read()}"
    return match[1]
