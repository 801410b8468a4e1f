"""A function's signature is its command line: names, types, defaults and `Annotated[..., "help"]` become flags.

    def train(task: str, /, *, steps: int = 100, lr: Annotated[float, "learning rate"] = 1e-5) -> ...

Parameters before `/` are given by place, as are `*runs`, of which there is one or more; all others as `--steps 200`.
Commands and recipes are both read this way.

A flag that means something only beside another says so with `When`, and is refused elsewhere:

    def plot(kind: str, /, *, cost: Annotated[str | None, "what pareto pays in", When("kind", "pareto")] = None) -> ...

A dataclass whose setting means something only beside another says so in `unused()`: by name, why each of them changes
nothing as the others stand. `build` refuses those that were given.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from ponder.errors import UnknownName, UsageError

T = TypeVar("T")

_TRUE_WORDS, _FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NUMBER_TYPES: dict[Any, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class When:
    """A condition on another parameter (of several, on any of them): it has one of these values, or none of those in
    `other_than`; or, where no value is named, it was given at all."""

    parameter: str | tuple[str, ...]
    values: tuple[Any, ...]
    other_than: tuple[Any, ...]

    def __init__(self, parameter: str | tuple[str, ...], *values: Any, other_than: tuple[Any, ...] = ()) -> None:
        object.__setattr__(self, "parameter", parameter)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "other_than", other_than)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.parameter,) if isinstance(self.parameter, str) else self.parameter

    def is_met(self, value: Any) -> bool:
        if self.values:
            return value in self.values
        return value not in self.other_than if self.other_than else value not in (None, "", [], (), False)


@dataclass(frozen=True)
class GreaterThan:
    """A parameter that must be larger than this, where one is given."""

    bound: float


class Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is raised as one sentence, with the nearest names."""

    def __init__(self, prog: str, description: str = "") -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_HelpFormatter)

    def error(self, message: str) -> NoReturn:
        said = message.removeprefix("argument ")
        raise UsageError(f"{said}{' ' if said.endswith('?') else '; '}see `{self.prog} --help`")

    def add_parameters_of(self, function: Callable[..., Any]) -> Parser:
        """Every parameter of this function, too."""
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            try:
                self._parameter(name, parameter, hints.get(name, _type_of_default(parameter.default)))
            except argparse.ArgumentError:
                raise UsageError(f"a recipe cannot have the parameter {name!r}: `{self.prog}` has that flag") from None
        return self

    def parse_given(self, argv: Sequence[str]) -> dict[str, Any]:
        """What was given, by parameter name; what was not given is left to the function's defaults."""
        given, extra = self.parse_known_args(list(argv))
        if extra:
            if not extra[0].startswith("-"):
                self.error(f"{extra[0]!r} is one argument too many")
            self.error(self._no_flag(extra[0].partition("=")[0]))
        return vars(given)

    def _no_flag(self, given: str) -> str:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        known = [o[2:] for action in shown for o in action.option_strings if o.startswith("--")]
        close = difflib.get_close_matches(given.lstrip("-"), known, n=2, cutoff=0.6)
        return f"no flag {given}" + (f", did you mean --{' or --'.join(close)}?" if close else "")

    def _parameter(self, name: str, parameter: inspect.Parameter, hint: Any) -> None:
        kind, text = _split_annotated(hint)
        default, required = parameter.default, parameter.default is inspect.Parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY:
            more: dict[str, Any] = {} if required else {"nargs": "?", "default": default}
            self.add_argument(name, type=_argparse_type(name, kind), help=text, metavar=name.upper(), **more)
            return
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.add_argument(
                name, type=_argparse_type(name, kind), help=text, metavar=name.upper().rstrip("S"), nargs="+"
            )
            return
        flag = name.replace("_", "-")
        common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "required": required}
        if kind is bool:
            for option, value in ((f"--{flag}", True), (f"--no-{flag}", False)):
                shown = text if value is not default else argparse.SUPPRESS  # show the one that changes something
                action = "store_true" if value else "store_false"
                self.add_argument(option, action=action, help=shown, dest=name, default=argparse.SUPPRESS)
            return
        if get_origin(kind) is list:
            common["action"] = "append"
            (kind,) = get_args(kind)
        note = (
            "required"
            if required
            else ""
            if default is None or default == []
            else f"default {_format_default(default)}"
        )
        text = " ".join(filter(None, [text, f"({note})" if note else ""])).replace("%", "%%")
        self.add_argument(
            f"--{flag}", type=_argparse_type(name, kind), metavar=_metavar(kind), help=text or " ", **common
        )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def run_command(function: Callable[..., T], argv: Sequence[str], prog: str) -> T:
    """Run a function with the arguments that a command line gives it."""
    given = Parser(prog, inspect.getdoc(function) or "").add_parameters_of(function).parse_given(argv)
    return call_with_flags(function, given)


