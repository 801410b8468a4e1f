"""JSON schemas of request bodies, from the parsers that read them.

`SchemaRecorder` stands in for `Fields`: a parser reads its fields from it, and each reader writes down what it accepts.
So the published schema has the names, types and bounds that the server checks, because they are the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ponder.serve.json_body import Fields

T = TypeVar("T", bound=str)

Schema = dict[str, Any]

_EXAMPLE_TEXT = "x"  # what a required field holds while the schema is recorded


class SchemaRecorder(Fields):
    """`Fields` of a body that is not there: every reader returns its default, and records its schema."""

    def __init__(self, path: str = "", required: Iterable[str] = ()) -> None:
        super().__init__({}, path)
        self.properties: dict[str, Schema] = {}
        self.required: set[str] = set(required)
        self.children: dict[str, SchemaRecorder] = {}

    def schema(self) -> Schema:
        """The schema of the object. Fields that no reader knows are refused, and bookkeeping is not described."""
        properties = dict(self.properties)
        for name, child in self.children.items():
            inner = child.schema()
            listed = properties.get(name, {}).get("type") == ["array", "null"]
            properties[name] = {**properties[name], "items": inner} if listed else _nullable(inner)
        out: Schema = {"type": "object", "properties": properties}
        return {**out, "required": sorted(self.required)} if self.required else out

    def _record(self, field: str, schema: Schema) -> None:
        known = self.properties.get(field)
        self.properties[field] = schema if not known else known | schema

    def raw(self, field: str) -> Any:
        self._read.add(field)
        self._record(field, {})
        return None

    def text(self, field: str, default: str | None = None, max_chars: int = 0) -> str | None:
        self._record(field, {"type": ["string", "null"]})
        return default

    def required_text(self, field: str, max_chars: int = 0) -> str:
        self._record(field, {"type": "string"})
        self.required.add(field)
        return _EXAMPLE_TEXT

    def integer(self, field: str, default: int | None, low: int, high: int) -> int | None:
        self._record(field, {"type": ["integer", "null"], "minimum": low, "maximum": high})
        return default

    def number(self, field: str, default: float | None, low: float, high: float) -> float | None:
        self._record(field, {"type": ["number", "null"], "minimum": low, "maximum": high})
        return default

    def flag(self, field: str, default: bool = False) -> bool:
        self._record(field, {"type": ["boolean", "null"]})
        return default

    def choice(self, field: str, choices: Sequence[T], default: T | None = None) -> T | None:
        self._record(field, {"type": ["string", "null"], "enum": [*choices, None]})
        return default

    def object(self, field: str) -> Fields | None:
        self._record(field, {"type": ["object", "null"]})
        return self.children.setdefault(field, SchemaRecorder(self.name(field)))

    def array(self, field: str, max_items: int) -> list[Any] | None:
        self._record(field, {"type": ["array", "null"], "maxItems": max_items})
        return None

    def objects(self, field: str, max_items: int) -> list[Fields] | None:
        self._record(field, {"type": ["array", "null"], "maxItems": max_items})
        return [self.children.setdefault(field, SchemaRecorder(f"{self.name(field)}[0]"))]

    def strings(self, field: str, max_items: int, max_chars: int) -> tuple[str, ...]:
        one = {"type": "string", "maxLength": max_chars}
        self._record(field, {"anyOf": [one, {"type": "array", "items": one, "maxItems": max_items}, {"type": "null"}]})
        return ()

    def token_ids(self, field: str, max_items: int = 0) -> tuple[int, ...] | None:
        ids = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
        self._record(field, {"type": ["array", "null"], "items": ids})
        return None

    def refuse_unread(self, ignored: Iterable[str] = ()) -> None:
        pass


def _nullable(schema: Schema) -> Schema:
    return {**schema, "type": ["object", "null"]}


def merge_schema(schema: Schema, changes: Mapping[str, Any]) -> Schema:
    """A schema with other properties in place of some: where a field has several forms, a parser reads only one of an
    empty body."""
    return {**schema, "properties": {**schema["properties"], **changes}}
