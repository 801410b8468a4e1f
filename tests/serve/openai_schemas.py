"""OpenAI's published schemas, to hold our replies against."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest


@functools.cache
def _registry():
    pytest.importorskip("jsonschema")
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    path = Path(os.environ.get("PONDER_DATA", "")) / "openai" / "openapi.json"
    if not os.environ.get("PONDER_DATA") or not path.is_file():
        pytest.skip("PONDER_DATA has no openai/openapi.json")
    document = _with_nulls(json.loads(path.read_text()))
    return Registry().with_resource("openai", Resource(document, DRAFT202012))


def _with_nulls(schema):
    """Some schemas say `nullable`, a word of OpenAPI 3.0 that JSON schemas do not have."""
    if isinstance(schema, list):
        return [_with_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_nulls(value) for key, value in schema.items()}
    return {"anyOf": [inner, {"type": "null"}]} if schema.get("nullable") is True else inner


@functools.cache
def _validator(name):
    import jsonschema

    schema = {"$ref": f"openai#/components/schemas/{name}"}
    return jsonschema.Draft202012Validator(schema, registry=_registry())


def check_schema(name, value):
    """Fail where a value is not what the schema of this name says."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda e: list(map(str, e.path)))
    assert not errors, "\n".join(f"{list(e.path)}: {e.message[:500]}" for e in errors[:5])
