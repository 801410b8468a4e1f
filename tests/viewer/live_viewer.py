"""A real viewer on a free port of the loopback, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.local_http import bind
from ponder.viewer.app import make_app
from ponder.viewer.guard import ViewerGuardSettings
from ponder.viewer.run_listing import RunLibrary
from ponder.viewer.server import make_uvicorn


@dataclass(eq=False)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(eq=False)
class LiveViewer:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON at a path; anything but success fails."""
        reply = self.send("GET", path)
        assert reply.status == 200, (path, reply.status, reply.body[:500])
        return reply.json

    def error(self, path: str) -> str:
        """The sentence of a request that is refused."""
        reply = self.send("GET", path)
        assert 400 <= reply.status < 500, (path, reply.status, reply.body[:500])
        return str(reply.json["error"])

    def run_id(self, name: str) -> str:
        return str(next(run["id"] for run in self.get("/api/runs")["runs"] if run["name"] == name))


@contextmanager
def live_viewer(root: Path, serve_url: str = "", embed: bool = False) -> Iterator[LiveViewer]:
    """View this folder within this block, in a thread."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = make_uvicorn(make_app(RunLibrary(root, serve_url), ViewerGuardSettings(port, embed)))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline, "the viewer did not start"
            time.sleep(0.002)
        yield LiveViewer(port)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
