"""Python's special methods, grouped: those that describe the object, and those that answer about another value."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "xor", "or",
)  # fmt: skip

# Asked of an object alone, or with a position, a key, a format: its answer knows nothing of what a test expects.
READING_METHODS: dict[str, Callable[..., Any]] = {
    "__len__": len, "__iter__": iter, "__next__": next, "__reversed__": reversed, "__str__": str, "__repr__": repr,
    "__format__": format, "__bool__": bool, "__hash__": hash, "__int__": int, "__float__": float,
    "__complex__": complex, "__index__": operator.index, "__abs__": abs, "__neg__": operator.neg,
    "__pos__": operator.pos, "__invert__": operator.invert, "__round__": round, "__trunc__": math.trunc,
    "__floor__": math.floor, "__ceil__": math.ceil, "__getitem__": operator.getitem, "__setitem__": operator.setitem,
    "__delitem__": operator.delitem, "__bytes__": bytes, "__dir__": dir, "__copy__": copy.copy,
    "__deepcopy__": lambda value, *_: copy.deepcopy(value), "__length_hint__": operator.length_hint,
}  # fmt: skip
# Looked up on the class, as Python does it.
_PLAIN = (
    "__enter__", "__exit__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__fspath__",
    "__missing__", "__get__", "__set__", "__delete__", "__set_name__",
)  # fmt: skip


def _looked_up(name: str) -> Callable[..., Any]:
    def call(value: Any, *arguments: Any) -> Any:
        return getattr(type(value), name)(value, *arguments)

    return call


READING_METHODS.update({name: _looked_up(name) for name in _PLAIN})
COMPARISON_METHODS: dict[str, Callable[..., Any]] = {f"__{name}__": getattr(operator, name) for name in COMPARISONS}


def _binary() -> dict[str, Callable[..., Any]]:
    methods: dict[str, Callable[..., Any]] = {"__divmod__": divmod, "__rdivmod__": lambda a, b: divmod(b, a)}
    for name in _ARITHMETIC:
        plain = getattr(operator, f"__{name}__")
        methods[f"__{name}__"] = pow if name == "pow" else plain
        methods[f"__r{name}__"] = lambda a, b, plain=plain: plain(b, a)
        methods[f"__i{name}__"] = getattr(operator, f"__i{name}__")
    return methods


ARITHMETIC_METHODS = _binary()
CONTAINS_METHODS: dict[str, Callable[..., Any]] = {"__contains__": operator.contains}
ALL_METHODS: dict[str, Callable[..., Any]] = {
    **READING_METHODS,
    **COMPARISON_METHODS,
    **ARITHMETIC_METHODS,
    **CONTAINS_METHODS,
}
# Every object has these; whether a class has its own is what matters.
METHODS_OF_EVERY_OBJECT = ("__str__", "__repr__", "__format__", "__dir__")


def defined(kind: type, name: str) -> Any:
    """The attribute of a class or of one of its bases; its metaclass is not searched."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


def own(kind: type, beyond: type) -> list[str]:
    """The special methods that a class adds to or overrides of its base `beyond`."""
    return [
        name
        for name in (*ALL_METHODS, "__call__")
        if (method := defined(kind, name)) is not None and method is not defined(beyond, name)
    ]
