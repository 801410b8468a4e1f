"""A function's signature is its command line: names, types, defaults and `Annotated[..., "help"]` become flags.

    def train(task: str, /, *, steps: int = 100, lr: Annotated[float, "learning rate"] = 1e-5) -> ...

Parameters before `/` are given by place, as are `*runs`, of which there is one or more; all others as `--steps 200`.
Commands and recipes are both read this way. ponder.settings has the markers that an annotation may carry:

    task_settings: Annotated[dict[str, str], SettingsOf("task")] = {}     # --task.digits 3 --task.level 2
    cost: Annotated[str | None, "what pareto pays in", When("kind", "pareto")] = None    # refused for other kinds

A dataclass whose setting counts only beside another says so in `unused()`: by name, why each of them changes nothing
as the others stand. `build_with_settings` refuses those that were given.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from ponder.cli import schema
from ponder.errors import UnknownName, UsageError
from ponder.settings import GreaterThan, Named, SettingsOf, When

T = TypeVar("T")

_TRUE_WORDS, _FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NUMBER_TYPES: dict[Any, str] = {int: "a whole number", float: "a number"}


class Parser(argparse.ArgumentParser):
    """argparse, but an error is raised as one sentence with the nearest names, and flags may be dotted."""

    def __init__(self, prog: str, description: str = "") -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_HelpFormatter)
        self._prefixes: dict[str, str] = {}  # the prefix of dotted flags -> the parameter that takes them
        self._parameters: list[schema.Parameter] = []

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        raise UsageError(f"{text}{' ' if text.endswith('?') else '; '}see `{self.prog} --help`")

    def add_parameters_of(self, function: Callable[..., Any]) -> Parser:
        """Add a flag for every parameter of this function."""
        return self.add_signature(schema.live_signature(function))

    def add_signature(self, signature: schema.Signature) -> Parser:
        """Add a flag for every parameter of this signature."""
        self._parameters += signature.parameters
        for parameter in signature.parameters:
            try:
                self._add_parameter(parameter)
                if parameter.name == "run":
                    self._add_config_flags()
            except argparse.ArgumentError:
                flag = parameter.name
                raise UsageError(f"a recipe cannot have the parameter {flag!r}: `{self.prog}` has that flag") from None
        return self

    def parse_given(self, argv: Sequence[str]) -> dict[str, Any]:
        """The arguments that were given, by parameter name; the others are left to the function's defaults."""
        argv = self._with_config(self._place_first(argv))
        argv, settings = self._take_dotted(argv)
        optional_place = any(action.nargs == "?" and not action.option_strings for action in self._actions)
        parse = self.parse_known_intermixed_args if optional_place else self.parse_known_args
        given, extra = parse(argv)
        if extra:
            if not extra[0].startswith("-"):
                self.error(f"{extra[0]!r} is one argument too many")
            self.error(self._unknown_flag(extra[0].partition("=")[0]))
        out = vars(given) | settings
        if out.pop("print_config", False):
            from ponder.cli.config_files import config_text

            print(config_text(out, self._parameters), end="")
            self.exit()
        return out

    def _place_first(self, argv: Sequence[str]) -> list[str]:
        """The arguments, with the first by place in front where it was given as a flag: `--task sql` for `sql`."""
        words, name = list(argv), next((p.name for p in self._parameters), "")
        flag = f"--{name}"
        if not any(action.dest == name and not action.option_strings for action in self._actions):
            return words
        at = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
        if at is None:
            return words
        value = words[at].partition("=")[2] or next(iter(words[at + 1 :]), "--")
        if value.startswith("--"):
            self.error(f"{flag}: expected one argument")
        return [value, *words[:at], *words[at + (1 if "=" in words[at] else 2) :]]

    def _add_config_flags(self) -> None:
        about = "a YAML or JSON file of flags; those given here override it"
        self.add_argument("--config", metavar="PATH", default=argparse.SUPPRESS, help=about)
        about = "print such a file, and do nothing"
        self.add_argument("--print-config", action="store_true", default=argparse.SUPPRESS, help=about)

    def _with_config(self, argv: Sequence[str]) -> list[str]:
        """The arguments with those of a `--config FILE` before them."""
        words = list(argv)
        at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
        if at is None or not any(p.name == "run" for p in self._parameters):
            return words
        from ponder.cli.config_files import config_places, config_words, read_config

        flag, equals, value = words.pop(at).partition("=")
        if not equals:
            if at == len(words) or words[at].startswith("--"):
                self.error(f"{flag}: expected one argument")
            value = words.pop(at)
        config = read_config(Path(value))
        given = config_words(config, self._parameters, Path(value)) + words
        plain, _ = self._take_dotted(given)
        return (config_places(config, self._parameters) if not self._has_places(plain) else []) + given

    def _has_places(self, words: Sequence[str]) -> bool:
        """Whether something is given by place."""
        switches = {o for a in self._actions if a.nargs == 0 for o in a.option_strings}
        before = ""
        for word in words:
            is_value = before.startswith("--") and "=" not in before and before not in switches
            if not word.startswith("-") and not is_value:
                return True
            before = "" if is_value else word
        return False

    def _take_dotted(self, argv: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
        """Split `--PREFIX.NAME VALUE` and `--PREFIX.NAME=VALUE` from the other arguments."""
        rest: list[str] = []
        settings: dict[str, dict[str, str]] = {}
        words = iter(argv)
        for word in words:
            flag, equals, value = word.partition("=")
            prefix, dot, name = flag.removeprefix("--").partition(".")
            if not (word.startswith("--") and dot and prefix in self._prefixes):
                rest.append(word)
                continue
            text = value if equals else next(words, None)
            if not name or text is None or (not equals and text.startswith("--")):
                self.error(f"{flag}: expected one argument")
            settings.setdefault(self._prefixes[prefix], {})[name.replace("-", "_")] = text
        return rest, settings

    def _unknown_flag(self, given: str) -> str:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        known = [o[2:] for action in shown for o in action.option_strings if o.startswith("--")]
        close = difflib.get_close_matches(given.lstrip("-"), known, n=2, cutoff=0.6)
        return f"no flag {given}" + (f", did you mean --{' or --'.join(close)}?" if close else "")

    def _add_parameter(self, parameter: schema.Parameter) -> None:
        name, default, required = parameter.name, parameter.default, parameter.required
        kind, text, markers = split_annotated(parameter.hint)
        dotted = next((m for m in markers if isinstance(m, SettingsOf)), None)
        if dotted is not None:
            self._add_dotted(name, dotted, text)
            return
        for named in (m for m in markers if isinstance(m, Named) and m.listed):
            text = "; ".join(filter(None, [", ".join(schema.table_names(*named.tables)), text]))
        common: dict[str, Any] = {"type": _argparse_type(kind), "help": text.replace("%", "%%") or " "}
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            common["type"] = _positional_type(name, kind)
            more: dict[str, Any] = {} if required else {"nargs": "?", "default": default}
            self.add_argument(name, metavar=name.upper(), **common, **more)
            return
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            self.add_argument(name, metavar=name.upper().removesuffix("S"), nargs="+", **common)
            return
        flag = name.replace("_", "-")
        if kind is bool:
            for option, value in ((f"--{flag}", True), (f"--no-{flag}", False)):
                shown = common["help"] if value is not default else argparse.SUPPRESS  # the one that changes something
                action = "store_true" if value else "store_false"
                self.add_argument(option, action=action, help=shown, dest=name, default=argparse.SUPPRESS)
            return
        common |= {"dest": name, "default": argparse.SUPPRESS, "required": required}
        if get_origin(kind) is list:
            (kind,) = get_args(kind)
            common |= {"action": "append", "type": _argparse_type(kind)}
        if default is None:
            text = _without_none(text)
        common["help"] = _with_note(text, "required" if required else _default_note(default))
        self.add_argument(f"--{flag}", metavar=metavar(kind), **common)

    def _add_dotted(self, name: str, settings: SettingsOf, text: str) -> None:
        """Take `--PREFIX.NAME VALUE`; help lists the fields of the class where it is known."""
        prefix = settings.prefix
        self._prefixes[prefix] = name
        if not settings.target:
            self.add_argument(f"--{prefix}.NAME", metavar="VALUE", help=text or " ", default=argparse.SUPPRESS)
            return
        group = self.add_argument_group(prefix, text or None)
        for field in schema.read_fields(settings.target):
            if field.name in settings.have_flags:
                continue
            kind, about, _ = split_annotated(field.hint)
            about = _without_none(about) if field.default is None else about
            note = _with_note(about, "" if field.required else _default_note(field.default))
            shown = f"--{prefix}.{field.name.replace('_', '-')}"
            group.add_argument(shown, metavar=metavar(kind), help=note, default=argparse.SUPPRESS)


def _default_note(default: Any) -> str:
    return "" if default is None or default == [] else f"default {_format_default(default)}"


def _without_none(text: str) -> str:
    """What a value of None means is, on a command line, what happens without the flag."""
    return re.sub(r"\bNone: ", "default: ", text)


def _with_note(text: str, note: str) -> str:
    return " ".join(filter(None, [text, f"({note})" if note else ""])).replace("%", "%%") or " "


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
                flag = _flag_name(parameters, name)
                raise UsageError(f"{flag} is {given[name]}; it must be above {condition.bound:g}")
            if isinstance(condition, When):
                values = {n: given.get(n, parameters[n].default) for n in condition.names}
                if not any(map(condition.is_met, values.values())):
                    raise UsageError(
                        _condition_message(parameters, _given_flag(parameters, name, given), condition, values)
                    )


def _condition_message(
    parameters: Mapping[str, inspect.Parameter], flag: str, condition: When, values: Mapping[str, Any]
) -> str:
    """Which flag means nothing, beside which it would, and what to do."""
    first, value = next(iter(values.items()))
    if not condition.values and not condition.other_than:
        others = " or ".join(_flag_name(parameters, n) for n in values)
        return f"{flag} means nothing without {others}: give that too, or leave it out"
    if condition.values:
        reason = f"is for {_flag_name(parameters, first)} {' or '.join(map(str, condition.values))}"
    else:
        reason = "means nothing"
    return f"{flag} {reason}: leave it out with {_flag_name(parameters, first)} {value}"


def _given_flag(parameters: Mapping[str, inspect.Parameter], name: str, given: Mapping[str, Any]) -> str:
    """The flag as it was given: of dotted settings the first."""
    settings = given[name]
    own = _flag_name(parameters, name)
    return f"{own}.{next(iter(settings))}" if isinstance(settings, Mapping) and settings else own


def _flag_name(parameters: Mapping[str, inspect.Parameter], name: str) -> str:
    parameter = parameters[name]
    by_place = parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return name.upper() if by_place else f"--{name.removesuffix('_settings').replace('_', '-')}"


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
    kind = split_annotated(hint)[0]
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


def build_with_settings(kind: str, thing: Any, settings: Mapping[str, Any], prefix: str) -> Any:
    """A dataclass (or an object of one) with these settings; text is parsed by its field's type.

    A dotted name reaches into a nested dataclass: `kl.beta`. The user gave them as `--PREFIX.NAME VALUE`.
    """
    if not is_dataclass(thing):
        if settings:
            raise UsageError(f"this {kind} takes no settings: leave out --{prefix}.{next(iter(settings))}")
        return thing() if isinstance(thing, type) else thing
    known: dict[str, Field[Any]] = {f.name: f for f in fields(thing) if f.init}
    hints = get_type_hints(thing if isinstance(thing, type) else type(thing))
    given: dict[str, Any] = {}
    for name, inner in _by_first_part(settings).items():
        if name not in known:
            raise UnknownName(f"{kind} setting", name, known)
        if not isinstance(inner, dict):
            try:
                given[name] = parse_value(hints[name], inner) if isinstance(inner, str) else inner
            except ValueError as why:
                raise UsageError(f"--{prefix}.{name}: {why}") from None
            continue
        nested = _nested_dataclass(thing, known[name], hints[name])
        if nested is None:
            raise UsageError(f"--{prefix}.{name} is a single value: --{prefix}.{name}.{next(iter(inner))} names none")
        given[name] = build_with_settings(f"{kind}'s {name}", nested, inner, f"{prefix}.{name}")
    if isinstance(thing, type):
        for name, f in known.items():
            if name not in given and f.default is MISSING and f.default_factory is MISSING:
                raise UsageError(f"this {kind} needs --{prefix}.{name} ...")
    built = thing(**given) if isinstance(thing, type) else replace(thing, **given)
    for name, reason in built.unused().items() if hasattr(built, "unused") else ():
        if name in given:
            raise UsageError(f"--{prefix}.{name} changes nothing: {reason}")
    return built


def _by_first_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"kl.beta": "1", "clip": "2"}` as `{"kl": {"beta": "1"}, "clip": "2"}`."""
    out: dict[str, Any] = {}
    for path, text in settings.items():
        name, dot, rest = path.partition(".")
        if not dot:
            out.setdefault(name, text)
            continue
        inner = out.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{name} is given as a whole and in parts ({path}): leave one of them out")
        inner[rest] = text
    return out


def _nested_dataclass(thing: Any, field: Field[Any], hint: Any) -> Any:
    """What a nested setting changes: the field's value or default, else the dataclass that its type names."""
    if not isinstance(thing, type):
        value = getattr(thing, field.name)
    else:
        value = field.default_factory() if field.default_factory is not MISSING else field.default
    if is_dataclass(value):
        return value
    return next((kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind)), None)


def split_annotated(hint: Any) -> tuple[Any, str, tuple[Any, ...]]:
    """The type, the help text, and the markers of an annotation."""
    if get_origin(hint) is not Annotated:
        return hint, "", ()
    kind, *notes = get_args(hint)
    text = " ".join(n for n in notes if isinstance(n, str))
    return kind, text, tuple(n for n in notes if not isinstance(n, str))


def _argparse_type(kind: Any) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse_value(kind, text)
        except ValueError as why:
            raise argparse.ArgumentTypeError(str(why)) from None

    return convert


def _positional_type(name: str, kind: Any) -> Callable[[str], Any]:
    """As `_argparse_type`; a path in place of a choice is told that the choice comes before it."""
    convert = _argparse_type(kind)

    def convert_or_explain(text: str) -> Any:
        if get_origin(kind) is Literal and text not in map(str, get_args(kind)) and Path(text).exists():
            choices = ", ".join(map(str, get_args(kind)))
            raise argparse.ArgumentTypeError(
                f"{text!r} is a path, and {name.upper()} comes before it: one of {choices}"
            )
        return convert(text)

    return convert_or_explain


def metavar(kind: Any) -> str:
    inside = [k for k in get_args(kind) if k is not type(None)]
    if get_origin(kind) in (Union, types.UnionType):
        return metavar(inside[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, inside))
    if get_origin(kind) is tuple:
        return ",".join(metavar(k) for k in inside if k is not ...)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _format_default(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(_format_default, default)) or "none"
    return repr(default) if isinstance(default, str) and (not default or " " in default) else str(default)
