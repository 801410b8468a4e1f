"""uvicorn in one process: one event loop for HTTP, the engine in its thread. SIGTERM lets running requests finish."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from typing import Any

from ponder.errors import MissingExtra
from ponder.serve.http_protocol import bounded_protocol, raise_file_limit
from ponder.serve.service import Service
from ponder.serve.warm_up import warm_up

_BACKLOG = 2048  # as the socket's (local_http.bind)
_KEEP_ALIVE_SECONDS = 30
_SWITCH_SECONDS = 1e-4
_GC_THRESHOLD = 20_000  # objects; by default 700, which a request makes several times


def make_uvicorn(app: Any, service: Service, access_log: bool = False) -> Any:
    """A uvicorn server that takes no new requests from its first signal on."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("ponder serve", "uvicorn", "serve") from None
    config = uvicorn.Config(
        app, log_level="info" if access_log else "warning", access_log=access_log, lifespan="off", ws="none",
        http=bounded_protocol(service.limits), server_header=False,
        backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE_SECONDS, date_header=False, proxy_headers=False,
        timeout_graceful_shutdown=int(service.limits.drain_seconds),
    )  # fmt: skip
    server = uvicorn.Server(config)

    def drain(signal: int, frame: Any) -> None:
        """The first signal lets requests finish, the second ends them. uvicorn's own handler would raise the signal
        again at the end, before the traces are written."""
        server.force_exit = service.running.draining
        service.running.draining = server.should_exit = True

    server.handle_exit = drain
    return server


def run_server(
    app: Any, service: Service, listener: socket.socket, on_ready: Callable[[], None] = lambda: None,
    access_log: bool = False,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM."""
    raise_file_limit(service.limits)
    share_interpreter()
    server = make_uvicorn(app, service, access_log)

    async def main() -> None:
        await warm_up(service.models, service.limits.max_concurrent)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if not serving.done():
            on_ready()
        await serving

    event_loop_runner()(main())


def share_interpreter() -> None:
    """Let the engine's thread take its turns at once while the loop is busy: by default a thread waits 5 ms for each,
    and one step takes hundreds. What was loaded so far is never garbage, so collections need not look at it; and
    requests leave few cycles, so they may be rare."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def event_loop_runner() -> Callable[[Any], None]:
    """uvloop's, where it is installed: it is faster."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
