"""Run trusted tests of an untrusted program, each side in a jail of its own. Runs inside.

What the program defines is a proxy in the tests (proxies.py): using it asks the program, through the host. A test
passes, fails, or is undecided where it needs something that does not cross the wall.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from ponder.verify.sandbox import object_trust, operations, weak_tests
from ponder.verify.sandbox.free_names import FreeNames, classify_names, imported_modules
from ponder.verify.sandbox.guest import receive, send
from ponder.verify.sandbox.peer import Peer

# Frames of the interpreter. A function of the tests that the program calls, and that calls the program, takes many.
TESTS_RECURSION_LIMIT = 10_000


def tests() -> None:
    """Run trusted tests, in which the names under test are proxies of the program's."""
    setup, sources, entry, extra_names, count_each, introduced = receive()
    try:
        trees = [ast.parse(source) for source in (setup, *sources)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        _verdict(-1, 0, f"not Python: {error}")
    nodes = list(itertools.chain.from_iterable(map(ast.walk, trees)))
    if not any(isinstance(node, ast.Assert) or (not count_each and _may_fail(node)) for node in nodes):
        _verdict(-1, 0, "they hold no assert")
    sys.setrecursionlimit(TESTS_RECURSION_LIMIT)
    peer = Peer(lambda tree: send("c", tree), receive, operations.TESTS_OPERATIONS, runs_tests=True)
    names = classify_names(trees, entry, extra_names)
    space: dict[str, Any] = {"__name__": "tests", "isinstance": _isinstance, "issubclass": _issubclass, **names.helpers}
    operations.use_library(peer, imported_modules(trees) | names.helpers.keys())
    tested = _Tested(peer, space, trees, count_each)
    try:
        space.update(_program_values(peer, names, entry, introduced, tested.refused))
    except Exception as error:  # the program's answer breaks the protocol
        _verdict(0, len(sources), f"{type(error).__name__}: {error}"[:300], failed=True)
    tested.run(entry)


class _Tested:
    """A run of tests, with the outcome of each test or of each assert."""

    def __init__(self, peer: Peer, space: dict[str, Any], trees: list[ast.Module], count_each: bool) -> None:
        self.peer, self.space, self.trees, self.count_each = peer, space, trees, count_each
        self.refused: dict[str, str] = {}  # names that may not be defined, and why
        self.counted: dict[str, bool] = {}  # whether each test or assert passed every time
        self.open: dict[str, str] = {}  # undecided tests, and why
        self.why = ""
        self.monitor = weak_tests.WeakTestMonitor(peer, trees)

    def record(self, test: str, good: bool, error: BaseException | None = None) -> None:
        self.counted[test] = self.counted.get(test, True) and good
        if not good and not self.why:
            try:
                self.why = traceback.format_exception_only(error)[-1].strip()[:300]
            except BaseException:
                self.why = type(error).__name__
        if not good and isinstance(error, NameError) and getattr(error, "name", None) in self.refused:
            object_trust.reasons.append(self.refused[str(error.name)])

    def run(self, entry: str) -> NoReturn:
        peer, space, asserts = self.peer, self.space, _CountAsserts()
        trees = [ast.fix_missing_locations(weak_tests.WrapAsserts().visit(tree)) for tree in self.trees]
        space["__truth__"] = self.monitor.truth
        if self.count_each:
            trees = [ast.fix_missing_locations(asserts.visit(tree)) for tree in trees]
            space["__record__"] = self.record
        candidate = space.get("candidate")
        for at, tree in enumerate(trees):
            object_trust.reasons.clear()
            test = f"test {at}"
            try:
                exec(compile(tree, "tests.py", "exec", dont_inherit=True), space)
                if at > 0 and not self.count_each:
                    self.record(test, True)
            except BaseException as error:
                self.record(test, False, error)
            failed = any(not good for name, good in self.counted.items() if self.count_each or name == test)
            if object_trust.reasons or (
                failed and (outside := weak_tests.isolation_dependency(self.trees, self.trees[at]))
            ):
                self.open[test] = object_trust.reasons[0] if object_trust.reasons else outside
            if at == 0 and failed:
                break
            if entry:
                space["candidate"] = candidate  # the setup may have given a version of its own
                if "." not in entry:
                    space[entry] = candidate
        if not peer.asked:
            _verdict(-1, 0, next(iter(self.open.values()), self.why) or "they ask the program nothing")
        failures = sum(not good for good in self.counted.values())
        loose = sum(test.startswith("test") for test in self.counted)  # failures of no assert, where those are counted
        total = asserts.count + loose if self.count_each else len(trees) - 1
        passed = len(self.counted) - failures if failures else total
        definite = any(not good and test not in self.open for test, good in self.counted.items())
        undecided = next(iter(self.open.values()), "")
        _verdict(passed, total, self.why, undecided, definite and not self.count_each, self.monitor.findings())


def _may_fail(node: ast.AST) -> bool:
    """A `raise`, or a call of something such as `assertEqual`."""
    called = node.func if isinstance(node, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return isinstance(node, ast.Raise) or name.startswith("assert")


def _program_values(
    peer: Peer, names: FreeNames, entry: str, introduced: bool, refused: dict[str, str]
) -> dict[str, Any]:
    """The program's values for the names under test. An entry that is a function is known without a request."""
    for name in names.unknown:
        reason = f"the tests use {name!r}, which they do not define and no library has"
        refused[name] = f"{reason}; list it under 'names' if it is the program's"
    values: dict[str, Any] = {entry: peer.introduced()} if introduced else {}
    requested = sorted({*names.program, *([entry] if entry else [])} - values.keys())
    answers = peer.ask("names", tuple(requested)) if requested else ()
    peer.asked = False
    for name, (kind, value) in zip(requested, answers, strict=True):
        if kind == "missing":
            values[name] = _Missing(name)
        elif kind == "other" and name != entry:
            refused[name] = f"the tests take {name!r} from the program, and it is neither a function nor a class"
        else:
            values[name] = value
            if isinstance(value, type):
                object_trust.classes_named_by_tests.add(value)
    if entry:
        values["candidate"] = values[entry]
    return values


class _Missing:
    """A name under test that the program does not define."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        raise NameError(f"the program defines no {vars(self)['_name']!r}")

    __call__ = __getattr__ = __eq__ = __bool__ = __iter__ = __getitem__ = __len__ = _fail
    __hash__ = None  # type: ignore[assignment]


def _isinstance(value: Any, kind: Any) -> bool:
    """Python's `isinstance`, extended: a proxy is also an instance of the library classes of its remote class."""
    return builtins.isinstance(value, kind) or _derives(type(value), kind)


def _issubclass(value: Any, kind: Any) -> bool:
    return builtins.issubclass(value, kind) or _derives(value, kind)


def _derives(value: type, kind: Any) -> bool:
    if builtins.isinstance(kind, tuple):
        return any(_derives(value, one) for one in kind)
    return builtins.isinstance(kind, type) and object_trust.derives(value, kind)


def _verdict(
    passed: int, total: int, why: str, undecided: str = "", failed: bool = False, weaknesses: Sequence[str] = ()
) -> NoReturn:
    send("v", [passed, total, why, undecided, failed, list(weaknesses)])
    os._exit(0)


class _CountAsserts(ast.NodeTransformer):
    """Wraps each assert so that it counts once, however often it runs: a loop may be over the candidate's result."""

    count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        self.count += 1
        (attempt,) = ast.parse(_ATTEMPT.replace("NAME", repr(f"assert {self.count}"))).body
        assert isinstance(attempt, ast.Try)
        attempt.body.insert(0, node)
        return attempt


_ATTEMPT = """
try:
    __record__(NAME, True)
except BaseException as _e:
    __record__(NAME, False, _e)
"""
