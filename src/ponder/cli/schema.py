"""The signatures of commands, recipes and settings, read from source without importing it.

`ponder train --help`, completion and the check of flags need names, types, defaults and help texts. Importing the
command, or a recipe, would import torch, which takes seconds. Here a small interpreter reads the annotations and
defaults from the syntax tree and follows imports inside ponder and beside a recipe. What it does not understand raises
`Unreadable`, and the caller imports the function and takes `live_signature` instead.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import ponder
from ponder import settings

REQUIRED = inspect.Parameter.empty

_PACKAGE = Path(ponder.__file__).parent
_TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": tuple, "dict": dict, "Any": Any,
    "Path": Path, "Annotated": Annotated, "Literal": Literal, "Mapping": dict,
}  # fmt: skip
_MARKERS = {kind.__name__: kind for kind in (settings.When, settings.GreaterThan, settings.Named, settings.SettingsOf)}


class Unreadable(Exception):
    """The source says something that only running it can tell."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function, or one field of a dataclass."""

    name: str
    hint: Any
    default: Any = REQUIRED
    kind: Any = inspect.Parameter.KEYWORD_ONLY

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    parameters: tuple[Parameter, ...]
    doc: str = ""

    def named(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)


def live_signature(function: Callable[..., Any]) -> Signature:
    """The signature of a function that is imported already."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    read = (Parameter(p.name, hints.get(p.name, _type_of_default(p.default)), p.default, p.kind) for p in parameters)
    return Signature(tuple(read), inspect.getdoc(function) or "")


def read_signature(target: str) -> Signature:
    """The signature of a function from its source: `ponder.cli.compare:compare`, `recipes/grpo.py:recipe`."""
    module, node = _find(target)
    if not isinstance(node, ast.FunctionDef):
        raise Unreadable(f"{target} is no function")
    return Signature(tuple(_parameters(module, node)), ast.get_docstring(node) or "")


def read_decorator(target: str, name: str) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments of a function's decorator `@name(...)`; None where it has none."""
    module, node = _find(target)
    for one in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == name:
            named = {k.arg: module.value(k.value) for k in one.keywords if k.arg}
            return [module.value(a) for a in one.args], named
    return None


def _parameters(module: _Module, node: ast.FunctionDef) -> Iterator[Parameter]:
    args = node.args
    by_place = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [*[None] * (len(by_place) - len(args.defaults)), *args.defaults]
    for i, (arg, default) in enumerate(zip(by_place, defaults, strict=True)):
        only = i < len(args.posonlyargs)
        kind = inspect.Parameter.POSITIONAL_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        yield module.parameter(arg, default, kind)
    if args.vararg is not None:
        yield module.parameter(args.vararg, None, inspect.Parameter.VAR_POSITIONAL)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield module.parameter(arg, default, inspect.Parameter.KEYWORD_ONLY)


def read_module_doc(target: str) -> str:
    return ast.get_docstring(_find(target)[0].tree) or ""


def read_fields(target: str) -> list[Parameter]:
    """The fields of a dataclass that can be given as text or by name, those of its bases first.

    A field that holds an object is among them if its annotation has a marker: `Named`, or `SettingsOf`. Its default is
    then what the source gives to the object's class (`AdamW(lr=1e-5)`: {"lr": 1e-5}).
    """
    module, node = _find(target)
    if not isinstance(node, ast.ClassDef):
        raise Unreadable(f"{target} is no class")
    return list(_fields(module, node).values())


def table_names(*tables: str) -> list[str]:
    """The names in tables such as `ponder.tasks:TASKS`: the literal keys of a dict, `**OTHER` followed."""
    return [name for table in tables for name in _table(*_find(table))]


def table_fields(name: str, *tables: str) -> list[Parameter]:
    """The fields of the class that a table has under this name; none where it holds something else."""
    for table in tables:
        entry = _table(*_find(table)).get(name)
        if entry is not None and isinstance(entry[1], ast.Name):
            module, node = entry[0].resolve(entry[1].id)
            return list(_fields(module, node).values()) if isinstance(node, ast.ClassDef) else []
    return []


