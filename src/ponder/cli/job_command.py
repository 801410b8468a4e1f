"""A command whose flags are the fields of a job: names, types, defaults and help stand on the dataclass alone.

    @job_command("ponder.pipelines.rl:RL", place="task", aliases={"lr": "optimizer.lr"})
    def train(fields: dict[str, Any]) -> RL:
        return RL(**fields)

A field that holds an object says in its annotation how it is given: `Named`, an object of a table by its name, with
settings such as `--algorithm.clip_high 0.3`; `SettingsOf`, an object of one class by its settings: `--optimizer.eps`.
`place`: the field that is given without a flag. `aliases`: short flags for settings of such objects. The function's own
parameters are flags too, and replace a field of the same name. It gets the fields that were given, built, and returns
the job. Signatures are read from source (see schema.py), so that help imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from ponder.cli import flags, schema
from ponder.cli import shared_flags as opt
from ponder.cli.named_objects import build_named, settings_prefix
from ponder.cli.run_names import default_run_folder
from ponder.errors import UsageError
from ponder.registry import import_object
from ponder.settings import Named, SettingsOf

T = TypeVar("T")

RUN_FLAGS = (
    schema.Parameter("run", opt.RunDirectory, None),
    schema.Parameter("no_resume", opt.NoResume, False),
    schema.Parameter("json", opt.Json, False),
)
LOG_TO_FLAG = schema.Parameter("log_to", opt.LogTo, "")
RANKS_FLAG = schema.Parameter("ranks", opt.Ranks, 1)
CLUSTER_FLAG = schema.Parameter("cluster", opt.Cluster, "")
Fields = dict[str, Any]  # the fields of a job that were given, by name


class JobCommand:
    """A function that makes a job, and the flags it is made of. Calling it with flags gives the job to run."""

    def __init__(self, function: Callable[..., Any], job: str, place: str, aliases: Mapping[str, str]) -> None:
        functools.update_wrapper(self, function, ("__module__", "__name__", "__qualname__", "__doc__"), ())
        self._function, self._job, self._place, self._aliases = function, job, place, dict(aliases)

    @functools.cached_property
    def signature(self) -> schema.Signature:
        return command_signature(f"{self._function.__module__}:{self._function.__name__}")

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([
            inspect.Parameter(p.name, p.kind, default=p.default, annotation=p.hint) for p in self.signature.parameters
        ])  # fmt: skip

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {p.name: p.hint for p in self.signature.parameters}

    def __call__(self, *places: Any, **given: Any) -> Any:
        from ponder.cli.launch import JobLaunch

        given |= self._by_place(places)
        function = inspect.signature(self._function)
        own = {name: given.pop(name) for name in list(function.parameters) if name in given}
        of_run = [p for p in (*RUN_FLAGS, LOG_TO_FLAG, RANKS_FLAG, CLUSTER_FLAG) if p.name not in function.parameters]
        launch = {p.name: given.pop(p.name, p.default) for p in of_run}
        by_place = [n for n, p in function.parameters.items() if p.kind is p.POSITIONAL_ONLY and n in own]
        named = {name: value for name, value in own.items() if name not in by_place}
        result = self._function(self._build(given, function.parameters), *(own[n] for n in by_place), **named)
        if isinstance(result, int | JobLaunch):
            return result
        self._refuse_unused(result, {**given, **own})
        folder = launch["run"] or default_run_folder(result, *self._run_names({**given, **own}))
        no_resume = launch.get("no_resume", False)
        return JobLaunch(
            result, folder, launch["json"], no_resume, launch["log_to"], launch["ranks"], launch["cluster"]
        )

    def _by_place(self, places: tuple[Any, ...]) -> Fields:
        named = [p for p in self.signature.parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        out = {p.name: value for p, value in zip(named, places, strict=False)}
        if several := next((p for p in self.signature.parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None):
            out[several.name] = tuple(places[len(named) :])
        return out

    def _build(self, given: Mapping[str, Any], own: Collection[str]) -> Fields:
        """The fields of the job but for the function's own: names and settings as objects, others as given."""
        settings = _settings_by_field(given, self._aliases)
        out: Fields = {}
        for field in schema.read_fields(self._job):
            named, settings_of = _marker(field.hint, Named), _marker(field.hint, SettingsOf)
            inner = settings.get(field.name if named is None else settings_prefix(field.name, named), {})
            if field.name in own:
                continue
            if named is not None:
                name = given.get(field.name, named.default)
                if name is not None:
                    out[field.name] = build_named(field.name, named, name, inner)
                elif inner:
                    flag = field.name.replace("_", "-")
                    raise UsageError(f"--{flag}.{next(iter(inner))} means nothing without --{flag}: give that too")
            elif settings_of is not None:
                if inner:
                    out[field.name] = _with_settings(self._job, field.name, settings_of, inner)
            elif field.name in given:
                out[field.name] = given[field.name]
        return out

    def _refuse_unused(self, job: Any, given: Mapping[str, Any]) -> None:
        """Refuse a setting that was given and changes nothing beside the others."""
        settings = _settings_by_field(given, self._aliases)
        for path, reason in job.unused().items() if hasattr(job, "unused") else ():
            field, _, name = path.partition(".")
            if name in settings.get(field, {}) if name else field in given:
                raise UsageError(f"--{path.replace('_', '-')} changes nothing: {reason}")

    def _run_names(self, given: Mapping[str, Any]) -> list[str]:
        """What a run directory is named after: what is done, to which task or file, with which model."""
        fields = {p.name: p.default for p in self.signature.parameters} | dict(given)
        source = fields[self._place]
        source = source[0] if isinstance(source, tuple) else source
        source = Path(source).stem if Path(source).suffix else source
        verb = {"evaluate": "eval"}.get(self._function.__name__, self._function.__name__)
        strategy = fields.get("strategy")
        how = [strategy] if strategy not in (None, "chain", "samples") else []
        return [fields.get("algorithm") or verb, source, fields["model"], *how]


