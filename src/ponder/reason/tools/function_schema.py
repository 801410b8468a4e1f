"""A Python function as a tool: the JSON schema of its parameters, from type hints and docstring, and the check of a
call's arguments against them.

Types: str, int, float, bool, None, list, dict, Literal, Enum, unions and Optional of these, nested as you like, each
perhaps in Annotated with a description. A parameter with a default may be left out. The description is the docstring up
to its first section; those of the parameters stand in its section `Args:` (Google style).
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from ponder.errors import UsageError
from ponder.strict_parsing import parse_json
from ponder.validate import short_repr

MAX_ARGUMENT_CHARS = 100_000  # of the JSON text of one call

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_SECTIONS = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Todo|See Also):", re.IGNORECASE
)
_PARAMETER = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_SUPPORTED = "str, int, float, bool, None, list, dict, Literal, Enum and unions of them"


class BadArguments(ValueError):
    """Arguments that do not fit a tool's parameters. The message is for the model that wrote them."""


@dataclass(frozen=True)
class ValueType:
    """A type of JSON values: its schema, and the conversion to the Python value that the function takes."""

    schema: Mapping[str, Any]
    convert: Callable[[Any, str], Any]  # of a value, and what it is called in errors; raises `BadArguments`


@dataclass(frozen=True)
class FunctionSignature:
    """The name, description and parameters of a tool."""

    name: str
    description: str
    parameters: Mapping[str, ValueType]
    required: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI's API take it."""
        parameters = {
            "type": "object",
            "properties": {name: dict(kind.schema) for name, kind in self.parameters.items()},
            "required": list(self.required),
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def parse_arguments(self, text: str) -> dict[str, Any]:
        """The arguments of a call, from JSON text, as keywords for the function."""
        if len(text) > MAX_ARGUMENT_CHARS:
            raise BadArguments(f"the arguments have {len(text)} characters; at most {MAX_ARGUMENT_CHARS} are read")
        try:
            values = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not JSON: {error}") from None
        if not isinstance(values, dict):
            raise BadArguments("the arguments must be a JSON object")
        if unknown := [name for name in values if name not in self.parameters]:
            raise BadArguments(
                f"{self.name} has no parameter {unknown[0][:80]!r}; it takes {', '.join(self.parameters) or 'none'}"
            )
        if missing := [name for name in self.required if name not in values]:
            raise BadArguments(f"{self.name} needs the argument {missing[0]!r}")
        return {name: self.parameters[name].convert(value, name) for name, value in values.items()}


def function_signature(function: Callable[..., Any], name: str = "") -> FunctionSignature:
    """The tool that a function is. `name`: another name than the function's own."""
    name = name or _function_name(function)
    if not callable(function) or not _TOOL_NAME.fullmatch(name):
        raise UsageError(f"{short_repr(function)} is no tool: give a function with a name (letters, digits and _)")
    docstring = _docstring(function)
    if not docstring:
        raise UsageError(f"the tool {name} has no docstring: write what it does, which is all that the model reads")
    description, texts = parse_docstring(docstring)
    if not description:
        raise UsageError(f"the docstring of the tool {name} begins with a section: first say what it does")
    try:
        hints = typing.get_type_hints(_hinted(function), include_extras=True)
    except Exception as error:  # a name that the hints use is not there
        raise UsageError(f"the type hints of the tool {name} cannot be read: {error}") from None
    parameters: dict[str, ValueType] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"the tool {name} takes {parameter}: its parameters must each have a name")
        if parameter.name not in hints:
            raise UsageError(f"parameter {parameter.name!r} of the tool {name} has no type hint: give it one")
        where = f"parameter {parameter.name!r} of the tool {name}"
        parameters[parameter.name] = _describe(value_type(hints[parameter.name], where), texts.get(parameter.name, ""))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            parameters[parameter.name] = _with_default(parameters[parameter.name], parameter.default)
    return FunctionSignature(name, description, parameters, tuple(required))