@dataclass
class _Module:
    """A source file that is read, not run."""

    path: Path
    tree: ast.Module
    names: dict[str, ast.AST] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[_Module, ast.AST]:
        """Where a name is defined, imports followed. A module itself is (module, its tree)."""
        node = self.names.get(name)
        if node is None:
            raise Unreadable(f"{self.path} does not define {name}")
        if not isinstance(node, ast.ImportFrom):
            return self, node
        original = next(a.name for a in node.names if (a.asname or a.name) == name)
        if inner := self._module(f"{node.module}.{original}", node.level):
            return inner, inner.tree
        source = self._module(node.module or "", node.level)
        if source is None:
            raise Unreadable(f"{name} comes from {node.module}")
        return source.resolve(original)

    def parameter(self, arg: ast.arg, default: ast.expr | None, kind: Any) -> Parameter:
        value = REQUIRED if default is None else self.value(default)
        hint = _type_of_default(value) if arg.annotation is None else self.value(arg.annotation)
        return Parameter(arg.arg, hint, value, kind)

    def value(self, node: ast.AST) -> Any:
        """The value of an annotation, a default or a constant."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._named(node.id)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                module, tree = self.resolve(owner)
                if not isinstance(tree, ast.Module):
                    raise Unreadable(f"{owner}.{name} is no name in a module")
                return module._named(name)
            case ast.Tuple() | ast.List():
                items = list(self._items(node.elts))
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                if None in node.keys:
                    raise Unreadable(f"{self.path}: {ast.unparse(node)}")
                return {self.value(k): self.value(v) for k, v in zip(node.keys, node.values, strict=True) if k}
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand)
            case ast.BinOp(op=ast.BitOr()):
                return self._union(node)
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *notes])):
                return self._annotated(kind, list(self._items(notes)))
            case ast.Subscript():
                return self.value(node.value)[self.value(node.slice)]
            case ast.Call(func=ast.Name() | ast.Attribute()):
                return self._call(node)
        raise Unreadable(f"{self.path}: {ast.unparse(node)}")

    def _union(self, node: ast.BinOp) -> Any:
        """What of `str | ScratchModel` can be given as text: the types that can be read."""
        sides = []
        for side in (node.left, node.right):
            with contextlib.suppress(Unreadable):
                sides.append(self.value(side))
        if not sides or sides == [None]:
            raise Unreadable(f"{self.path}: {ast.unparse(node)}")
        return sides[0] if len(sides) == 1 else sides[0] | sides[1]

    def _annotated(self, kind: ast.expr, notes: list[Any]) -> Any:
        try:
            inner = self.value(kind)
        except Unreadable:
            if not any(isinstance(note, settings.Named | settings.SettingsOf) for note in notes):
                raise
            inner = Any
        return Annotated[inner, *notes]

    def _items(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.value(node.value)
            else:
                yield self.value(node)

    def _call(self, node: ast.Call) -> Any:
        """A marker or a path; nothing else is called."""
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func).rpartition(".")[2]
        kind = Path if name == "Path" else _MARKERS.get(name)
        if kind is None:
            raise Unreadable(f"{self.path}: {ast.unparse(node)}")
        named = {k.arg: self.value(k.value) for k in node.keywords if k.arg}
        return kind(*self._items(node.args), **named)

    def _named(self, name: str) -> Any:
        if name in _TYPES and not isinstance(self.names.get(name), ast.Assign | ast.ClassDef):
            return _TYPES[name]
        module, node = self.resolve(name)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return module.value(node.value)
        raise Unreadable(f"{module.path}: {name} is no type or constant that can be read")

    def _module(self, name: str, level: int) -> _Module | None:
        parts = name.split(".")
        if level:
            at = self.path.parents[level - 1].joinpath(*parts)
        elif parts[0] == "ponder":
            at = _PACKAGE.joinpath(*parts[1:])
        else:
            at = self.path.parent.joinpath(*parts)  # beside a recipe
        return next((_parse(p) for p in (at.with_name(f"{at.name}.py"), at / "__init__.py") if p.is_file()), None)


_parsed: dict[Path, _Module] = {}


def _parse(path: Path) -> _Module:
    if path not in _parsed:
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (OSError, SyntaxError, ValueError) as why:
            raise Unreadable(f"{path}: {why}") from None
        module = _parsed[path] = _Module(path, tree)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                module.names |= {a.asname or a.name: node for a in node.names}
            elif isinstance(node, ast.Assign):
                module.names |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                module.names[node.target.id] = node
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                module.names[node.name] = node
    return _parsed[path]


def _find(target: str) -> tuple[_Module, Any]:
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        return _parse(Path(where)).resolve(name)
    at = _PACKAGE.joinpath(*where.split(".")[1:])
    path = next((p for p in (at.with_name(f"{at.name}.py"), at / "__init__.py") if p.is_file()), None)
    if path is None:
        raise Unreadable(f"there is no source of {where}")
    return _parse(path).resolve(name)


def _table(module: _Module, node: ast.AST) -> dict[str, tuple[_Module, ast.expr]]:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if not isinstance(value, ast.Dict):
        raise Unreadable(f"{module.path}: no literal table")
    out: dict[str, tuple[_Module, ast.expr]] = {}
    for key, entry in zip(value.keys, value.values, strict=True):
        if key is None and isinstance(entry, ast.Name):
            out |= _table(*module.resolve(entry.id))
        elif isinstance(key, ast.Constant):
            out[str(key.value)] = (module, entry)
    return out


def _fields(module: _Module, node: ast.ClassDef) -> dict[str, Parameter]:
    out: dict[str, Parameter] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in module.names:
            try:
                inside, parent = module.resolve(base.id)
            except Unreadable:
                continue
            if isinstance(parent, ast.ClassDef):
                out |= _fields(inside, parent)
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        name = line.target.id
        try:
            hint = module.value(line.annotation)
            default = _default(module, line.value, hint)
        except Unreadable:  # a nested object, or a constant of the class
            continue
        if not name.startswith("_"):
            out.pop(name, None)
            out[name] = Parameter(name, hint, default)
    return out


def _default(module: _Module, node: ast.expr | None, hint: Any) -> Any:
    """A field's default. Of an object, the arguments that its class is given."""
    if node is None:
        return REQUIRED
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "required":
            return REQUIRED
        if node.func.id == "field":
            given = next((k.value for k in node.keywords if k.arg == "default"), None)
            if given is None:
                raise Unreadable(f"{module.path}: {ast.unparse(node)}")
            return _default(module, given, hint)
        markers = getattr(hint, "__metadata__", ())
        if any(isinstance(m, settings.Named | settings.SettingsOf) for m in markers):
            return {k.arg: module.value(k.value) for k in node.keywords if k.arg}
    return module.value(node)


def _type_of_default(default: Any) -> Any:
    """The type of a parameter that names none."""
    return str if default is None or default is REQUIRED else type(default)
