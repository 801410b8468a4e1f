"""No process of ponder unpickles what another sent: a gate over the source.

It knows modules that (un)pickle, torch's collectives of objects, torch.load and torch.save, queues and pipes of
multiprocessing, and what is handed to Ray.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ponder

SOURCE = Path(ponder.__file__).parent
PICKLING_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing"}
OBJECT_CALLS = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
}  # fmt: skip
WORDS = (*PICKLING_MODULES, *OBJECT_CALLS, "torch.load", "torch.save", "ray.put", ".remote(")  # others are not parsed
ALLOWED = {"tasks/datasets/refcoco.py": "a reader of a public file, with an unpickler that takes plain data alone"}


def find_pickling(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.partition(".")[0] in PICKLING_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PICKLING_MODULES:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _find_in_call(node, node.func)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OBJECT_CALLS:
            yield node.func.id


def _find_in_call(call: ast.Call, function: ast.Attribute) -> Iterator[str]:
    owner = ast.unparse(function.value)
    if function.attr in OBJECT_CALLS:
        yield function.attr
    elif owner == "torch" and function.attr in ("load", "save"):
        yield f"torch.{function.attr}"
    elif function.attr == "put" and owner.endswith("ray"):
        yield "ray.put"
    elif function.attr == "remote" and not owner.endswith("ray"):  # a call of an actor, or its constructor
        given = [ast.unparse(a) for a in (*call.args, *(k.value for k in call.keywords))]
        yield from (f"remote({g})" for g in given if not (g.startswith("json.dumps(") and g.endswith(").encode()")))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["import pickle"]),
        ("from multiprocessing.connection import Client", ["from multiprocessing.connection"]),
        ("dist.all_gather_object(a, b)", ["all_gather_object"]),
        ("broadcast_object_list(x)", ["broadcast_object_list"]),
        ("torch.load(f)", ["torch.load"]),
        ("self.ray.put(x)", ["ray.put"]),
        ("actor.call.remote(trace)", ["remote(trace)"]),
        ("actor.call.remote(json.dumps(m).encode()); self.ray.remote(Host); Host.options(a=1).remote()", []),
        ("dist.all_gather(a, b); json.load(f)", []),
    ],
)
def test_gate_knows_what_pickles(source: str, found: list[str]) -> None:
    assert list(find_pickling(source)) == found


def test_nothing_is_pickled_between_processes() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 500
    found = {
        name: pickling
        for path in files
        if (name := path.relative_to(SOURCE).as_posix()) not in ALLOWED
        and any(word in (text := path.read_text()) for word in WORDS)
        and (pickling := list(find_pickling(text)))
    }
    assert found == {}
    assert all((SOURCE / name).exists() for name in ALLOWED)
