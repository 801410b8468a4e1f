"""Find tests that a wrong program could pass or an honest one could fail, and why.

The static half reads the tests; the dynamic half watches them run. Neither changes the verdict: both are reported with
it.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ponder.verify.sandbox import object_trust

if TYPE_CHECKING:
    from ponder.verify.sandbox.peer import Peer

# What a test does in its own process that a program in another one does not see.
NOT_VISIBLE_TO_PROGRAM = {
    "builtins.open": "a file", "tempfile": "a file", "pathlib.Path.home": "a file", "os.remove": "a file",
    "os.environ": "the environment", "os.putenv": "the environment", "os.chdir": "the working directory",
    "unittest.mock": "patched names", "mock": "patched names", "random.seed": "a seed", "numpy.random": "a seed",
    "sys.setrecursionlimit": "the interpreter's limits", "sys.getsizeof": "an object's size", "sys.modules": "modules",
    "sys.getrefcount": "a count of references", "gc": "the garbage collector", "weakref": "weak references",
    "tracemalloc": "traced memory", "asyncio.wait_for": "a time limit", "asyncio.timeout": "a time limit",
    "inspect.getsource": "source text", "pickle": "pickled objects", "logging": "logging", "signal": "signals",
    "multiprocessing": "processes", "subprocess": "processes", "builtins.eval": "code in a string",
    "builtins.exec": "code in a string", "builtins.globals": "names of a module", "importlib": "modules",
}  # fmt: skip
WRITING = frozenset({"write_text", "read_text", "write_bytes", "read_bytes"})


def isolation_dependency(trees: Sequence[ast.AST], test: ast.AST) -> str:
    """Why a test may fail whatever the program does; empty where nothing is known."""
    bound, modules = dict[str, str](), set[str]()
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.Import):
            first = {a.asname or a.name.partition(".")[0]: a.name for a in node.names}
            bound.update({name: full if name != full.partition(".")[0] else name for name, full in first.items()})
            modules |= first.keys()
        elif isinstance(node, ast.ImportFrom):
            bound.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] = ""
        elif isinstance(node, ast.arg):
            bound[node.arg] = ""
    for node in ast.walk(test):
        used = _dotted(node, bound)
        reason = next((why for name, why in NOT_VISIBLE_TO_PROGRAM.items() if f"{used}.".startswith(f"{name}.")), "")
        if isinstance(node, ast.Attribute) and node.attr in WRITING:
            reason = "a file"
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and used.partition(".")[0] in modules:
            reason = "a changed module"
        if reason:
            return f"the tests use {reason} ({used or 'a path'}), which a program in a jail of its own does not see"
    return ""


def _dotted(node: ast.AST, bound: dict[str, str]) -> str:
    """The full dotted name of a node, such as os.environ; empty where the tests define it."""
    if isinstance(node, ast.Name):
        return bound.get(node.id, f"builtins.{node.id}" if hasattr(builtins, node.id) else node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, bound)
        return f"{before}.{node.attr}" if before else ""
    return ""


class WeakTestMonitor:
    """Records signs of weak tests while they run."""

    def __init__(self, peer: Peer, trees: Sequence[ast.Module]) -> None:
        self._peer, self._trees = peer, trees
        self.odd_truth = False  # a value that is not a bool decided an assert

    def truth(self, value: Any) -> Any:
        """Record a value of which an assert tests only the truth."""
        self.odd_truth = self.odd_truth or not isinstance(value, bool)
        return value

    def findings(self) -> list[str]:
        """Each weakness in words."""
        nodes = list(itertools.chain.from_iterable(map(ast.walk, self._trees)))
        asserts = [node for node in nodes if isinstance(node, ast.Assert)]
        weaknesses = []
        if self.odd_truth:
            weaknesses.append("an assert asks only whether something is true, and it was no bool")
        if self._peer.changed and any(_reads_argument(node, nodes) for node in asserts):
            weaknesses.append("what is expected is taken from an argument that the program changed")
        if any(_only_in_loop_over_answer(node) for node in nodes):
            weaknesses.append("an assert runs only for the items of what the program gave")
        if any(_any_error_will_do(node) for node in nodes):
            weaknesses.append("any error of the program passes")
        if asserts and all(_only_denies(node.test) for node in asserts):
            weaknesses.append("the asserts only deny, so that nan or an odd object passes")
        denied = object_trust.never_denied()
        if denied:
            weaknesses.append(f"the program's own {', '.join(denied)} decided, and was never seen to say no")
        return weaknesses


class WrapAsserts(ast.NodeTransformer):
    """Wraps the values that asserts test for truth, so that `WeakTestMonitor` sees them."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.test = _wrap_truth(node.test)
        return node


def _wrap_truth(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test.operand = _wrap_truth(test.operand)
    elif isinstance(test, ast.BoolOp):
        test.values = [_wrap_truth(value) for value in test.values]
    elif isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
        return ast.Call(ast.Name("__truth__", ast.Load()), [test], [])
    return test


def _reads_argument(check: ast.Assert, nodes: Sequence[ast.AST]) -> bool:
    """Whether an assert reads a variable that was an argument, other than to compare it as a whole."""
    arguments = {a.id for n in nodes if isinstance(n, ast.Call) for a in n.args if isinstance(a, ast.Name)}
    whole = {
        id(side)
        for n in ast.walk(check.test)
        if isinstance(n, ast.Compare)
        for side in (n.left, *n.comparators)
        if isinstance(side, ast.Name)
    }
    return any(isinstance(n, ast.Name) and n.id in arguments and id(n) not in whole for n in ast.walk(check.test))


def _only_in_loop_over_answer(node: ast.AST) -> bool:
    """`for x in f(1): assert ...`, which an empty answer passes."""
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and isinstance(node.iter.func, ast.Name)
        and not hasattr(builtins, node.iter.func.id)
        and any(isinstance(n, ast.Assert) for n in ast.walk(node))
    )


def _any_error_will_do(node: ast.AST) -> bool:
    """`except Exception: pass`, or a bare one, around a call."""
    if not isinstance(node, ast.Try) or not any(isinstance(n, ast.Call) for s in node.body for n in ast.walk(s)):
        return False
    return any(
        (h.type is None or (isinstance(h.type, ast.Name) and h.type.id in ("Exception", "BaseException")))
        and all(isinstance(statement, ast.Pass) for statement in h.body)
        for h in node.handlers
    )


def _only_denies(test: ast.expr) -> bool:
    """`not f(1) > 2 and not f(1) < 2`"""
    if isinstance(test, ast.BoolOp):
        return all(map(_only_denies, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    return isinstance(test, ast.Compare) and all(isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) for op in test.ops)
