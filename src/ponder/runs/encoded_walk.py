"""The one walk over an encoded job, with which names, paths and models in it are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def walk(data: Any) -> Iterator[tuple[str, Any]]:
    """Every value of an encoded job, however deep, in the order in which they are written, with the path of its field.

    The items of a list have the path of the list.
    """
    stack = [("", data)]
    while stack:
        path, value = stack.pop()
        yield path, value
        if isinstance(value, str | int | float | None):
            continue  # most values; to ask whether one is a mapping takes longer
        if isinstance(value, Mapping):
            stack += reversed([(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()])
        elif isinstance(value, list | tuple):
            stack += [(path, inner) for inner in reversed(value)]


def strings(data: Any) -> Iterator[str]:
    """Every text of an encoded job, keys too."""
    for _, value in walk(data):
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from (key for key in value if isinstance(key, str))
