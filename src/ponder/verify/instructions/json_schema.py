"""Verify that an answer is JSON that follows a schema, with the `jsonschema` package under a budget.

The document comes from a model, so three things differ from the package: patterns run in linear time, `uniqueItems`
compares no pair twice, and every keyword evaluation is counted, so that a schema that refers to itself cannot be made
to try 2^64 branches. A reference cannot leave the schema: nothing is fetched.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ponder.errors import MissingExtra
from ponder.types import Score
from ponder.verify.answers.structured import InvalidJson, extract_all_text, extract_structured, parse_strict_json
from ponder.verify.base import BadProblemData, TextVerifier, bad_data, repr_for_reason
from ponder.verify.instructions.regex import regex_matches

MAX_SCHEMA_CHECKS = 40_000  # keyword evaluations for one document: about a second at most


@dataclass(frozen=True)
class JsonSchema(TextVerifier):
    """1 where the answer is one JSON document that the problem's answer, a JSON schema (a mapping), allows.

    `in_answer_tag`: the document is the content of one `<answer>` or box. Otherwise it is the whole text after the
    thinking, with or without a code fence around it.
    """

    in_answer_tag: bool = True

    @property
    def name(self) -> str:
        return "schema"

    def verify(self, text: str, gold: Any) -> Score:
        _validator(_frozen(gold))
        extracted = extract_structured(text) if self.in_answer_tag else extract_all_text(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        fault = json_fault(extracted.answer, gold)
        return Score(0.0, fault) if fault else Score(1.0, "follows the schema")


def json_fault(text: str, schema: Mapping[str, Any]) -> str:
    """Why this text is not JSON that follows the schema; empty where it is."""
    validator = _validator(_frozen(schema))
    try:
        document = parse_strict_json(text)
    except InvalidJson as why:
        return f"malformed: {why}"
    _CHECKS_LEFT.set([MAX_SCHEMA_CHECKS])
    try:
        error = next(validator.iter_errors(document), None)
    except BadProblemData:
        raise
    except _CheckBudgetExhausted:
        bad_data(f"the schema needs more than {MAX_SCHEMA_CHECKS} checks for a document of {len(text)} characters")
    except Exception as why:  # the package's own errors: a reference to nowhere, a keyword of the wrong type
        bad_data(f"the schema cannot be applied: {type(why).__name__}: {repr_for_reason(str(why))}")
    if error is None:
        return ""
    path = "/".join(map(str, error.absolute_path)) or "the whole"
    return f"{repr_for_reason(path)} breaks {error.validator!r}"


class _CheckBudgetExhausted(Exception):
    pass


_CHECKS_LEFT: ContextVar[list[int]] = ContextVar("checks left for this document")


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        left = _CHECKS_LEFT.get()
        left[0] -= 1
        if left[0] < 0:
            raise _CheckBudgetExhausted
        return check(*arguments)

    return counting


def _frozen(schema: object) -> str:
    """The schema as text, which is the cache key of its validator."""
    if not isinstance(schema, Mapping):
        bad_data(f"{repr_for_reason(schema)} is not a JSON schema (a mapping)")
    try:
        return json.dumps(schema, sort_keys=True, default=dict)
    except (TypeError, ValueError, RecursionError):
        bad_data(f"{repr_for_reason(schema)} is not a JSON schema: it is not JSON itself")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    try:
        jsonschema = importlib.import_module("jsonschema")
        registry = importlib.import_module("referencing").Registry()
    except ImportError:
        raise MissingExtra("a JSON schema", "jsonschema", "constraints") from None
    if '"unevaluatedProperties"' in schema and '"patternProperties"' in schema:
        bad_data("unevaluatedProperties beside patternProperties is not supported; use additionalProperties")
    document = json.loads(schema)
    kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(document)
    except jsonschema.SchemaError as error:
        bad_data(f"the schema is not valid: {repr_for_reason(error.message)}")
    checks = {name: _counted(check) for name, check in {**kind.VALIDATORS, **_OWN}.items()}
    return jsonschema.validators.extend(kind, checks)(document, registry=registry)


def _error(message: str) -> Any:
    return importlib.import_module("jsonschema").ValidationError(message)


def _pattern(validator: Any, pattern: str, instance: object, schema: object) -> Iterator[Any]:
    if isinstance(instance, str) and not regex_matches(pattern, instance):
        yield _error("does not match")


def _pattern_properties(validator: Any, patterns: Any, instance: object, schema: object) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                if regex_matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: object, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for key, value in instance.items():
        declared = key in schema.get("properties", {})
        if not declared and not any(regex_matches(pattern, key) for pattern in schema.get("patternProperties", {})):
            if allowed is False:
                yield _error("has a property too many")
            else:
                yield from validator.descend(value, allowed, path=key)


def _unique(validator: Any, required: bool, instance: object, schema: object) -> Iterator[Any]:
    if required and isinstance(instance, list) and len({_key(item) for item in instance}) < len(instance):
        yield _error("has an item twice")


def _key(value: object) -> Any:
    """Equal exactly where two JSON values are: 1 and 1.0 are one number, 1 and true are two values."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(_key(item) for item in value)
    return "boolean" if isinstance(value, bool) else "plain", value


_OWN: dict[str, Callable[..., Any]] = {
    "pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
    "uniqueItems": _unique,
}  # fmt: skip
