"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. Nothing else leaves the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ponder.errors import PonderError

_RETRY = {"retry-after": "1"}  # seconds


class ApiError(Exception):
    """A reply that is an error. `param` names the field at fault; `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        return json.dumps(self.to_json(), ensure_ascii=False).encode(errors="replace")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: a field that cannot work."""
    return ApiError(400, message, param=param, code=code)


def unknown_field(name: str) -> ApiError:
    return invalid(f"unknown field {name!r}: it would change the answer, and this server does not know it; remove it",
                   name, "unknown_parameter")  # fmt: skip


def unauthorized() -> ApiError:
    return ApiError(
        401, "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
        type="authentication_error", code="invalid_api_key", headers={"www-authenticate": "Bearer"},
    )  # fmt: skip


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code="forbidden")


def not_found(message: str, code: str = "not_found", param: str | None = None) -> ApiError:
    return ApiError(404, message, code=code, param=param)


def method_not_allowed(method: str, allowed: str) -> ApiError:
    return ApiError(
        405, f"{method:.20} is not allowed here: use {allowed}", code="method_not_allowed", headers={"allow": allowed}
    )


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit:,} bytes", code="request_too_large")


def overloaded(message: str) -> ApiError:
    """429: as many requests run as the server allows."""
    return ApiError(
        429,
        message,
        type="rate_limit_error",
        code="too_many_requests",
        headers=_RETRY,
    )


def unavailable(message: str) -> ApiError:
    """503: the server is stopping, or has no room for another connection."""
    return ApiError(503, message, type="server_error", code="unavailable", headers=_RETRY)


def cancelled() -> ApiError:
    """The client cancelled the request over the control API. A retry would run it again, so none is wanted."""
    return ApiError(
        409, "the request was cancelled", type="cancelled", code="request_cancelled",
        headers={"x-should-retry": "false"},
    )  # fmt: skip


def from_exception(error: BaseException) -> ApiError:
    """What a client may know of an error: ponder's own sentences, and of anything else that it happened."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PonderError):
        return invalid(str(error))
    return ApiError(500, "the server failed at this request", type="server_error", code="internal_error")