def job_command(
    job: str,
    *,
    place: str,
    aliases: Mapping[str, str] | None = None,
    required: tuple[str, ...] = (),
    in_run_directory: bool = True,
    logs_metrics: bool = False,
) -> Callable[[Callable[..., Any]], JobCommand]:
    """Make a command of a function that makes a job. `required`: fields that must be given, whatever their default.
    `in_run_directory`: the job runs in a run directory; else the function does the work and returns an exit code.
    `logs_metrics`: it trains, in several processes if asked to, and has metrics of each step, which other programs may
    get, too."""
    return lambda function: JobCommand(function, job, place, aliases or {})


def command_signature(target: str) -> schema.Signature:
    """The parameters of a command, read from source: of a function, or of a job and the function that makes it."""
    own = schema.read_signature(target)
    decorator = schema.read_decorator(target, "job_command")
    if decorator is None:
        return own
    (job,), options = decorator
    return schema.Signature(tuple(_merged(own, job, **options)), own.doc)


def _merged(
    own: schema.Signature,
    job: str,
    place: str,
    aliases: Mapping[str, str] = {},
    required: tuple[str, ...] = (),
    in_run_directory: bool = True,
    logs_metrics: bool = False,
) -> Iterator[schema.Parameter]:
    """Those by place, the job's fields, the function's own, those of every run, and last the dotted ones."""
    mine = {p.name: p for p in own.parameters[1:]}  # without `fields`
    fields = schema.read_fields(job)
    start = next(i for i, f in enumerate(fields) if f.name == place)
    fields = [*fields[start:], *fields[:start]]  # its own before those it shares with others
    yield from (p for p in mine.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY)
    dotted: list[schema.Parameter] = []
    for field in fields:
        if field.name in mine:
            continue
        parameter, more = _field_parameters(field, field.name == place, field.name in required, aliases)
        yield from parameter
        dotted += more
    yield from _alias_parameters(fields, aliases)
    by_flag = [p for p in mine.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    yield from (p for p in by_flag if _marker(p.hint, SettingsOf) is None)
    yield from (p for p in RUN_FLAGS if in_run_directory and p.name not in mine)
    yield from [LOG_TO_FLAG, RANKS_FLAG] if logs_metrics else []
    yield from [CLUSTER_FLAG] if logs_metrics or any(f.name == "replicas" for f in fields) else []
    yield from dotted
    yield from (p for p in by_flag if _marker(p.hint, SettingsOf) is not None)


def _field_parameters(
    field: schema.Parameter, by_place: bool, required: bool, aliases: Mapping[str, str]
) -> tuple[list[schema.Parameter], list[schema.Parameter]]:
    """The flag of a field, and its dotted flags."""
    named, settings_of = _marker(field.hint, Named), _marker(field.hint, SettingsOf)
    kind = inspect.Parameter.POSITIONAL_ONLY if by_place else inspect.Parameter.KEYWORD_ONLY
    if settings_of is not None:
        short = tuple(path.partition(".")[2] for path in aliases.values() if path.startswith(f"{field.name}."))
        marker = SettingsOf(settings_of.prefix, settings_of.target, short)
        notes = _notes(field.hint, without=SettingsOf)
        return [], [schema.Parameter(f"{field.name}_settings", Annotated[dict[str, str], marker, *notes], {})]
    if named is not None:
        default = schema.REQUIRED if by_place or required else named.default
        kind_of_name: Any = str | None if default is None else str
        hint = Annotated[kind_of_name, *_notes(field.hint)]
        prefix = settings_prefix(field.name, named)
        about = f"a setting of the {prefix}" + (" (ponder tasks TASK lists them)" if prefix == "task" else "")
        settings = Annotated[dict[str, str], SettingsOf(prefix), about]
        return (
            [schema.Parameter(field.name, hint, default, kind)],
            [schema.Parameter(f"{prefix}_settings", settings, {})],
        )
    if by_place and get_origin(_plain(field.hint)) is tuple:
        item: Any = get_args(_plain(field.hint))[0]
        each = Annotated[item, *_notes(field.hint)]
        return [schema.Parameter(field.name, each, schema.REQUIRED, inspect.Parameter.VAR_POSITIONAL)], []
    return [schema.Parameter(field.name, field.hint, schema.REQUIRED if required else field.default, kind)], []


def _alias_parameters(fields: list[schema.Parameter], aliases: Mapping[str, str]) -> Iterator[schema.Parameter]:
    """A flag for a setting of a nested object: its type and help are those of the nested class, and its default the
    job's own."""
    by_name = {f.name: f for f in fields}
    for alias, path in aliases.items():
        name, _, inner = path.partition(".")
        field = by_name[name]
        settings_of = _marker(field.hint, SettingsOf)
        if settings_of is None:
            raise schema.Unreadable(f"{path} is no setting of a class")
        nested = next(p for p in schema.read_fields(settings_of.target) if p.name == inner)
        default = field.default.get(inner, nested.default) if isinstance(field.default, dict) else nested.default
        yield schema.Parameter(alias, nested.hint, default)


def _settings_by_field(given: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The settings of each object: dotted ones as text, those by a short flag as values."""
    out: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name in aliases:
            field, _, inner = aliases[name].partition(".")
            if inner in given.get(f"{field}_settings", {}):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} and --{aliases[name]} are the same setting: give one of them")
            out.setdefault(field, {})[inner] = value
        elif name.endswith("_settings"):
            out.setdefault(name.removesuffix("_settings"), {}).update(value)
    return out


def _with_settings(job: str, name: str, marker: SettingsOf, settings: Mapping[str, Any]) -> Any:
    """The object that a job has by default, or one of its class, with these settings."""
    default = next(f.default for f in dataclasses.fields(import_object(job)) if f.name == name)
    base = default if dataclasses.is_dataclass(default) else import_object(marker.target)
    return flags.build_with_settings(marker.prefix, base, settings, marker.prefix)


def _marker(hint: Any, kind: type[T]) -> T | None:
    return next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, kind)), None)


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _notes(hint: Any, without: type = type(None)) -> tuple[Any, ...]:
    """The help and the markers of an annotation."""
    return tuple(note for note in getattr(hint, "__metadata__", ()) if not isinstance(note, without))
