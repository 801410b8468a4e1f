"""The user's own code by name: `module:name`, also from the current folder, and `file.py:name`.

A file is loaded once, as a module named after it (`rewards.py` as `rewards`) unless another module has that name. Its
folder and the current one go to the end of the import path, so that they hide no installed module. A job names what
came from a file as `file.py:name`, by its path from the current folder where it lies below it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ponder.errors import UsageError
from ponder.user_errors import describe_error

_FILE_AND_NAME = re.compile(r"(?P<file>[^\n\0]+\.py):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_file_of_module: dict[str, Path] = {}  # modules that were loaded by the path of their file


def split_name(name: str) -> tuple[str, str]:
    """`module:name` or `file.py:name` as the module or file, and the name in it."""
    if (match := _FILE_AND_NAME.fullmatch(name)) is not None:
        return match["file"], match["name"]
    module, _, attribute = name.partition(":")
    return module, attribute


def is_file(module: str) -> bool:
    """Whether the first part of a name is a Python file and not a module."""
    return module.endswith(".py")


def normal_name(name: str) -> str:
    """The same name however its file was written: `./rewards.py:f` is `rewards.py:f`."""
    module, attribute = split_name(name)
    return f"{_shown_path(_resolve(module))}:{attribute}" if is_file(module) and attribute else name


def same_code(a: str, b: str) -> bool:
    """Whether two names are of the same object."""
    return a == b or normal_name(a) == normal_name(b)


def module_of(thing: Any) -> str:
    """The module of a class or function; its file, if the module was loaded by a file's path."""
    module = str(getattr(thing, "__module__", ""))
    return _shown_path(_file_of_module[module]) if module in _file_of_module else module


def load_object(name: str) -> Any:
    """The object at `module:name` or `file.py:name`."""
    where, attribute = split_name(name)
    if is_file(where) and not attribute:
        raise UsageError(f"say which function or class of the file: {where}:NAME")
    value: Any
    try:
        value = _load_file(where) if is_file(where) else _import_module(where)
        for part in attribute.split("."):
            value = getattr(value, part)
    except UsageError:
        raise
    except (ImportError, AttributeError, ValueError, TypeError) as reason:
        raise UsageError(f"cannot load {name!r}: {reason}") from None
    except (Exception, SystemExit) as reason:  # the module's own code
        raise UsageError(f"cannot load {name!r}: {describe_error(reason)}") from None
    return value


def _import_module(module: str) -> ModuleType:
    top = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != top or "" in sys.path or str(Path.cwd()) in sys.path:
            raise
        sys.path.append(str(Path.cwd()))
        importlib.invalidate_caches()
        return importlib.import_module(module)


def _load_file(file: str) -> ModuleType:
    path = _resolve(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}{'' if Path(file).is_absolute() else f' in {Path.cwd()}'}")
    name = _module_name(path)
    if (loaded := sys.modules.get(name)) is not None:
        _file_of_module.setdefault(name, path)
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # dataclasses look up their module
    _file_of_module[name] = path
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], _file_of_module[name]
        raise
    return module


def _module_name(path: Path) -> str:
    """The file's own name where no other module has it."""
    name = path.stem
    if name.isidentifier() and name not in sys.stdlib_module_names:
        loaded = sys.modules.get(name)
        if loaded is not None:
            origin = getattr(loaded, "__file__", None)
        else:
            spec = importlib.util.find_spec(name)
            origin = None if spec is None else spec.origin or "elsewhere"
        if (loaded is None and origin is None) or (origin is not None and Path(origin).resolve() == path):
            return name
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"


def _resolve(file: str) -> Path:
    return Path(file).expanduser().resolve()


def _shown_path(path: Path) -> str:
    here = Path.cwd().resolve()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)
