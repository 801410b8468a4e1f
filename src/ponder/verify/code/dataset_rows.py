"""Convert rows of public programming datasets to what `AssertTests` reads."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.errors import TaskError


def from_humaneval(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of HumanEval. The program continues the prompt, which also holds helpers that the tests call."""
    _has(row, "prompt", "test", "entry_point")
    entry = row["entry_point"]
    return {
        "entry": entry,
        "prefix": row["prompt"],
        "setup": row["prompt"],
        "tests": [f"{row['test']}\ncheck({entry})\n"],
    }


def from_mbpp(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of MBPP. The sanitized file calls its setup `test_imports`, the full one `test_setup_code`."""
    _has(row, "test_list")
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    return {"setup": setup, "tests": list(row["test_list"]), "entry": _tested(row.get("code") or "", row["test_list"])}


def _tested(code: str, tests: Sequence[str]) -> str:
    """The first function of the reference that the tests call. It may shadow a builtin, such as `sum`."""
    try:
        defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
        called = [
            n.func.id for n in ast.walk(ast.parse(tests[0])) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        ]
    except SyntaxError:
        return ""
    return next((name for name in called if name in defined), "")


def _has(row: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if not row.get(key):
            task_id = row.get("task_id", "?")
            raise TaskError(f"problem {task_id} has no {key!r}; it cannot be graded, so leave the row out")
