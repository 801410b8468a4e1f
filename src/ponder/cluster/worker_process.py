"""The life of a process that serves a learner: replicas, with our engine or vLLM's, and verifier workers."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import traceback
from typing import NoReturn

from ponder.cluster.handshake import Serve, serve_on
from ponder.cluster.process_host import end_with_launcher


def end_on_error(task: asyncio.Task[None]) -> None:
    """As a task's callback: end the process where it failed. The learner starts another, and quotes what this one wrote
    last."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)


def run_worker(serve: Serve) -> NoReturn:
    """Serve until the input ends, and end at once: other threads may be inside a library."""
    faulthandler.enable()
    end_with_launcher()
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the messages
    asyncio.run(serve_on(output, serve))
    sys.stderr.flush()
    os._exit(0)
