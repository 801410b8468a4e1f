"""What every request passes first: Host and Origin, the key, the body's size and coding, and room for one more."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from ponder.local_http import LOOPBACK_HOSTS, host_name, is_same_origin
from ponder.serve.chat_files import CHAT_PAGE_PATHS
from ponder.serve.errors import ApiError, forbidden, invalid, too_large, unauthorized, unavailable
from ponder.serve.http_replies import ErrorReply, Receive, Scope, Send
from ponder.serve.request_turns import RequestTurns
from ponder.serve.service import Service

# Paths that need no key. A page's files hold nothing that is not public; what they ask for needs the key.
OPEN_PATHS = ["/health", *CHAT_PAGE_PATHS]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """`hosts`: names under which the server may be addressed; empty: any, for a server that needs a key. A web page of
    another origin is refused unless it is in `origins`."""

    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    origins: tuple[str, ...] = ()


class Guard:
    """ASGI middleware around the application."""

    def __init__(self, app: Any, settings: GuardSettings, service: Service) -> None:
        self.app, self.settings, self.service = app, settings, service
        self.open_requests = self.body_bytes = 0
        self._keys = [key.encode() for key in settings.api_keys]
        self._turns = RequestTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            await ErrorReply(error)(scope, receive, send)
            return
        received = 0

        async def count_and_receive() -> Any:
            """All open requests together may hold so many bytes of bodies."""
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received, self.body_bytes = received + size, self.body_bytes + size
            if self.body_bytes > self.service.limits.max_total_body_bytes:
                raise unavailable("the server has no room for this body now")
            return message

        self.open_requests += 1
        try:
            if scope["method"] == "POST":
                await self._turns.wait()
            await self.app(scope, count_and_receive, send)
        finally:
            self.open_requests -= 1
            self.body_bytes -= received

    def _check(self, scope: Scope) -> None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        if self.open_requests >= self.service.limits.max_connections:
            raise unavailable("the server has no room for another connection")
        self._check_host(headers)
        self._check_origin(headers)
        is_open = scope["path"] in OPEN_PATHS
        key = self._find_key(headers)
        if self._keys and key is None and not is_open:
            raise unauthorized()
        scope["ponder.owner"] = "" if key is None else hashlib.blake2b(key, digest_size=16).hexdigest()
        self._check_body(headers)

    def _check_host(self, headers: dict[str, str]) -> None:
        """A page that makes its own name resolve to this machine (DNS rebinding) sends that name as the host."""
        if self.settings.hosts and host_name(headers.get("host", "")) not in self.settings.hosts:
            raise forbidden(
                f"this server is not addressed as {headers.get('host', '')[:100]!r}: use {self.settings.hosts[0]}, or"
                " allow the name with --allowed-host"
            )

    def _check_origin(self, headers: dict[str, str]) -> None:
        origin = headers.get("origin")
        if origin is None or origin in self.settings.origins:
            return
        if not is_same_origin(origin, headers.get("host", "")):
            raise forbidden(f"a page of {origin[:100]!r} may not use this server: allow it with --allowed-origin")

    def _find_key(self, headers: dict[str, str]) -> bytes | None:
        """The request's key, if it is one of the server's."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        given = key.strip().encode("latin-1", errors="replace")
        matches = [known for known in self._keys if hmac.compare_digest(given, known)]
        return matches[0] if matches else None

    def _check_body(self, headers: dict[str, str]) -> None:
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise ApiError(415, f"a body in the coding {coding[:50]!r} is not accepted: send it plain",
                           code="unsupported_encoding")  # fmt: skip
        length = headers.get("content-length")
        if length is not None:
            if not length.isascii() or not length.isdigit():
                raise invalid("content-length is not a number")
            if len(length) > 18 or int(length) > self.service.limits.max_body_bytes:
                raise too_large(self.service.limits.max_body_bytes)