def parse_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """The description, and the text of each parameter in the section `Args:`."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in inspect.cleandoc(docstring).splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if (match := _SECTIONS.fullmatch(text)) and not depth:
            section, current, indent = match[1].lower(), "", 0
        elif not section:
            description.append(text)
        elif section in ("args", "arguments", "parameters") and text:
            indent = indent or depth
            entry = _PARAMETER.fullmatch(text)
            if entry and depth <= indent:
                current = entry["name"]
                parameters[current] = entry["text"]
            elif current:
                parameters[current] = f"{parameters[current]} {text}".strip()
    return "\n".join(description).strip(), parameters


def value_type(hint: Any, where: str) -> ValueType:
    """The JSON type of a type hint. `where`: the parameter, for the error of a type that has none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        text = next((note for note in arguments[1:] if isinstance(note, str)), "")
        return _describe(value_type(arguments[0], where), text)
    if hint in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[hint]
    if hint is list or origin in (list, Sequence):
        return _list_type(value_type(arguments[0], where) if arguments else _ANYTHING)
    if hint is dict or origin in (dict, Mapping):
        if arguments and arguments[0] is not str:
            raise UsageError(f"{where} is a dict with keys of another type than str, which JSON does not have")
        return _dict_type(value_type(arguments[1], where) if arguments else _ANYTHING)
    if origin is Literal:
        return _literal_type(arguments, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_type(hint, where)
    if origin in (Union, types.UnionType):
        return _union_type([value_type(each, where) for each in arguments])
    raise UsageError(f"{where} has the type {_type_name(hint)}, which no JSON schema describes; use {_SUPPORTED}")


def _function_name(function: Any) -> str:
    """Its own name; of an object, its `name` or that of its class."""
    own = getattr(function, "__name__", None) or getattr(function, "name", None)
    return own if isinstance(own, str) else type(function).__name__


def _hinted(function: Callable[..., Any]) -> Any:
    """What holds the type hints: the function, or the `__call__` of an object."""
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__


def _docstring(function: Callable[..., Any]) -> str:
    own = inspect.getdoc(function) if inspect.isroutine(function) else type(function).__call__.__doc__
    return own or inspect.getdoc(function) or ""


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _describe(kind: ValueType, text: str) -> ValueType:
    return ValueType({**kind.schema, "description": text}, kind.convert) if text else kind


def _with_default(kind: ValueType, default: Any) -> ValueType:
    plain = default.value if isinstance(default, Enum) else default
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        return kind
    return kind if plain is None else ValueType({**kind.schema, "default": plain}, kind.convert)


def _simple(name: str, accepts: Callable[[Any], bool], make: Callable[[Any], Any]) -> ValueType:
    def convert(value: Any, path: str) -> Any:
        if not accepts(value):
            raise BadArguments(f"{path} is {short_repr(value)}; it must be of type {name}")
        return make(value)

    return ValueType({"type": name}, convert)


def _is_integer(value: Any) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value.is_integer())
    return whole and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


_ANYTHING = ValueType({}, lambda value, path: value)
_SIMPLE_TYPES: dict[Any, ValueType] = {
    str: _simple("string", lambda value: isinstance(value, str), str),
    int: _simple("integer", _is_integer, int),
    float: _simple("number", _is_number, float),
    bool: _simple("boolean", lambda value: isinstance(value, bool), bool),
    type(None): _simple("null", lambda value: value is None, lambda value: None),
    Any: _ANYTHING,
    object: _ANYTHING,
}


def _list_type(item: ValueType) -> ValueType:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise BadArguments(f"{path} is {short_repr(value)}; it must be of type array")
        return [item.convert(each, f"{path}[{at}]") for at, each in enumerate(value)]

    return ValueType({"type": "array", **({"items": dict(item.schema)} if item.schema else {})}, convert)


def _dict_type(item: ValueType) -> ValueType:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise BadArguments(f"{path} is {short_repr(value)}; it must be of type object")
        return {key: item.convert(each, f"{path}.{key}"[:200]) for key, each in value.items()}

    more = {"additionalProperties": dict(item.schema)} if item.schema else {}
    return ValueType({"type": "object", **more}, convert)


def _literal_type(values: Sequence[Any], where: str) -> ValueType:
    """One of these values. True and 1 are equal in Python, and not in JSON."""
    if not all(value is None or isinstance(value, str | int | bool) for value in values):
        raise UsageError(f"{where} is a Literal of other values than str, int, bool and None")

    def convert(value: Any, path: str) -> Any:
        for each in values:
            if type(each) is type(value) and each == value:
                return each
        raise BadArguments(f"{path} is {short_repr(value)}; it must be one of {_listed(values)}")

    names = {_JSON_NAMES[type(value)] for value in values}
    kind = {"type": names.pop()} if len(names) == 1 else {}
    return ValueType({**kind, "enum": list(values)}, convert)


_JSON_NAMES = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


def _enum_type(enum: type[Enum], where: str) -> ValueType:
    members = {member.value: member for member in enum}
    if not all(type(value) in (str, int) for value in members):
        raise UsageError(f"{where} is an Enum with other values than str and int")
    plain = _literal_type(list(members), where)
    return ValueType(plain.schema, lambda value, path: members[plain.convert(value, path)])


def _union_type(kinds: Sequence[ValueType]) -> ValueType:
    def convert(value: Any, path: str) -> Any:
        errors = []
        for kind in kinds:
            try:
                return kind.convert(value, path)
            except BadArguments as error:
                errors.append(str(error))
        raise BadArguments(errors[0] if len(kinds) == 2 and _allows_null(kinds) else "; or ".join(errors))

    if all(set(kind.schema) == {"type"} and isinstance(kind.schema["type"], str) for kind in kinds):
        return ValueType({"type": [kind.schema["type"] for kind in kinds]}, convert)
    return ValueType({"anyOf": [dict(kind.schema) for kind in kinds]}, convert)


def _allows_null(kinds: Sequence[ValueType]) -> bool:
    return kinds[-1].schema.get("type") == "null"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(json.dumps(value) for value in values)
