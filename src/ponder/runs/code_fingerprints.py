"""Fingerprints of the user's own code that a job uses: rewards, tasks, scorers, strategies, and what they import.

Code is the user's own if its file lies neither in Python's library nor among installed packages nor in ponder. The file
of every module that the job names counts, and of every own module that such a file imports, anywhere in it. Comments
and layout do not count. Neither does a function `recipe` that nothing else in its file uses: it returns the job, which
is compared itself. Of an installed package, only the file counts that the job names.

Data files that own code names in a text count too, from the current folder or from the folder of the code, unless that
code writes files: what it writes (a log) is not an input.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ponder.runs.environment import CODE_PREFIX
from ponder.runs.file_fingerprints import file_fingerprint
from ponder.user_modules import is_file

_PONDER_FOLDER = Path(__file__).resolve().parents[1]
_STDLIB_FOLDERS = {Path(p).resolve() for name in ("stdlib", "platstdlib") if (p := sysconfig.get_path(name))}
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
RECIPE_FUNCTION = "recipe"
MAX_FOLLOWED_MODULES = 500  # modules; more belong to a library under development
MAX_PATH_CHARS = 1024
WRITE_MODES = {kind + more for kind in "wax" for more in ("", "b", "t", "+", "b+", "+b", "t+", "+t")} | {
    "r+",
    "r+b",
    "rb+",
}


def code_fingerprints(modules: Iterable[str]) -> dict[str, str]:
    """Fingerprints of those modules and `.py` files that are not ponder's or Python's, of the own modules that they
    import, and of the data files that these name."""
    marks: dict[str, str] = {}
    waiting = list(dict.fromkeys(modules))
    for name in waiting:  # grows as it goes
        file = _module_file(name)
        if file is None or file.is_relative_to(_PONDER_FOLDER) or _in_stdlib(file):
            continue
        own = _parse_without_recipe(file.read_bytes())
        if own is None:
            marks[f"{CODE_PREFIX}{name}"] = file_fingerprint(file)
            continue
        marks[f"{CODE_PREFIX}{name}"] = own.fingerprint
        if not _is_installed(file):
            marks |= {
                f"the file {path.name} that {name} reads": file_fingerprint(path)
                for path in _data_files_named(own.texts, file.parent)
            }
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            imported = dict.fromkeys(_imported_modules(own.imports, package))
            more = [module for module in imported if module not in waiting and _is_user_module(module)]
            waiting += more[: max(0, MAX_FOLLOWED_MODULES - len(waiting))]
    return marks


def _is_user_module(name: str) -> bool:
    file = _module_file(name)
    return file is not None and not (file.is_relative_to(_PONDER_FOLDER) or _in_stdlib(file) or _is_installed(file))


def _in_stdlib(file: Path) -> bool:
    return not _is_installed(file) and any(file.is_relative_to(place) for place in _STDLIB_FOLDERS)


def _is_installed(file: Path) -> bool:
    return any(part in _PACKAGE_FOLDERS for part in file.parts)


def _module_file(name: str) -> Path | None:
    """The file of a module, without importing anything; None: built in, defined in a shell, or not there."""
    module = sys.modules.get(name)
    if is_file(name):
        files = [Path(name).expanduser()]
    elif module is not None:
        origin = getattr(module, "__file__", None)
        files = [Path(origin)] if origin else []
    elif "." in name:
        parent, _, own = name.rpartition(".")
        inside = [place / own for place in _package_folders(parent)]
        files = [path for place in inside for path in (place / "__init__.py", place.with_name(f"{own}.py"))]
    else:
        spec = find_spec(name)
        files = [Path(spec.origin)] if spec is not None and spec.origin else []
    return next((path.resolve() for path in files if path.is_file()), None)


def _package_folders(package: str) -> list[Path]:
    """The folders of a package's modules; none if it is no package."""
    module = sys.modules.get(package)
    if module is not None:
        return [Path(place) for place in getattr(module, "__path__", ())]
    parent, _, own = package.rpartition(".")
    if parent:
        return [place / own for place in _package_folders(parent) if (place / own).is_dir()]
    spec = find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []


@dataclass(frozen=True)
class OwnModule:
    """What counts of a module's source. `texts`: those that may name a data file; none if the module writes files.
    `imports`: module, level and names of each import, the level of a plain one being -1."""

    fingerprint: str
    texts: tuple[str, ...]
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]


@lru_cache(maxsize=64)  # the stages of a recipe name the same modules
def _parse_without_recipe(source: bytes) -> OwnModule | None:
    """A module without a recipe that only builds the job; None if it does not parse."""
    collects = gc.isenabled()
    gc.disable()  # a finalizer may parse too, and CPython 3.11 cannot parse while it parses
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    finally:
        if collects:
            gc.enable()
    rest = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == RECIPE_FUNCTION)]
    if not any(isinstance(node, ast.Name) and node.id == RECIPE_FUNCTION for top in rest for node in ast.walk(top)):
        tree.body = rest
    nodes = list(ast.walk(tree))
    writes = any(_looks_like_write(node) for node in nodes if isinstance(node, ast.Call))
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return OwnModule(
        hashlib.blake2b(ast.unparse(tree).encode(), digest_size=12).hexdigest(),
        () if writes else tuple(sorted(filter(_may_be_path, texts))),
        tuple(found for node in nodes for found in _imports_of(node)),
    )


def _imports_of(node: ast.AST) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, -1, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or "", node.level, tuple(alias.name for alias in node.names)


def _imported_modules(imports: Iterable[tuple[str, int, tuple[str, ...]]], package: str) -> Iterator[str]:
    """Names of modules that a module may import. Some may be objects in a module."""
    for base, level, names in imports:
        if level > 0:
            above = package.split(".") if package else []
            base = ".".join([*above[: len(above) - level + 1], *filter(None, [base])])
        yield from _with_parent_packages(base)
        yield from (f"{base}.{name}" for name in names if base and name != "*")


def _with_parent_packages(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _may_be_path(text: str) -> bool:
    return "." in text and len(text) <= MAX_PATH_CHARS and "\n" not in text and "\0" not in text


def _data_files_named(texts: Iterable[str], home: Path) -> Iterator[Path]:
    """Files that these texts name."""
    for text in texts:
        for path in (Path(text).expanduser(), home / text):
            with contextlib.suppress(OSError, RuntimeError):  # no home folder
                if path.is_file() and path.suffix != ".py":
                    yield path
                    break


def _looks_like_write(call: ast.Call) -> bool:
    """Whether a call looks as if it wrote a file."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("write_text", "write_bytes", "dump", "save", "to_csv", "to_json", "FileHandler", "basicConfig"):
        return True
    modes = [*call.args, *(k.value for k in call.keywords)] if name == "open" else []
    return any(isinstance(m, ast.Constant) and m.value in WRITE_MODES for m in modes)
