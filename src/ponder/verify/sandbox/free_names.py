"""Sort the free names of a test file: its own, a library's, or for the program to define.

A name that the tests bind or that Python has belongs to the tests. Of the others, the program defines those under test:
the entry, names that the row lists, and classes (by their capital letter). Helpers come from the standard library,
which tests often use without importing it. With no entry given, functions are under test too, unless they are called on
what another of them returned and the library has a function of that name: `isclose(area(1), 3.14)`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# Modules that supply helpers which tests use without an import, in this order; and usual short names of modules.
HELPER_MODULES = (
    "math", "collections", "itertools", "functools", "typing", "random", "datetime", "decimal", "fractions", "copy",
    "heapq", "bisect", "statistics", "cmath", "dataclasses", "enum", "abc", "contextlib", "uuid", "pathlib",
)  # fmt: skip
TYPE_MODULES = ("collections", "typing", "datetime", "decimal", "fractions", "enum", "abc", "uuid", "pathlib")
MODULE_ALIASES = {
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "nx": "networkx",
    "sp": "scipy",
    "tf": "tensorflow",
}

# Computed once in the warm interpreter: computing them for every node would cost a clone more than the tests.
_BUILTIN = frozenset(dir(builtins))
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
_CAPTURES = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


class FreeNames(NamedTuple):
    """Names that the tests use and do not bind."""

    program: frozenset[str]  # the program defines them
    helpers: dict[str, Any]  # the standard library defines them, with their values
    unknown: frozenset[str]  # nothing may define them


def classify_names(trees: Sequence[ast.Module], entry: str, names: Iterable[str]) -> FreeNames:
    nodes = list(itertools.chain.from_iterable(map(ast.walk, trees)))
    free = _free(nodes)
    tested = {entry.partition(".")[0], *names} - {""}
    dotted = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    wrapping = _wrapping(nodes, free)
    program, helpers, unknown = set(tested & free), dict[str, Any](), set[str]()
    for name in free - tested:
        is_class = name.lstrip("_")[:1].isupper()
        helper = _helper(name, name in dotted, is_class) if entry or name in wrapping or name in dotted else None
        if helper is not None:
            helpers[name] = helper
        elif name not in MODULE_ALIASES and (not entry or is_class):
            program.add(name)
        else:
            unknown.add(name)
    return FreeNames(frozenset(program), helpers, frozenset(unknown))


def _helper(name: str, dotted: bool, is_class: bool) -> Any:
    """The library's value for a name that the tests do not define; None where there is none."""
    if dotted and name in sys.stdlib_module_names:
        return importlib.import_module(name)
    if name in MODULE_ALIASES:
        try:
            return importlib.import_module(MODULE_ALIASES[name])
        except ImportError:
            return None
    for module in TYPE_MODULES if is_class else HELPER_MODULES:
        if not name.startswith("_"):
            helper = getattr(importlib.import_module(module), name, None)
            if helper is not None:
                return helper
    return None


def _wrapping(nodes: Sequence[ast.AST], free: set[str]) -> set[str]:
    """Free names that are called with the result of another free name."""
    wrappers = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in free:
            within = itertools.chain.from_iterable(ast.walk(a) for a in (*node.args, *(k.value for k in node.keywords)))
            called = {n.func.id for n in within if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            if called & free - {node.func.id}:
                wrappers.add(node.func.id)
    return wrappers


def _free(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are read somewhere and bound nowhere."""
    read, bound = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, _DEFINITIONS):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, _CAPTURES) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return read - bound - _BUILTIN


def imported_modules(trees: Sequence[ast.Module]) -> set[str]:
    """Modules that the tests import."""
    modules = set()
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules
