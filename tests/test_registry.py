"""Objects by name: a table, a path, a plug-in, or an error with suggestions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ponder import registry
from ponder.errors import UnknownName, UsageError
from ponder.reason.strategies import STRATEGIES, Samples

TABLE = {"countdown": 1, "addition": 2}


def test_lookup_prefers_the_table() -> None:
    assert registry.lookup("strategy", "samples", STRATEGIES) is Samples
    assert registry.lookup("task", "a:b", {"a:b": 7}) == 7


def test_lookup_imports_a_path() -> None:
    assert registry.lookup("task", "json:dumps", TABLE) is json.dumps
    assert registry.import_object("collections:OrderedDict.fromkeys").__name__ == "fromkeys"


def test_lookup_loads_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        def load(self) -> str:
            return "found"

    def entry_points(group: str, name: str) -> list[Any]:
        return [Plugin()] if (group, name) == ("ponder.task", "theirs") else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.lookup("task", "theirs", TABLE) == "found"


def test_unknown_name_suggests_similar_names() -> None:
    with pytest.raises(UnknownName) as caught:
        registry.lookup("task", "contdown", TABLE)
    message = str(caught.value)
    assert "no task named 'contdown'" in message and "Did you mean 'countdown'?" in message
    assert "addition, countdown" in message and "file.py:name" in message
    with pytest.raises(UnknownName) as caught:
        registry.lookup("task", "zzz", TABLE)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["nowhere:x", "json:nothing", "json:", ":x", "json", ".relative:x", "a b:c", "json:dumps."]
)
def test_invalid_import_paths(path: str) -> None:
    with pytest.raises(UsageError, match="cannot load"):
        registry.import_object(path)
