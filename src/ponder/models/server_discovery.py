"""Finding a model behind a server: the name "openai:URL#MODEL", the API key, and the models that a server lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from ponder.errors import MAX_NAME_CHARS, ModelError, UnknownName, UsageError
from ponder.models.http_client import HttpClient, RequestRefused
from ponder.models.model_paths import OPENAI_PREFIX


@dataclass(frozen=True)
class ServerName:
    """The parts of "openai:URL?tokenizer=FOLDER#MODEL" or "openai:URL?effort=high#MODEL"; all but the URL optional."""

    url: str
    model: str | None = None
    tokenizer: str | None = None
    effort: str | None = None

    @classmethod
    def parse(cls, name: str) -> ServerName:
        parts = urlsplit(name.removeprefix(OPENAI_PREFIX))
        query = parse_qs(parts.query, keep_blank_values=True)
        if set(query) - {"tokenizer", "effort"} or any(len(values) > 1 or not values[0] for values in query.values()):
            raise UsageError(
                f"{parts.query!r} is not understood; after a server's address comes ?tokenizer=FOLDER, ?effort=high or"
                " nothing"
            )
        url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        (effort,), (tokenizer,) = query.get("effort", [None]), query.get("tokenizer", [None])
        return cls(url, parts.fragment or None, tokenizer, effort)


def api_key_for(url: str, given_key: str | None) -> str | None:
    """The key to send. One from the environment is sent only over TLS or to this machine, never in the clear."""
    key = (given_key if given_key is not None else os.environ.get("OPENAI_API_KEY", "")).strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("the API key has characters that no key has; set OPENAI_API_KEY again")
    parts = urlsplit(url)
    safe = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
    return (key or None) if safe or given_key is not None else None


def choose_model(http: HttpClient, model: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The model's name, and the server's entry for it."""
    listed = list_models(http)
    if listed is None:
        if model is None:
            raise UsageError(f"{http.url} does not list its models: name one, as in openai:{http.url}#NAME")
        return model, {}
    generators = [m for m in listed if not m.get("head")]  # a ponder server also lists its scorers
    if model is None and not generators and listed:
        raise UsageError(
            f"{http.url} serves scorers only, and they write nothing: use one as --guide reward:{http.url}"
        )
    listed = generators if model is None else listed
    aliases = [(a, m) for m in listed if isinstance(m.get("aliases"), list) for a in m["aliases"] if isinstance(a, str)]
    names = {m["id"]: m for m in listed} | dict(aliases)
    if model is None and len(listed) == 1:
        return listed[0]["id"], listed[0]
    if model is None:
        some = ", ".join(name[:MAX_NAME_CHARS] for name in sorted(names)[:20]) + ("" if len(names) <= 20 else ", …")
        raise UsageError(f"{http.url} serves {len(listed)} models; name one, as in openai:{http.url}#NAME: {some}")
    if model not in names:
        raise UnknownName(f"model at {http.url}", model, names)
    return model, names[model]


def choose_scorer(http: HttpClient, model: str | None) -> str:
    """The name of a reward, process or value model of a ponder server."""
    scorers = {m["id"]: m for m in list_models(http) or () if m.get("head")}
    if not scorers:
        raise UsageError(f"{http.url} serves no reward, process or value model: start one with `ponder serve FOLDER`")
    if model is None and len(scorers) > 1:
        names = ", ".join(name[:MAX_NAME_CHARS] for name in sorted(scorers)[:20])
        raise UsageError(f"{http.url} serves {len(scorers)} scorers; name one, as in reward:{http.url}#NAME: {names}")
    if model is not None and model not in scorers:
        raise UnknownName(f"scorer at {http.url}", model, scorers)
    return model if model is not None else next(iter(scorers))


def list_models(http: HttpClient) -> list[dict[str, Any]] | None:
    """The entries of `/v1/models`; None where a server has no such list."""
    try:
        reply = http.request_blocking("GET", http.url + "/models")
    except RequestRefused as reason:
        if reason.status != 404:
            raise
        return None
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list) or not all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in listed):
        raise ModelError(f"{http.url}/models lists no models: is it the address of an OpenAI-compatible server?")
    return listed


def with_api_path(url: str) -> str:
    """A server's address with /v1 where it has no path."""
    return url.rstrip("/") if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1"


def is_server_address(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def positive_int(value: Any) -> int | None:
    """A positive number that a server reports of its model; None for anything else."""
    return value if type(value) is int and 0 < value < 1 << 31 else None
