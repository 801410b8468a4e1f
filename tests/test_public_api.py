"""The public surface: `from ponder import ...`."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ponder


def test_every_public_name_can_be_imported():
    for name in ponder.__all__:
        assert getattr(ponder, name) is not None


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(ponder.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == ponder._HOMES
    assert {*typed, "__version__"} == set(ponder.__all__)


def test_every_public_class_and_function_has_a_docstring():
    missing = [name for name in ponder.__all__ if name != "__version__" and not (getattr(ponder, name).__doc__ or "")]
    assert missing == []


def test_import_loads_no_heavy_library():
    code = "import sys, ponder; print([m for m in ('torch', 'numpy', 'scipy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("given", "kept"), [({}, "30000"), ({"MIMALLOC_PURGE_DELAY": "7"}, "7")])
def test_import_sets_how_long_freed_memory_is_kept_unless_the_user_did(given: dict[str, str], kept: str):
    code = "import os, ponder; print(os.environ['MIMALLOC_PURGE_DELAY'])"
    others = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=others | given)
    assert done.stdout.strip() == kept


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ponder, "TRPO")


def test_no_two_public_classes_share_a_name():
    homes = {}
    for path in sorted(Path(ponder.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
