"""JSON schemas of request bodies, from the parsers that read them.

`RecordingFields` stands in for `Fields`: it returns the values of an example body, and writes down what each reader
accepts. So a published schema has the names, types and bounds that the server checks, because they are the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ponder.serve.errors import ApiError
from ponder.serve.json_body import MAX_BODY_BYTES, MAX_VALUES, Fields

T = TypeVar("T", bound=str)

Schema = dict[str, Any]
_NULL: Schema = {"type": "null"}


class ObjectSchema:
    """The schema of an object, as far as it was read."""

    def __init__(self) -> None:
        self.fields: dict[str, list[Schema]] = {}  # forms that a field may have
        self.objects: dict[str, ObjectSchema] = {}
        self.lists: dict[str, ObjectSchema] = {}  # of objects

    def add(self, field: str, schema: Schema | None = None) -> None:
        forms = self.fields.setdefault(field, [])
        if schema is not None and schema not in forms:
            forms.append(schema)

    def schema(self, required: Sequence[str] = ()) -> Schema:
        properties: dict[str, Schema] = {}
        for name, forms in self.fields.items():
            known = [*forms]
            if name in self.objects:
                known.append(self.objects[name].schema())
            if name in self.lists:
                known.append({"type": "array", "items": self.lists[name].schema()})
            if name not in required and known:
                known.append(_NULL)
            properties[name] = {} if not known else known[0] if len(known) == 1 else {"anyOf": known}
        out: Schema = {"type": "object", "properties": properties}
        return {**out, "required": list(required)} if required else out


class RecordingFields(Fields):
    """`Fields` that add what they are asked for to a schema."""

    def __init__(self, body: Mapping[str, Any], seen: ObjectSchema, path: str = "") -> None:
        super().__init__(body, path)
        self.seen = seen

    def raw(self, field: str) -> Any:
        self.seen.add(field)
        return super().raw(field)

    def text(self, field: str, default: str | None = None, max_chars: int = MAX_BODY_BYTES) -> str | None:
        self.seen.add(field, {"type": "string"})
        return super().text(field, default, max_chars)

    def integer(self, field: str, default: int | None, low: int, high: int) -> int | None:
        self.seen.add(field, {"type": "integer", "minimum": low, "maximum": high})
        return super().integer(field, default, low, high)

    def number(self, field: str, default: float | None, low: float, high: float) -> float | None:
        self.seen.add(field, {"type": "number", "minimum": low, "maximum": high})
        return super().number(field, default, low, high)

    def flag(self, field: str, default: bool = False) -> bool:
        self.seen.add(field, {"type": "boolean"})
        return super().flag(field, default)

    def choice(self, field: str, choices: Sequence[T], default: T | None = None) -> T | None:
        self.seen.add(field, {"type": "string", "enum": list(choices)})
        return super().choice(field, choices, default)

    def object(self, field: str) -> Fields | None:
        self.seen.add(field)
        inner = super().object(field)
        if inner is None:
            self.seen.objects.setdefault(field, ObjectSchema())
            return None
        return RecordingFields(inner.body, self.seen.objects.setdefault(field, ObjectSchema()), inner.path)

    def array(self, field: str, max_items: int) -> list[Any] | None:
        value = super().array(field, max_items)
        if field not in self.seen.lists:
            self.seen.add(field, {"type": "array", "maxItems": max_items})
        return value

    def objects(self, field: str, max_items: int) -> list[Fields] | None:
        self.seen.add(field)
        seen = self.seen.lists.setdefault(field, ObjectSchema())
        entries = super().objects(field, max_items)
        return None if entries is None else [RecordingFields(each.body, seen, each.path) for each in entries]

    def strings(self, field: str, max_items: int, max_chars: int) -> tuple[str, ...]:
        one = {"type": "string", "maxLength": max_chars}
        self.seen.add(field, one)
        self.seen.add(field, {"type": "array", "items": one, "maxItems": max_items})
        return super().strings(field, max_items, max_chars)

    def token_ids(self, field: str, max_items: int = MAX_VALUES) -> tuple[int, ...] | None:
        token = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
        self.seen.add(field, {"type": "array", "items": token})
        return super().token_ids(field, max_items)

    def ignore(self, *fields: str) -> None:
        for field in fields:
            self.seen.add(field)
        super().ignore(*fields)


def record_schema(read: Callable[[Fields], object], examples: Sequence[Mapping[str, Any]]) -> Schema:
    """The schema of the bodies that a parser reads. The examples are read; a field of the first without which it cannot
    be read is required."""
    seen = ObjectSchema()
    for example in examples:
        read(RecordingFields(example, seen))
    first = examples[0]
    required = [name for name in first if not _reads(read, {k: v for k, v in first.items() if k != name})]
    return seen.schema(required)


def _reads(read: Callable[[Fields], object], body: Mapping[str, Any]) -> bool:
    try:
        read(Fields(body))
    except ApiError:
        return False
    return True
