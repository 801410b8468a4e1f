"""Recipes: Python files whose function `recipe(...)` returns a job. By path, or by the name of a shipped one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ponder
from ponder.errors import PonderError, UnknownName, UsageError
from ponder.user_errors import describe_error, error_location

Recipe = Callable[..., Any]


def recipe_folders() -> list[Path]:
    """Where shipped recipes lie: inside an installed package, or at the root of a checkout."""
    package = Path(ponder.__file__).parent
    return [f for f in (package / "recipes", package.parents[1] / "recipes") if f.is_dir()]


def shipped_recipes() -> dict[str, Path]:
    recipes: dict[str, Path] = {}
    for folder in recipe_folders():
        for path in sorted(folder.glob("*.py")):
            if not path.name.startswith("_"):
                recipes.setdefault(path.stem, path)
    return recipes


def find_recipe(name: str) -> Path:
    """The file of a recipe."""
    path = Path(name).expanduser()
    if path.suffix == ".py" and path.is_file():
        return path
    known = shipped_recipes()
    if name in known:
        return known[name]
    hint = "Or give a .py file with a function recipe(...), or a run directory."
    raise UnknownName("recipe", name, known, hint)


def load_recipe(path: Path) -> Recipe:
    """The function `recipe` of a file. The file's folder is importable, so that recipes may share code."""
    recipe = getattr(_import_recipe_file(path), "recipe", None)
    if not callable(recipe):
        raise UsageError(f"{path} has no function recipe(...): write one that returns a job")
    return recipe


def recipe_description(recipe: Recipe) -> str:
    """What the file and the function say of themselves."""
    module = sys.modules.get(recipe.__module__)
    texts = [text.strip() for text in ((module and module.__doc__) or "", recipe.__doc__ or "") if text.strip()]
    return "\n\n".join(dict.fromkeys(texts))


def build_job(recipe: Recipe, given: dict[str, Any]) -> Any:
    from dataclasses import is_dataclass

    try:
        job = recipe(**given)
    except PonderError:
        raise
    except (Exception, SystemExit) as why:
        if not error_location(why):  # a bug of ponder's own
            raise
        raise UsageError(f"the recipe cannot make its job: {describe_error(why)}") from why
    if not (is_dataclass(job) and callable(job) and not isinstance(job, type)):
        raise UsageError(f"recipe(...) must return a job such as RL(...) or Evaluate(...), not {type(job).__name__}")
    return job


def _import_recipe_file(path: Path) -> ModuleType:
    name = path.stem
    if name in sys.stdlib_module_names or name == "ponder" or not name.isidentifier():
        raise UsageError(f"{path} would hide the module {name!r}: give the recipe another name (letters, digits and _)")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and job.json look their module up by name
    add_to_import_path([path.resolve().parent])
    try:
        spec.loader.exec_module(module)
    except SyntaxError as why:
        line = f", line {why.lineno}" if why.lineno else ""  # none: it is no text at all, or its encoding is unknown
        raise UsageError(f"{why.filename or path}{line}: {why.msg}") from None
    except ImportError as why:
        raise UsageError(f"{path} cannot be loaded: {why}") from None
    except PonderError:
        raise
    except (Exception, SystemExit) as why:  # the recipe's own code
        raise UsageError(f"{path} cannot be loaded: {describe_error(why)}") from why
    return module


def add_to_import_path(more: list[Path]) -> None:
    """Make modules in these folders importable."""
    sys.path += [str(f) for f in more if str(f) not in sys.path]


def recipes_help() -> str:
    """What `ponder run --help` prints."""
    known = shipped_recipes()
    width = max(map(len, known), default=0)
    listed = [f"  {name:<{width}}  {_recipe_headline(path)}" for name, path in known.items()]
    return "\n".join(
        [
            "usage: ponder run RECIPE [--run DIR] [--json] [the recipe's flags]",
            "",
            "RECIPE is a .py file with a function recipe(...) that returns a job, a run directory, or one of these:",
            "",
            *(listed or ["  (none are installed)"]),
            "",
            "`ponder run RECIPE --help` lists its flags. The run directory is runs/RECIPE unless --run names another.",
            "A run directory that names code of its own, not ponder's, runs only with --trust.",
        ]
    )


def _recipe_headline(path: Path) -> str:
    """The first line of a recipe's docstring, without running it."""
    import ast

    try:
        return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    except (OSError, SyntaxError) as why:
        print(f"{path}: {why}", file=sys.stderr)
        return ""
