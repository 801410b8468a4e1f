"""The flags of a command as a file: `--config job.yaml` reads it, `--print-config` writes it.

    task: addition
    steps: 200
    algorithm: dapo
    optimizer.eps: 1.0e-06        # or nested: optimizer: {eps: 1.0e-06}

The names are those of the flags. A flag on the command line overrides the file. JSON is read too: it is YAML.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from ponder.cli import schema
from ponder.errors import UsageError
from ponder.settings import SettingsOf, When

NOT_IN_A_FILE = ("run", "no_resume", "json", "out")  # where a job runs and how it reports, not what it is


def read_config(path: Path) -> dict[str, Any]:
    """The flags in a file, nested settings as dotted names."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}: `--print-config` writes one") from None
    except (OSError, UnicodeDecodeError) as why:
        raise UsageError(f"cannot read {path}: {why}") from None
    except RecursionError:
        raise UsageError(f"cannot read {path}: it is nested too deeply") from None
    except yaml.YAMLError as why:
        raise UsageError(f"{path} is neither YAML nor JSON: {' '.join(str(why).split())}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold flags by name, such as `steps: 100`")
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            out |= {f"{name}.{inner}": setting for inner, setting in _flat(value).items()}
        else:
            out[str(name)] = value
    return out


def config_words(config: Mapping[str, Any], parameters: Sequence[schema.Parameter], source: Path) -> list[str]:
    """The command line that a file stands for, but for what is given by place."""
    known = {p.name: p for p in parameters}
    words: list[str] = []
    for name, value in config.items():
        parameter = known.get(name.replace("-", "_"))
        if value is None or (parameter is not None and _by_place(parameter)):
            continue
        if parameter is None and "." not in name:
            raise UsageError(f"{source}: there is no flag --{name.replace('_', '-')}")
        flag = f"--{name.replace('_', '-')}" if "." not in name else f"--{name}"
        if isinstance(value, bool) and parameter is not None:
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list) and parameter is not None and get_origin(_plain(parameter.hint)) is list:
            words += [word for one in value for word in (f"{flag}={one}",)]
        else:
            words.append(f"{flag}={_text(value)}")
    return words


def config_places(config: Mapping[str, Any], parameters: Sequence[schema.Parameter]) -> list[str]:
    """What the file gives by place."""
    out: list[str] = []
    for parameter in parameters:
        value = config.get(parameter.name)
        if _by_place(parameter) and value is not None:
            out += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return out


def config_text(given: Mapping[str, Any], parameters: Sequence[schema.Parameter]) -> str:
    """A file of all flags as they stand, given or by default."""
    import yaml

    out: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in NOT_IN_A_FILE:
            continue
        if parameter.name not in given and not _counts(parameter, given, parameters):
            continue
        value = given.get(parameter.name, None if parameter.required else parameter.default)
        prefix = next((m.prefix for m in _markers(parameter) if isinstance(m, SettingsOf)), None)
        if prefix is not None:
            out |= {f"{prefix}.{name}": yaml.safe_load(text) for name, text in (value or {}).items()}
        elif value is not None and value != []:
            out[parameter.name] = _plain_value(value)
    return str(yaml.safe_dump(out, sort_keys=False, allow_unicode=True))


def _counts(parameter: schema.Parameter, given: Mapping[str, Any], parameters: Sequence[schema.Parameter]) -> bool:
    """Whether a setting means something beside the others (see settings.When)."""
    values = {p.name: given.get(p.name, None if p.required else p.default) for p in parameters}
    conditions = [m for m in _markers(parameter) if isinstance(m, When)]
    return all(any(c.is_met(values.get(name)) for name in c.names) for c in conditions)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            out |= {f"{name}.{inner}": setting for inner, setting in _flat(value).items()}
        else:
            out[str(name)] = value
    return out


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain_value(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _by_place(parameter: schema.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _markers(parameter: schema.Parameter) -> tuple[Any, ...]:
    return tuple(getattr(parameter.hint, "__metadata__", ()))
