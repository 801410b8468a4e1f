"""Trusted tests of an untrusted program, each in a jail of its own. Runs inside; only plain data goes between the two.

What the program defines stands in the tests as a `Remote`: to call it is to ask the program, over the host.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import itertools
import os
import sys
import traceback
from typing import Any, NoReturn

from ponder.verify.sandbox.codec import NotPlain, Tree, decode, encode
from ponder.verify.sandbox.inmate import receive, send

# What a candidate raises must not end the tests, nor a loop in them: all(map(f, xs)) is true where f raises this.
ENDS = (StopIteration, StopAsyncIteration)
_asked = False  # whether the tests have asked the candidate anything


class Remote:
    """Stands in the tests for something of the candidate, which runs elsewhere. It never compares itself."""

    def __init__(self, target: Tree) -> None:
        object.__setattr__(self, "_target", target)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        answer, after = _ask("call", self._target, encode(list(arguments), 0, _own), encode(named, 0, _own))
        if after is not None:
            for old, new in zip(arguments, decode(after, 0, _foreign, safe=False), strict=True):
                _become(old, new)
        return decode(answer, 0, _foreign, safe=False)

    def __getattr__(self, name: str) -> Any:
        if not isinstance(self._target, list) or name.startswith("__"):
            raise AttributeError(name)
        return decode(_ask("attribute", self._target, name)[0], 0, _foreign, safe=False)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask("assign", self._target, name, encode(value, 0, _own))

    def __bool__(self) -> bool:
        return not isinstance(self._target, list) or _ask("truth", self._target)[0] is True

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        raise TypeError("the tests compare plain data only, and this is an object of the candidate")

    __hash__ = None  # type: ignore[assignment]


def _ask(*request: Tree) -> list[Tree]:
    global _asked
    _asked = True
    send("c", list(request))
    status, *rest = receive()
    if status == "ok":
        return list(rest)
    kind = getattr(builtins, rest[0], RuntimeError) if status == "raised" else TypeError
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, ENDS):
        kind = RuntimeError
    error = kind.__new__(kind, rest[-1])
    with contextlib.suppress(TypeError):  # a message alone is too little for UnicodeDecodeError
        kind.__init__(error, rest[-1])
    raise error


def _own(value: Any) -> Tree:
    if isinstance(value, Remote):
        return value._target
    if isinstance(value, type) and value.__module__ == "builtins":
        return ["y", value.__name__]
    raise NotPlain(f"the tests pass a value of type {type(value).__name__!r}, which cannot cross to the candidate")


def _foreign(tree: Tree) -> Any:
    if tree[0] == "g":
        return iter([decode(item, 1, _foreign, safe=False) for item in tree[1:]])
    if tree[0] == "h" and len(tree) == 2 and type(tree[1]) is int:
        return Remote(tree)
    raise NotPlain("an unknown tag")


def _become(old: Any, new: Any) -> None:
    """What the candidate did to an argument, done to the tests' own."""
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
    elif isinstance(old, dict | set) and type(old) is type(new):
        old.clear()
        old.update(new)


def tests() -> None:
    """Run trusted tests, in which every name that they do not define stands for something of the candidate."""
    setup, sources, entry, count_each = receive()
    try:
        trees = [ast.parse(source) for source in (setup, *sources)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        _verdict(-1, 0, f"not Python: {error}")
    space: dict[str, Any] = {"__name__": "tests", **{name: Remote(name) for name in _free(trees)}}
    space.update({name: importlib.import_module(name) for name in _modules(trees) if name in space and name != entry})
    nodes = list(itertools.chain.from_iterable(map(ast.walk, trees)))
    if not any(isinstance(node, ast.Assert) or (not count_each and _may_fail(node)) for node in nodes):
        _verdict(-1, 0, "they hold no assert")
    counted, why = dict[str, bool](), ""  # each test, or each assert, and whether it held every time

    def record(what: str, good: bool, error: BaseException | None = None) -> None:
        nonlocal why
        counted[what] = counted.get(what, True) and good
        why = why or ("" if good else traceback.format_exception_only(error)[-1].strip()[:300])

    asserts = _CountAsserts()
    if count_each:
        trees = [ast.fix_missing_locations(asserts.visit(tree)) for tree in trees]
        space["__record__"] = record
    for at, tree in enumerate(trees):
        try:
            exec(compile(tree, "tests.py", "exec", dont_inherit=True), space)
            if at > 0 and not count_each:
                record(f"test {at}", True)
        except BaseException as error:
            record(f"test {at}", False, error)
            if at == 0:
                break
        if entry:
            space[entry] = space["candidate"] = Remote(entry)  # the setup may have given a version of its own
    if not _asked:
        _verdict(-1, 0, why or "they ask the program nothing")
    failures = sum(not good for good in counted.values())
    outside = sum(what.startswith("test") for what in counted)  # failures of no assert, where those are counted
    total = asserts.found + outside if count_each else len(sources)
    _verdict(len(counted) - failures if failures else total, total, why)


def _verdict(passed: int, total: int, why: str) -> NoReturn:
    send("v", [passed, total, why])
    os._exit(0)


def _may_fail(node: ast.AST) -> bool:
    """A `raise`, or a call of something such as `assertEqual`."""
    called = node.func if isinstance(node, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return isinstance(node, ast.Raise) or name.startswith("assert")


def _free(trees: list[ast.Module]) -> set[str]:
    """Names that are read somewhere and bound nowhere."""
    read, bound = set[str](), set[str](dir(builtins))
    for node in itertools.chain.from_iterable(ast.walk(tree) for tree in trees):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def _modules(trees: list[ast.Module]) -> set[str]:
    """Modules of the standard library that tests use without importing them, trusting the program to."""
    dotted = {
        node.value.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return dotted & sys.stdlib_module_names


class _CountAsserts(ast.NodeTransformer):
    """Each assert is tried and counted once, however often it runs: a loop may be over what the candidate gave."""

    found = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        self.found += 1
        (attempt,) = ast.parse(_ATTEMPT.replace("NAME", repr(f"assert {self.found}"))).body
        assert isinstance(attempt, ast.Try)
        attempt.body.insert(0, node)
        return attempt


_ATTEMPT = """
try:
    __record__(NAME, True)
except BaseException as _e:
    __record__(NAME, False, _e)
"""