def check_conditions(function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse what was given and cannot be, or means nothing beside the rest."""
    parameters = inspect.signature(function).parameters
    for name, hint in get_type_hints(function, include_extras=True).items():
        if name not in given:
            continue
        for condition in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(condition, GreaterThan) and given[name] is not None and not given[name] > condition.bound:
                said = _flag_name(parameters, name)
                raise UsageError(f"{said} is {given[name]}; it must be above {condition.bound:g}")
            if isinstance(condition, When):
                values = {n: given.get(n, parameters[n].default) for n in condition.names}
                if not any(map(condition.is_met, values.values())):
                    raise UsageError(_condition_message(parameters, name, condition, values))


def _condition_message(
    parameters: Mapping[str, inspect.Parameter], name: str, condition: When, values: Mapping[str, Any]
) -> str:
    """Which flag means nothing, beside what it would, and what to do."""
    first, value = next(iter(values.items()))
    if not condition.values and not condition.other_than:
        others = " or ".join(_flag_name(parameters, n) for n in values)
        return f"{_flag_name(parameters, name)} means nothing without {others}: give that too, or leave it out"
    if condition.values:
        wanted = f"is for {_flag_name(parameters, first)} {' or '.join(map(str, condition.values))}"
    else:
        wanted = "means nothing"
    return f"{_flag_name(parameters, name)} {wanted}: leave it out with {_flag_name(parameters, first)} {value}"


def _flag_name(parameters: Mapping[str, inspect.Parameter], name: str) -> str:
    placed = parameters[name].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return name.upper() if placed else f"--{name.replace('_', '-')}"


def call_with_flags(function: Callable[..., T], given: dict[str, Any]) -> T:
    """Call a function with those of the given arguments that it has."""
    check_conditions(function, given)
    parameters = inspect.signature(function).parameters
    placed = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in given]
    several = [n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL and n in given]
    named = {n: v for n, v in given.items() if n in parameters and n not in placed + several}
    return function(*(given[n] for n in placed), *(v for n in several for v in given[n]), **named)


def parse_value(hint: Any, text: str) -> Any:
    """The value that this text is, for a parameter or field of this type; ValueError says why it is none."""
    kind, _ = _split_annotated(hint)
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        own = next(k for k in inside if k is not type(None))
        if type(None) in inside and text.lower() == "none" and text not in get_args(own):
            return None
        return parse_value(own, text)
    if origin is Literal:
        known = {str(value): value for value in inside}
        if text not in known:
            raise ValueError(f"{text!r} is not one of {', '.join(known)}")
        return known[text]
    if origin is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        each = [inside[0]] * len(parts) if inside[1:] == (...,) else list(inside)
        if len(each) != len(parts):
            raise ValueError(f"{text!r} has {len(parts)} values, not {len(each)}")
        return tuple(parse_value(k, part) for k, part in zip(each, parts, strict=True))
    if kind is bool:
        if text.lower() not in _TRUE_WORDS + _FALSE_WORDS:
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in _TRUE_WORDS
    if kind in _NUMBER_TYPES:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {_NUMBER_TYPES[kind]}") from None
    if kind in (str, Path, Any):
        return text if kind is Any else kind(text)
    raise ValueError(f"a value of type {getattr(kind, '__name__', kind)} cannot be given as text")


def build_with_settings(kind: str, thing: Any, settings: Sequence[str], flag: str = "--set") -> Any:
    """A dataclass (or an object of one) with `key=value` settings, each read by its field's type.

    `flag`: where the user gave them.
    """
    if not is_dataclass(thing):
        if settings:
            raise UsageError(f"this {kind} takes no settings: leave out {flag} {settings[0]}")
        return thing() if isinstance(thing, type) else thing
    known: dict[str, Field[Any]] = {f.name: f for f in fields(thing) if f.init}
    hints = get_type_hints(thing if isinstance(thing, type) else type(thing))
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"{flag} takes key=value, not {setting!r}")
        if key not in known:
            raise UnknownName(f"{kind} setting", key, known)
        try:
            given[key] = parse_value(hints[key], text)
        except ValueError as why:
            raise UsageError(f"{flag} {key}: {why}") from None
    if isinstance(thing, type):
        for name, f in known.items():
            if name not in given and f.default is MISSING and f.default_factory is MISSING:
                raise UsageError(f"this {kind} needs {flag} {name}=...")
    made = thing(**given) if isinstance(thing, type) else replace(thing, **given)
    for name, reason in made.unused().items() if hasattr(made, "unused") else ():
        if name in given:
            raise UsageError(f"{flag} {name} changes nothing: {reason}")
    return made


def _type_of_default(default: Any) -> Any:
    """The type of a parameter that names none."""
    return str if default is None or default is inspect.Parameter.empty else type(default)


def _split_annotated(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is not Annotated:
        return hint, ""
    kind, *notes = get_args(hint)
    return kind, " ".join(n for n in notes if isinstance(n, str))


def _argparse_type(name: str, kind: Any) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse_value(kind, text)
        except ValueError as why:
            raise argparse.ArgumentTypeError(str(why)) from None

    return convert


def _metavar(kind: Any) -> str:
    inside = [k for k in get_args(kind) if k is not type(None)]
    if get_origin(kind) in (Union, types.UnionType):
        return _metavar(inside[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, inside))
    if get_origin(kind) is tuple:
        return ",".join(_metavar(k) for k in inside if k is not ...)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _format_default(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(_format_default, default)) or "none"
    return repr(default) if isinstance(default, str) and (not default or " " in default) else str(default)
