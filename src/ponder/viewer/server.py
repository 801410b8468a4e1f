"""uvicorn for the viewer, on the loopback, until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from ponder.errors import MissingExtra

_MAX_CONNECTIONS = 256
_KEEP_ALIVE_SECONDS = 30


def check_extra() -> None:
    """Raise where the packages of the extra `serve` are missing."""
    try:
        import starlette
        import uvicorn
    except ImportError as reason:
        raise MissingExtra("ponder view", str(reason.name), "serve") from None
    del starlette, uvicorn


def make_uvicorn(app: Any) -> Any:
    import uvicorn

    config = uvicorn.Config(
        app, http="h11", log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
        date_header=False, proxy_headers=False, limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)

    def stop(signal: int, frame: Any) -> None:
        """uvicorn's own handler would raise the signal again at the end."""
        server.force_exit = server.should_exit
        server.should_exit = True

    server.handle_exit = stop
    return server


def run_server(app: Any, listener: socket.socket, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM."""
    server = make_uvicorn(app)

    async def main() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if not serving.done():
            on_ready()
        await serving

    asyncio.run(main())
