"""Functions as tools: the schema from hints and docstring, and the check of arguments. The references are OpenAI's form
and, where it is installed, what transformers makes of the same functions."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Literal, Optional

import pytest

from ponder.errors import UsageError
from ponder.reason.tools.function_schema import BadArguments, function_signature, parse_docstring


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


def search(query: str, limit: int = 5, exact: bool = False) -> str:
    """Search the archive.

    It finds whole words.

    Args:
        query: the words to look for,
            in any order
        limit (int): how many results at most

    Returns:
        lines of text
    """
    return f"{query} {limit} {exact}"


def test_function_signature_is_openai_schema() -> None:
    assert function_signature(search).schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the archive.\n\nIt finds whole words.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "the words to look for, in any order"},
                    "limit": {"type": "integer", "description": "how many results at most", "default": 5},
                    "exact": {"type": "boolean", "default": False},
                },
                "required": ["query"],
            },
        },
    }


def test_function_signature_describes_nested_types() -> None:
    def convert(
        values: list[float],
        table: dict[str, list[int]],
        unit: Unit,
        mode: Literal["fast", "exact"],
        note: Optional[str] = None,  # noqa: UP045
        size: int | str = 1,
        either: list[int] | None = None,
        named: Annotated[str, "a name"] = "x",
        anything: Any = None,
    ) -> None:
        """Convert."""

    kinds = function_signature(convert).schema["function"]["parameters"]["properties"]
    assert kinds == {
        "values": {"type": "array", "items": {"type": "number"}},
        "table": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        "unit": {"type": "string", "enum": ["m", "ft"]},
        "mode": {"type": "string", "enum": ["fast", "exact"]},
        "note": {"type": ["string", "null"]},
        "size": {"type": ["integer", "string"], "default": 1},
        "either": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "named": {"type": "string", "description": "a name", "default": "x"},
        "anything": {},
    }
    assert function_signature(convert).required == ("values", "table", "unit", "mode")


def test_function_signature_agrees_with_transformers() -> None:
    """On what both describe: names, description, types, requirements."""
    utils = pytest.importorskip("transformers.utils", reason="transformers is not installed")

    def weather(city: str, days: int, hourly: bool, at: list[float], more: dict[str, int]) -> str:
        """Forecast the weather.

        Args:
            city: where
            days: how many
            hourly: every hour
            at: hours
            more: options
        """
        return ""

    reference = utils.get_json_schema(weather)
    reference["function"].pop("return", None)  # not in OpenAI's form
    assert function_signature(weather).schema == reference


def test_parse_docstring_without_sections_is_description() -> None:
    assert parse_docstring("One line.") == ("One line.", {})
    assert parse_docstring("Say: this.\n\nArgs:\n    x: a: b\n") == ("Say: this.", {"x": "a: b"})


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ('{"query": "a"}', {"query": "a"}),
        ('{"query": "a", "limit": 3.0, "exact": true}', {"query": "a", "limit": 3, "exact": True}),
    ],
)
def test_parse_arguments_gives_keywords(arguments: str, values: dict[str, Any]) -> None:
    result = function_signature(search).parse_arguments(arguments)
    assert result == values and [type(v) for v in result.values()] == [type(v) for v in values.values()]


def test_parse_arguments_converts_enum_float_and_nested() -> None:
    def f(unit: Unit, x: float, xs: list[Unit | None], n: Literal[1, True]) -> None:
        """F."""

    parsed = function_signature(f).parse_arguments('{"unit": "ft", "x": 2, "xs": ["m", null], "n": true}')
    assert parsed == {"unit": Unit.FOOT, "x": 2.0, "xs": [Unit.METRE, None], "n": True}
    assert type(parsed["x"]) is float and parsed["n"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"query": "a", "query": "b"}', "not JSON"),
        ('{"query": NaN}', "."),
        ("{}", "needs the argument 'query'"),
        ('{"query": 5}', "query is 5; it must be of type string"),
        ('{"query": "a", "limit": true}', "limit is True; it must be of type integer"),
        ('{"query": "a", "limit": "3"}', "of type integer"),
        ('{"query": "a", "limit": 2.5}', "of type integer"),
        ('{"query": "a", "exact": 1}', "of type boolean"),
        ('{"query": "a", "colour": 1}', "no parameter 'colour'; it takes query, limit, exact"),
        ('{"query": "' + "a" * 100_000 + '"}', "at most 100000"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_parse_arguments_refuses_what_does_not_fit(arguments: str, message: str) -> None:
    with pytest.raises(BadArguments, match=message):
        function_signature(search).parse_arguments(arguments)


def test_parse_arguments_names_place_of_nested_error() -> None:
    def f(table: dict[str, list[int]]) -> None:
        """F."""

    with pytest.raises(BadArguments, match=r"table.a\[1\] is 'x'"):
        function_signature(f).parse_arguments('{"table": {"a": [1, "x"]}}')


def test_parse_arguments_refuses_number_beyond_float() -> None:
    def f(x: float) -> None:
        """F."""

    with pytest.raises(BadArguments, match="x is"):
        function_signature(f).parse_arguments(json.dumps({"x": 10**400}))


def test_function_signature_refuses_what_it_cannot_describe() -> None:
    def untyped(x) -> None:  # type: ignore[no-untyped-def]
        """F."""

    def rest(*values: int) -> None:
        """F."""

    def odd(x: set[int]) -> None:
        """F."""

    def keys(x: dict[int, str]) -> None:
        """F."""

    def silent(x: int) -> None: ...

    def missing(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
        """F."""

    for function, message in [
        (untyped, "'x' of the tool untyped has no type hint"),
        (rest, "must each have a name"),
        (odd, "has the type set"),
        (keys, "keys of another type"),
        (silent, "no docstring"),
        (missing, "cannot be read"),
        (lambda x: x, "is no tool"),
    ]:
        with pytest.raises(UsageError, match=message):
            function_signature(function)
