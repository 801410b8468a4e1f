"""What every request passes first: its method, its Host and its Origin. Each reply gets the headers that keep the page
from loading or running anything but its own files.

Other web pages may try to read run directories through a visitor's browser: by a request of their own (Origin), or by a
name of theirs that resolves to this machine (Host, "DNS rebinding").
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ponder.local_http import LOOPBACK_HOSTS

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MAX_PATH_CHARS = 4096


@dataclass(frozen=True, slots=True)
class ViewerGuardSettings:
    """`embed`: pages of this machine, such as a notebook's, may show the viewer in a frame."""

    port: int
    embed: bool = False

    @property
    def hosts(self) -> frozenset[str]:
        """What the Host header may be, exactly."""
        return frozenset(f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in LOOPBACK_HOSTS)


class ViewerGuard:
    """ASGI middleware around the application."""

    def __init__(self, app: Any, settings: ViewerGuardSettings, post_paths: frozenset[str] = frozenset()) -> None:
        """`post_paths`: the only paths that a POST may go to."""
        self.app, self.hosts, self.post_paths = app, settings.hosts, post_paths
        frames = "'self' http://localhost:* http://127.0.0.1:*" if settings.embed else "'none'"
        headers = {**_HEADERS, "content-security-policy": f"{CONTENT_POLICY}; frame-ancestors {frames}"}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        if (refusal := self._refusal(scope)) is None:
            await self.app(scope, receive, send_with_headers)
            return
        status, text = refusal
        body = json.dumps({"error": text}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the sentence for a request that is refused."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host, origin = headers.get("host", []), headers.get("origin", [])
        if len(host) != 1 or host[0].lower() not in self.hosts:
            return 403, "the viewer is reached by the link that `ponder view` printed, and by no other name"
        if origin and [each.lower() for each in origin] != [f"http://{host[0].lower()}"]:
            return 403, "a page of another origin may not read the viewer"
        fetch_site = headers.get("sec-fetch-site", ["none"])
        if fetch_site[0] not in ("none", "same-origin") and not self._opens_page(scope, headers):
            return 403, "a page of another origin may not read the viewer"
        if scope["method"] not in ("GET", "HEAD") and not (
            scope["method"] == "POST" and scope["path"] in self.post_paths
        ):
            return 405, "the viewer only reads: send GET"
        if len(scope["path"]) + len(scope["query_string"]) > MAX_PATH_CHARS:
            return 414, f"an address has at most {MAX_PATH_CHARS} characters"
        return None

    @staticmethod
    def _opens_page(scope: Scope, headers: dict[str, list[str]]) -> bool:
        """A link on another page may open the viewer's page, whose policy decides about frames."""
        return scope["path"] == "/" and headers.get("sec-fetch-mode") == ["navigate"]
