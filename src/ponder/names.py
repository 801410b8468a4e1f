"""Find a thing by name: a visible table first, then `module:object`, then an installed plug-in."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from ponder.errors import UnknownName, UsageError


def find(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    """The thing of that kind ("task", "strategy", ...); plug-ins live in the entry-point group `ponder.KIND`."""
    if name in table:
        return table[name]
    if ":" in name:
        return load(name)
    for plugin in entry_points(group=f"ponder.{kind}", name=name):
        return plugin.load()
    raise UnknownName(kind, name, table, "Or give 'module:object'.")


def load(path: str) -> Any:
    """The object at `module:object`."""
    module, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as why:
        raise UsageError(f"cannot load {path!r}: {why}") from None
    return found
