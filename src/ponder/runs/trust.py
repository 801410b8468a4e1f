"""Whose code a run directory may name.

A `job.json` names types (`"is": "module:Class"`), and some of ponder's own types hold functions by name (rewards,
guides, exact solvers). Decoding such a job imports those modules, and running it calls those functions. A run directory
may come from a stranger, so only ponder's own types are trusted. The user vouches for everything else: the job that the
user wrote names it (`trust_within`), or the user gave `--trust`.

A field that names code says so in its metadata, `field(metadata=names_code())`. All of an encoded job is checked before
anything outside ponder is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from ponder import registry
from ponder.errors import RunError, UntrustedCode
from ponder.runs.encoded_walk import strings, walk
from ponder.runs.unsaved_code import UNSAVED_TYPE, unsaved_code_error

Trust = bool | Collection[str]  # True: everything; else these names, besides ponder's own

TYPE_KEY = "is"  # the key of a dataclass's type in an encoded job
FLOAT_TYPE = "float"  # its value for NaN and infinity, which JSON does not have
_CODE_METADATA = "names code"
# A model (openai:URL), also as a judge, or a scorer (reward:URL) behind a server.
_SERVER_PATTERN = re.compile(
    r"(?:(?:^|:)(?P<model>openai:)|(?:^|\+)(?P<scorer>reward(?:\+\w+)?:)(?=https?://))(?P<url>.*)", re.DOTALL
)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_trusted: ContextVar[bool | frozenset[str]] = ContextVar("trusted", default=frozenset())


def names_code(parse_name: Callable[[str], str] = str) -> dict[str, Any]:
    """Metadata of a field whose texts name code. `parse_name`: the name in such a text, or an empty text."""
    return {_CODE_METADATA: parse_name}


@contextmanager
def trust_within(more: Trust) -> Iterator[None]:
    """Inside this context, jobs may name these too."""
    token = _trusted.set(_trusted_and(more))
    try:
        yield
    finally:
        _trusted.reset(token)


def trust(more: Trust) -> None:
    """Trust these from now on in this context: what `--trust` does."""
    _trusted.set(_trusted_and(more))


def allowed_names(more: Trust = ()) -> registry.AllowedNames:
    """What `registry.only_allowed` lets through: what is trusted here, and these."""
    both = _trusted_and(more)
    return None if isinstance(both, bool) else both


def check_trusted(data: Any, more: Trust = ()) -> registry.AllowedNames:
    """Raise if an encoded job names code that is neither ponder's own nor trusted; return what is allowed."""
    allowed, external = allowed_names(more), external_code(data)
    if missing := [name for name in external if _is_of_another_program(name)]:
        raise unsaved_code_error(missing)
    if allowed is not None and (untrusted := [name for name in external if name not in allowed]):
        raise UntrustedCode(untrusted)
    return allowed


def external_code(data: Any) -> list[str]:
    """Everything outside ponder that an encoded job names: types, functions, and servers on other machines."""
    types = dict.fromkeys(_external_types(data))  # first, since this imports nothing
    return list(types | dict.fromkeys(_external_names(data)))


def _trusted_and(more: Trust) -> bool | frozenset[str]:
    now = _trusted.get()
    if now is True or more is True:
        return True
    return (now or frozenset()) | (frozenset(more) if not isinstance(more, bool) else frozenset())


def _external_types(data: Any) -> Iterator[str]:
    for value in _objects(data):
        kind = value[TYPE_KEY]
        if not isinstance(kind, str):
            raise RunError(f"job.json is damaged: {kind!r:.60} is no type")
        if kind not in (FLOAT_TYPE, UNSAVED_TYPE) and not registry.is_ponder_module(kind.partition(":")[0]):
            yield kind


def _external_names(data: Any) -> Iterator[str]:
    """The code named in those fields of ponder's types that name code, and servers in any field."""
    for value in _objects(data):
        named = value[TYPE_KEY] not in (FLOAT_TYPE, UNSAVED_TYPE)
        kind = registry.ponder_object(value[TYPE_KEY]) if named else None
        for field in fields(kind) if isinstance(kind, type) else ():
            if (read := field.metadata.get(_CODE_METADATA)) is not None:
                for text in strings(value.get(field.name)):
                    if (name := read(text)) and registry.ponder_object(name) is None:
                        yield name
    yield from (text for text in strings(data) if _is_remote_server(text))


def server_names(data: Any) -> list[str]:
    """The models of an encoded job that a server runs, as `openai:URL` or `reward:URL`."""
    matches = filter(None, map(_SERVER_PATTERN.search, strings(data)))
    return list(dict.fromkeys(f"{match['model'] or match['scorer']}{match['url']}" for match in matches))


def _objects(data: Any) -> Iterator[Mapping[str, Any]]:
    return (value for _, value in walk(data) if isinstance(value, Mapping) and TYPE_KEY in value)


def _is_of_another_program(name: str) -> bool:
    """Whether a name is of the program that wrote the job, and that is not the one that runs now."""
    module, _, attribute = name.partition(":")
    main = sys.modules.get("__main__")
    return module == "__main__" and not hasattr(main, attribute.partition(".")[0])


def _is_remote_server(text: str) -> bool:
    """Whether a model's name is a server on another machine, which would receive prompts and a key."""
    match = _SERVER_PATTERN.search(text)
    if match is None:
        return False
    try:
        return urlsplit(match["url"]).hostname not in _LOCAL_HOSTS
    except ValueError:
        return True
