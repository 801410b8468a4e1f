"""Find a thing by name: a visible table first, then `module:name` or `file.py:name`, then an installed plug-in.

Loading by name runs code. Names that users type or write into their programs are trusted. Names from a run directory
may be a stranger's, so they are loaded within `only_allowed`, which finds only ponder's own objects and those that the
user named (see `runs.trust`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ponder import user_modules
from ponder.errors import UnknownName, UntrustedCode, UsageError

AllowedNames = Collection[str] | None  # names beside ponder's own; None: every name

# ponder's functions that a job may name. It may name any of ponder's dataclasses.
JOB_FUNCTIONS = ("ponder.tasks.synthetic.problem_rows:accuracy",)
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_PACKAGE_FOLDER = Path(__file__).resolve().parent
_allowed: ContextVar[AllowedNames] = ContextVar("allowed", default=None)


def lookup(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    """The object of a kind ("task", "strategy", ...) by name. Plug-ins are in the entry-point group `ponder.KIND`."""
    if name in table:
        return table[name]
    if ":" in name:
        return import_object(name)
    for plugin in entry_points(group=f"ponder.{kind}", name=name):
        allowed = _allowed.get()
        if allowed is not None and name not in allowed:
            raise UntrustedCode([f"the plug-in {name}"])
        return plugin.load()
    raise UnknownName(kind, name, table, "Or give 'module:name' or 'file.py:name'.")


def import_object(path: str) -> Any:
    """The object at `module:name` or `file.py:name`."""
    allowed = _allowed.get()
    if allowed is not None and not any(user_modules.same_code(path, name) for name in allowed):
        value = ponder_object(path)
        if value is not None:
            return value
        if is_ponder_module(user_modules.split_name(path)[0]):
            raise UsageError(f"cannot load {path!r}: ponder has no object of that name that a job may use")
        raise UntrustedCode([path])
    return user_modules.load_object(path)


def import_path(given: Any) -> Any:
    """A class or function as its own `module:name`, where it is found there again: that can be saved with a job. A name
    in its usual form, and anything else as it is."""
    if isinstance(given, str):
        return user_modules.normal_name(given)
    path = f"{user_modules.module_of(given)}:{getattr(given, '__qualname__', '')}"
    try:
        return path if import_object(path) is given else given
    except UsageError:
        return given


@contextmanager
def only_allowed(allowed: AllowedNames) -> Iterator[None]:
    """Within this block, `import_object` and `lookup` return only ponder's own objects and these."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def set_allowed(allowed: AllowedNames) -> None:
    """The same for the rest of this context: for a command that runs a run directory's job."""
    _allowed.set(allowed)


def is_ponder_module(module: str) -> bool:
    """Whether a module is part of ponder, or of a recipe that comes with it. Imports nothing."""
    parts = module.split(".")
    if not _DOTTED_NAME.fullmatch(module) or user_modules.is_file(module) or any(p.startswith("__") for p in parts):
        return False
    return module.partition(".")[0] == "ponder" or _recipe_file(module) is not None


def ponder_object(path: str) -> Any:
    """The object at `module:object` if it is ponder's own and a job may name it; else None.

    That is a dataclass (tasks, scorers, strategies, jobs) or one of `JOB_FUNCTIONS`. A job could call any other
    function with its own arguments, and modules lead to other modules (`ponder.staging:shutil.rmtree`).
    """
    module, _, attribute = path.partition(":")
    if not is_ponder_module(module) or not _DOTTED_NAME.fullmatch(attribute):
        return None
    try:
        value = _import_own(module)
        for at, part in enumerate(attribute.split(".")):
            if at and not isinstance(value, type):
                return None
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    if isinstance(value, type):
        return value if is_dataclass(value) and is_ponder_module(value.__module__) else None
    return value if path in JOB_FUNCTIONS else None


def _import_own(module: str) -> Any:
    file = _recipe_file(module) if module.partition(".")[0] != "ponder" else None
    if file is None:
        return importlib.import_module(module)
    known = sys.modules.get(module)
    if known is not None:
        return known if _loaded_from(known, file) else None
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded  # dataclasses look up their module
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module]
        raise
    return loaded


def _recipe_file(module: str) -> Path | None:
    """The file of a recipe that comes with ponder, in the package or at the root of a checkout."""
    places = [folder / "recipes" / f"{module}.py" for folder in (_PACKAGE_FOLDER, _PACKAGE_FOLDER.parents[1])]
    return next((file for file in places if file.is_file()), None) if module.isidentifier() else None


def _loaded_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file
