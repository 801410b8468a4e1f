"""Functions that exist only in a running program: lambdas, closures, `functools.partial` and callable objects.

No name leads to them, so `job.json` cannot load them again. It records what they are, their source and the values that
they use, so that the program that made the run can resume it, and a changed function is noticed. Plain data in
closures, defaults, arguments, attributes and referenced globals counts, and so do the functions of the same module that
they refer to. Of any other value only the type is compared.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import linecache
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from ponder.errors import RunError
from ponder.user_modules import module_of

UNSAVED_TYPE = "unsaved code"  # in an encoded job, in place of a type's name
MAX_VALUE_CHARS = 2000  # of a value as JSON; of a longer one the hash is kept
_MAX_DEPTH = 8  # functions that refer to functions


def describe_callable(function: Callable[..., Any]) -> dict[str, Any]:
    """What there is to record of a function that no name leads to, as plain data."""
    return _describe(function, (), 0)


def callable_name(function: Any) -> str:
    """A name for messages and metrics; a partial goes by the function that it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def unsaved_code_error(names: list[str]) -> RunError:
    """The refusal to load such a job."""
    listed = ", ".join(names)
    return RunError(
        f"job.json records {listed}, which exists only in the Python program that started this run, so it cannot be"
        " loaded: run that program again to resume, or move the function to a file and give it as file.py:name"
    )


def _describe(thing: Any, seen: tuple[int, ...], depth: int) -> dict[str, Any]:
    source, values = _parts(thing)
    inner = (*seen, id(thing))
    return {
        "name": callable_name(thing),
        "source": source,
        "values": {name: _value(value, inner, depth + 1) for name, value in sorted(values)},
    }


def _parts(thing: Any) -> tuple[str, list[tuple[str, Any]]]:
    """The source of a callable, and the values that it uses by name."""
    if isinstance(thing, functools.partial):
        given = [(f"argument {i + 1}", value) for i, value in enumerate(thing.args)]
        return "functools.partial", [("function", thing.func), *given, *thing.keywords.items()]
    if isinstance(thing, MethodType):
        return f"the method {thing.__name__}", [("function", thing.__func__), ("self", thing.__self__)]
    if isinstance(thing, FunctionType):
        return _function_source(thing), list(_function_values(thing))
    kind = type(thing)
    methods = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
    return f"an object of the class {kind.__qualname__}", [*methods.items(), *_attributes(thing)]


def _value(value: Any, seen: tuple[int, ...], depth: int) -> Any:
    """A value as plain data: itself, the description of a function, or the name of its type."""
    if isinstance(value, FunctionType | MethodType | functools.partial) or _has_own_call(value):
        if id(value) in seen or depth > _MAX_DEPTH:
            return callable_name(value)
        return _describe(value, seen, depth)
    try:
        text = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        attributes = {name: _value(one, (*seen, id(value)), depth + 1) for name, one in _attributes(value)}
        named = f"a {module_of(type(value))}.{type(value).__qualname__}"
        return {"type": named, **attributes} if attributes and depth <= _MAX_DEPTH and id(value) not in seen else named
    if len(text) > MAX_VALUE_CHARS:
        return f"{len(text)} characters, hash {hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
    return json.loads(text)


def _has_own_call(value: Any) -> bool:
    return not isinstance(value, type) and isinstance(vars(type(value)).get("__call__"), FunctionType)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from (vars(thing) if hasattr(thing, "__dict__") and not isinstance(thing, type) else {}).items()


def _function_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Closure values, defaults, and the globals that the function refers to: plain data and functions of its module."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default {i + 1}", value
    yield from ((f"default of {name}", value) for name, value in (function.__kwdefaults__ or {}).items())
    for name in sorted(_global_names(code)):
        if name in function.__globals__:
            value = function.__globals__[name]
            own = isinstance(value, FunctionType) and value.__module__ == function.__module__
            if own or isinstance(value, str | int | float | bool | list | tuple | dict | None):
                yield f"global {name}", value


def _global_names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _function_source(function: FunctionType) -> str:
    """The function's own source without comments and layout; a hash of its code where there is none."""
    code = function.__code__
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    kinds = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [n for n in ast.walk(tree) if isinstance(n, kinds) and _first_line(n) == code.co_firstlineno]
    arguments = inspect.getfullargspec(function).args
    nodes = [n for n in nodes if [a.arg for a in (*n.args.posonlyargs, *n.args.args)] == arguments]
    if len(nodes) == 1 and getattr(nodes[0], "name", code.co_name) == code.co_name:
        return ast.unparse(nodes[0])
    return f"code {_code_hash(code)}"


def _first_line(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    decorators = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno


def _code_hash(code: CodeType) -> str:
    digest = hashlib.blake2b(code.co_code, digest_size=12)
    for const in code.co_consts:
        digest.update((_code_hash(const) if isinstance(const, CodeType) else repr(const)).encode())
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    return digest.hexdigest()
