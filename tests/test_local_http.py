"""The listening socket that the servers share."""

from __future__ import annotations

import asyncio
import socket

from fakes import run_async
from ponder.local_http import bind


def test_bind_makes_connections_that_send_each_piece_at_once() -> None:
    async def accept_one() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(handle, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            result = await accepted
            writer.close()
        return result

    assert run_async(accept_one())
