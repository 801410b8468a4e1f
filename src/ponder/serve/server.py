"""uvicorn in one process: one event loop for HTTP, the engine in its thread or in a process of its own. SIGTERM lets
running requests finish (draining_server.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ponder.errors import MissingExtra
from ponder.event_loop import share_interpreter
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.model_replicas import ModelReplicas
from ponder.models.warm_up import warm_up
from ponder.serve.http_protocol import bounded_protocol, raise_file_limit
from ponder.serve.service import Service

_BACKLOG = 2048  # as the socket's (local_http.bind)
_KEEP_ALIVE_SECONDS = 30


def make_uvicorn(app: Any, service: Service, access_log: bool = False) -> Any:
    """A uvicorn server that takes no new requests from its first signal on."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("ponder serve", "uvicorn", "serve") from None
    from ponder.serve.draining_server import DrainingServer, without_cancelled

    config = uvicorn.Config(
        without_cancelled(app, service.running), log_level="info" if access_log else "warning", access_log=access_log,
        lifespan="off", ws="none", http=bounded_protocol(service.limits), server_header=False,
        backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE_SECONDS, date_header=False, proxy_headers=False,
    )  # fmt: skip
    return DrainingServer(config, service)


def run_server(
    app: Any, service: Service, listener: socket.socket, on_ready: Callable[[], None] = lambda: None,
    access_log: bool = False,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM."""
    raise_file_limit(service.limits)
    share_interpreter()
    server = make_uvicorn(app, service, access_log)

    async def main() -> None:
        async with ready_models(service):
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            if not serving.done():
                on_ready()
            await serving

    event_loop_runner()(main())


@asynccontextmanager
async def ready_models(service: Service) -> AsyncIterator[None]:
    """Within this block the models can sample: their processes run, engines on a GPU are warm, tables are made."""
    policies = {id(model.base): model.base for model in service.models.models.values()}.values()
    async with AsyncExitStack() as stack:
        for policy in policies:
            if policy is not None:
                policy.tokenizer.decode([0], keep_special=True)  # the first one makes a table of all tokens
            if isinstance(policy, ModelReplicas):
                stack.push_async_callback(policy.close)
                await policy.start()
            elif isinstance(policy, PonderPolicy):
                await warm_up(policy, service.limits.max_concurrent)
        yield


def event_loop_runner() -> Callable[[Any], None]:
    """uvloop's, where it is installed: it is faster."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
