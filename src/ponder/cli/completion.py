"""`ponder completion SHELL`: a script that completes commands, flags, recipes, tasks, strategies and models.

The script asks `ponder completion words ...` at every press of the tab key. The answer is read from source (see
schema.py), so that nothing heavy is imported. Where ponder has no answer, the shell completes file names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from ponder.cli import schema
from ponder.settings import Named, SettingsOf

SCRIPTS = {
    "bash": """\
_ponder() {
    local IFS=$'\\n'
    COMPREPLY=($(ponder completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o bashdefault -F _ponder ponder
""",
    "zsh": """\
#compdef ponder
_ponder() {
    local -a offered
    offered=("${(@f)$(ponder completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$offered" ]]; then compadd -Q -- "${offered[@]}"; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _ponder ponder
""",
    "fish": """\
function __ponder_words
    set -l typed (commandline -opc) (commandline -ct)
    set -l offered (ponder completion words -- $typed[2..] 2>/dev/null)
    if test (count $offered) -gt 0
        printf '%s\\n' $offered
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c ponder -f -a '(__ponder_words)'
""",
}
HOW_TO = {
    "bash": '# In ~/.bashrc: eval "$(ponder completion bash)"',
    "zsh": '# In ~/.zshrc: eval "$(ponder completion zsh)"',
    "fish": "# Once: ponder completion fish > ~/.config/fish/completions/ponder.fish",
}
MODEL_FLAGS = ("model", "teacher", "solver", "tokenizer")


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], "bash, zsh or fish; the script says in which file to put it"], /
) -> int:
    """Print a script that completes commands, flags and names in a shell."""
    body = SCRIPTS[shell]
    first, newline, rest = body.partition("\n")
    print(f"{first}{newline}{HOW_TO[shell]}\n{rest}" if first.startswith("#") else f"{HOW_TO[shell]}\n{body}", end="")
    return 0


def print_words(typed: Sequence[str]) -> int:
    """`ponder completion words -- WORD ...`: what the last word can become, one to a line."""
    words = list(typed[1:] if typed[:1] == ["--"] else typed) or [""]
    try:
        for word in dict.fromkeys(complete(words)):
            print(word)
    except schema.Unreadable:  # a recipe that must be imported to tell
        pass
    return 0


def complete(words: Sequence[str]) -> Iterator[str]:
    """What the last of these words after `ponder` can become."""
    from ponder.cli.command_help import PLANNED_COMMANDS, read_signatures
    from ponder.cli.commands import COMMANDS
    from ponder.cli.recipe_files import find_recipe, shipped_recipes
    from ponder.errors import UsageError

    planned = (*PLANNED_COMMANDS, "eval")  # what `ponder plan` takes in place of a recipe
    *before, last = words
    if not before:
        yield from _starting([*COMMANDS, "--help", "--version"], last)
        return
    command, *rest = before
    if command not in COMMANDS:
        return
    if command in ("run", "plan") and not rest:
        yield from _starting([*shipped_recipes(), *(planned if command == "plan" else ())], last)
        return
    if command in ("run", "plan") and not (Path(rest[0]) / "job.json").is_file() and rest[0] not in planned:
        try:
            find_recipe(rest[0])
        except UsageError:
            return
    parameters = [p for signature in read_signatures(command, rest) for p in signature.parameters]
    flag = rest[-1] if rest and rest[-1].startswith("--") and "=" not in rest[-1] else ""
    value_of = _flagged(parameters, flag)
    if value_of is not None and not _is_switch(value_of):
        yield from _starting(_values(value_of), last)
    elif flag and "." in flag:
        return  # the value of a setting
    elif last.startswith("-"):
        yield from _starting(_flags(parameters, rest), last)
    else:
        places = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        own = rest[1:] if command in ("run", "plan") else rest
        at = len(_by_place(parameters, own))
        if at < len(places):
            yield from _starting(_values(places[at]), last)


def _starting(names: Sequence[str], text: str) -> Iterator[str]:
    return (name for name in names if name.startswith(text))


def _flagged(parameters: Sequence[schema.Parameter], flag: str) -> schema.Parameter | None:
    name = flag.removeprefix("--").replace("-", "_")
    return next((p for p in parameters if flag and p.name == name and not _has_place(p)), None)


def _has_place(parameter: schema.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def _is_switch(parameter: schema.Parameter) -> bool:
    return _kind(parameter) is bool


def _kind(parameter: schema.Parameter) -> Any:
    return get_args(parameter.hint)[0] if get_origin(parameter.hint) is Annotated else parameter.hint


def _markers(parameter: schema.Parameter) -> tuple[Any, ...]:
    return get_args(parameter.hint)[1:] if get_origin(parameter.hint) is Annotated else ()


def _values(parameter: schema.Parameter) -> list[str]:
    """The values that a flag or a place can have, where they are known."""
    for marker in _markers(parameter):
        if isinstance(marker, Named):
            return schema.table_names(*marker.tables)
    for kind in (_kind(parameter), *get_args(_kind(parameter))):
        if get_origin(kind) is Literal:
            return [str(value) for value in get_args(kind)]
    if parameter.name == "device":
        return ["auto", "cpu", "cuda", "mps"]
    if parameter.name == "dtype":
        return ["auto", "float32", "bfloat16", "float16"]
    trained = sorted(str(path.parent) for path in Path("runs").glob("*/job.json"))
    if parameter.name == "run" and _has_place(parameter):
        return trained
    if parameter.name in MODEL_FLAGS:
        folders = sorted(str(path.parent) for path in Path().glob("*/config.json"))
        return ["smollm2", *trained, *folders]
    return []


def _flags(parameters: Sequence[schema.Parameter], rest: Sequence[str]) -> list[str]:
    """All flags, and the dotted settings of what the line names."""
    out = []
    for p in parameters:
        settings = next((m for m in _markers(p) if isinstance(m, SettingsOf)), None)
        if settings is not None:
            out += [f"--{settings.prefix}.{f.name}" for f in _settings(settings, parameters, rest)]
        elif not _has_place(p):
            flag = p.name.replace("_", "-")
            out.append(f"--no-{flag}" if _is_switch(p) and p.default is True else f"--{flag}")
    config = ["--config", "--print-config"] if any(p.name == "run" for p in parameters) else []
    return [*out, *config, "--help"]


def _settings(
    settings: SettingsOf, parameters: Sequence[schema.Parameter], rest: Sequence[str]
) -> list[schema.Parameter]:
    """The settings behind a prefix: of a fixed class, or of the one that the line names."""
    if settings.target:
        return schema.read_fields(settings.target)
    for p in parameters:
        named = next((m for m in _markers(p) if isinstance(m, Named)), None)
        owners = ("task", "data", "source", "name") if settings.prefix == "task" else (settings.prefix,)
        if named is None or p.name not in owners:
            continue
        if p.kind is inspect.Parameter.POSITIONAL_ONLY:
            places = [q for q in parameters if q.kind is inspect.Parameter.POSITIONAL_ONLY]
            given = _by_place(parameters, rest)
            at = places.index(p) + (len(given) > len(places))
            name = given[at] if at < len(given) else ""
        else:
            flag = f"--{p.name.replace('_', '-')}"
            name = rest[rest.index(flag) + 1] if flag in rest[:-1] else str(p.default)
        return schema.table_fields(name.partition(":")[0], *named.tables)
    return []


def _by_place(parameters: Sequence[schema.Parameter], rest: Sequence[str]) -> list[str]:
    """The words of a line that are neither flags nor their values."""
    out: list[str] = []
    words = iter(rest)
    for word in words:
        if not word.startswith("-"):
            out.append(word)
        elif "=" not in word and ("." in word or ((p := _flagged(parameters, word)) and not _is_switch(p))):
            next(words, None)
    return out
