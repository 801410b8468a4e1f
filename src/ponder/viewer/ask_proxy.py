"""The page Ask: a question goes on to one `ponder serve`, whose stream comes back as it is. The browser chooses a
question, an effort and a strategy; it never chooses where they go, nor any other field of the request."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ponder.errors import UsageError
from ponder.local_http import LOOPBACK_HOSTS
from ponder.strict_parsing import parse_json

API_KEY_VARIABLE = "PONDER_API_KEY"
MAX_BODY_BYTES = 1 << 20
MAX_REPLY_BYTES = 1 << 20  # of a reply that is no stream
MAX_NAME_CHARS = 200
MAX_SETTINGS = 50
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 600.0
_CHUNK_BYTES = 1 << 16
_UNREADABLE = (LookupError, TypeError, ValueError, RecursionError, OSError, http.client.HTTPException)


class AskError(UsageError):
    """A question that cannot be passed on, with its HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class AskServer:
    """The one server that questions go to."""

    scheme: str
    host: str
    port: int
    path: str
    api_key: str = ""

    @classmethod
    def parse(cls, url: str) -> AskServer:
        """From the address of `--serve`, with or without /v1. A key is never sent in the clear to another machine."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as reason:
            raise UsageError(f"--serve {url[:200]!r} is no address: {reason}") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise UsageError(f"--serve is {url[:200]!r}; it is an address such as http://127.0.0.1:8000")
        if parts.username or parts.password:
            raise UsageError(f"a key does not belong into --serve: set {API_KEY_VARIABLE}")
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        if key and parts.scheme == "http" and host not in LOOPBACK_HOSTS:
            raise UsageError(f"{API_KEY_VARIABLE} would be sent in the clear to {host}: use https, or unset it")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path, key)

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=_CONNECT_SECONDS)

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> http.client.HTTPResponse:
        """The reply, once its headers are there. Redirections are not followed."""
        headers = {"Accept": "application/json, text/event-stream"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            connection.connect()
            connection.sock.settimeout(_SILENT_SECONDS)
            connection.request(method, self.path + path, data, headers)
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as reason:
            connection.close()
            raise AskError(502, f"no server answers at {self.host}:{self.port} ({reason})") from None
        if reply.status != 200:
            sentence = _error_sentence(reply)
            connection.close()
            raise AskError(reply.status if 400 <= reply.status < 500 else 502, sentence)
        return reply

    def models(self) -> list[dict[str, Any]]:
        """The models that answer: name, whether it thinks, and the names of its guides."""
        connection = self.connect()
        reply = self.send(connection, "GET", "/v1/models")
        try:
            data = parse_json(reply.read(MAX_REPLY_BYTES).decode("utf-8", "replace"))
            entries = [entry for entry in data["data"] if not entry.get("scores")]
            return [
                {
                    "id": str(entry["id"]), "thinks": bool(entry.get("thinks")),
                    "guides": [str(name) for name in entry.get("guides", ())],
                }
                for entry in entries
            ]  # fmt: skip
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            OSError,
            http.client.HTTPException,
        ) as reason:
            raise AskError(502, f"the server's list of models cannot be read ({reason})") from None
        finally:
            connection.close()

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The server-sent events of an answer, after the server has accepted the request. Closing ends it there too."""
        connection = self.connect()
        reply = await asyncio.to_thread(self.send, connection, "POST", "/v1/chat/completions", body)
        return _pieces(connection, reply.read1)


async def _pieces(connection: http.client.HTTPConnection, read: Callable[[int], bytes]) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(read, _CHUNK_BYTES):
            yield piece
    except (OSError, ValueError, http.client.HTTPException):
        yield b'data: {"error":{"message":"the server broke off"}}\n\n'
    finally:
        connection.close()


def _error_sentence(reply: http.client.HTTPResponse) -> str:
    """What the server says of its refusal, in its own words where it has any."""
    try:
        data = parse_json(reply.read(MAX_REPLY_BYTES).decode("utf-8", "replace"))
        return f"the server says: {str(data['error']['message'])[:2000]}"
    except _UNREADABLE:
        return f"the server answers {reply.status}"


def read_question(body: bytes) -> dict[str, Any]:
    """The request for the server, from the page's JSON."""
    try:
        data = parse_json(body.decode())
    except (ValueError, RecursionError) as reason:
        raise AskError(400, f"the body is no JSON: {reason}") from None
    if not isinstance(data, dict):
        raise AskError(400, "the body must be a JSON object")
    if unknown := set(data) - {"question", "model", "effort", "strategy", "settings", "max_tokens"}:
        raise AskError(400, f"there is no field {min(unknown)[:100]!r}")
    question = data.get("question")
    if not isinstance(question, str) or not question.strip():
        raise AskError(400, "question must be a text")
    out: dict[str, Any] = {
        "model": _name(data, "model"), "messages": [{"role": "user", "content": question}], "stream": True,
        "stream_options": {"include_usage": True, "include_steps": True},
    }  # fmt: skip
    if effort := _name(data, "effort"):
        if effort not in EFFORTS:
            raise AskError(400, f"effort is one of {', '.join(EFFORTS)}")
        out["reasoning_effort"] = effort
    if strategy := _name(data, "strategy"):
        out["strategy"] = {**_settings(data), "name": strategy}
    if (bound := data.get("max_tokens")) is not None:
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
            raise AskError(400, "max_tokens must be a whole number of at least 1")
        out["max_completion_tokens"] = bound
    return out


def _name(data: Mapping[str, Any], field: str) -> str:
    value = data.get(field) or ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise AskError(400, f"{field} must be a name")
    return value


def _settings(data: Mapping[str, Any]) -> dict[str, Any]:
    settings = data.get("settings") or {}
    plain = isinstance(settings, dict) and len(settings) <= MAX_SETTINGS
    if not plain or not all(isinstance(value, str | int | float | bool) for value in settings.values()):
        raise AskError(400, "settings must be an object of numbers and texts")
    return dict(settings)
