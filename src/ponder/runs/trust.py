"""Whose code a run directory may name.

A `job.json` names types (`"is": "module:Class"`), and some of ponder's own types hold functions by name (rewards,
guides, exact solvers). To decode such a job is to import those modules, and to run it is to call those functions. A
run directory may come from a stranger, so only ponder's own types are trusted. Everything else must be the user's own
word: it stands in the job that he gave himself (`trusting`), or he said `--trust`.

A field that names code says so in its metadata, `field(metadata=names_code())`. All of an encoded job is looked through
before anything is imported that is not ponder's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from ponder import registry
from ponder.errors import RunError, UntrustedCode

Trust = bool | Collection[str]  # True: everything; else these names, beside what is ponder's own

TYPE_KEY = "is"  # the key under which a dataclass's own type stands in an encoded job
FLOAT_TYPE = "float"  # its value for a number that JSON has no word for
_CODE_METADATA = "names code"
_SERVER_PATTERN = re.compile(r"(?:^|:)openai:(?P<url>.*)", re.DOTALL)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_trusted: ContextVar[bool | frozenset[str]] = ContextVar("trusted", default=frozenset())


def names_code(parse_name: Callable[[str], str] = str) -> dict[str, Any]:
    """Metadata of a field whose texts name code. `reads`: the name in such a text, or nothing where there is none."""
    return {_CODE_METADATA: parse_name}


@contextmanager
def trust_within(more: Trust) -> Iterator[None]:
    """Within, jobs may name these too."""
    token = _trusted.set(_trusted_and(more))
    try:
        yield
    finally:
        _trusted.reset(token)


def trust(more: Trust) -> None:
    """The same for all that follows in this context: what `--trust` says."""
    _trusted.set(_trusted_and(more))


def allowed_names(more: Trust = ()) -> registry.AllowedNames:
    """What `names.limited` lets through: what is trusted here, and these."""
    both = _trusted_and(more)
    return None if isinstance(both, bool) else both


def check_trusted(data: Any, more: Trust = ()) -> registry.AllowedNames:
    """Raise where an encoded job names code that is neither ponder's own nor trusted; return what is allowed."""
    let = allowed_names(more)
    if let is not None and (strange := [name for name in external_code(data) if name not in let]):
        raise UntrustedCode(strange)
    return let


def external_code(data: Any) -> list[str]:
    """All that an encoded job names and that is not ponder's own: types, functions, and servers elsewhere."""
    found = dict.fromkeys(_external_types(data))  # first of all, as this imports nothing
    return list(found | dict.fromkeys(_external_names(data)))


def _trusted_and(more: Trust) -> bool | frozenset[str]:
    now = _trusted.get()
    if now is True or more is True:
        return True
    return (now or frozenset()) | (frozenset(more) if not isinstance(more, bool) else frozenset())


def _external_types(data: Any) -> Iterator[str]:
    for one in _objects(data):
        kind = one[TYPE_KEY]
        if not isinstance(kind, str):
            raise RunError(f"job.json is damaged: {kind!r:.60} is no type")
        if kind != FLOAT_TYPE and not registry.is_ponder_module(kind.partition(":")[0]):
            yield kind


def _external_names(data: Any) -> Iterator[str]:
    """Texts that name code, in the fields of ponder's types that do; and servers wherever they stand."""
    for one in _objects(data):
        kind = registry.ponder_object(one[TYPE_KEY]) if one[TYPE_KEY] != FLOAT_TYPE else None
        for field in fields(kind) if isinstance(kind, type) else ():
            if (read := field.metadata.get(_CODE_METADATA)) is not None:
                for text in _strings(one.get(field.name)):
                    if (name := read(text)) and registry.ponder_object(name) is None:
                        yield name
    yield from (text for text in _strings(data) if _is_remote_server(text))


def server_names(data: Any) -> list[str]:
    """The models of an encoded job that a server runs, as `openai:URL`."""
    matches = filter(None, map(_SERVER_PATTERN.search, _strings(data)))
    return list(dict.fromkeys(f"openai:{match['url']}" for match in matches))


def walk(data: Any) -> Iterator[Any]:
    """Every value and every key of an encoded job, however deep, in the order in which they are written."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, Mapping):
            waiting += reversed([part for item in value.items() for part in item])
        elif isinstance(value, list | tuple):
            waiting += reversed(value)


def _objects(data: Any) -> Iterator[Mapping[str, Any]]:
    return (value for value in walk(data) if isinstance(value, Mapping) and TYPE_KEY in value)


def _strings(data: Any) -> Iterator[str]:
    return (value for value in walk(data) if isinstance(value, str))


def _is_remote_server(text: str) -> bool:
    """Whether a model's name is a server on another machine, which is told prompts and a key."""
    found = _SERVER_PATTERN.search(text)
    if found is None:
        return False
    try:
        return urlsplit(found["url"]).hostname not in _LOCAL_HOSTS
    except ValueError:
        return True
