"""`ponder COMMAND --help` from source: nothing is imported, so that it answers at once (see schema.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ponder.cli import schema
from ponder.cli.commands import COMMANDS, DEMO_DESCRIPTION, DEMO_RECIPE
from ponder.cli.job_command import command_signature

RUN_FLAGS = "ponder.cli.job_commands:run_flags"
RANK_FLAGS = "ponder.cli.job_commands:rank_flags"
RERUN_FLAGS = "ponder.cli.job_commands:rerun_flags"
PLAN_FLAGS = "ponder.cli.plan:plan_flags"
PLAN_EVAL = "ponder.cli.plan_evaluation:plan_evaluation"
PLANNED_COMMANDS = ("train", "sft")  # commands that `ponder plan` takes in place of a recipe

PLAN_USAGE = """\
usage: ponder plan RECIPE [--sample-groups N] [--dry-run-steps N] [--json] [the recipe's flags]
       ponder plan train|sft [--sample-groups N] [--dry-run-steps N] [the flags of that command]
       ponder plan RECIPE|train|sft --gpus N [--nodes N] [--gpu-memory GIB] ...
       ponder plan eval [RUN] [--width X] [--difference X] [--problems N] [--budget N] ...

What a run will be like, before it starts: the whole job, the time and memory it takes by its first steps, a prompt
with what is trained after it, how often the model is right, and the checks that the run begins with.
RECIPE is what `ponder run` takes: a .py file, a shipped recipe or a run directory. Nothing is kept.
The exit code is 1 where a check fails. With --gpus nothing is tried: it prints the memory of each rank, what does
not fit, and the commands for torchrun and Slurm.
`ponder plan eval --help`: how many problems an evaluation needs, and how to share samples over them."""


def print_help(command: str, argv: Sequence[str]) -> bool:
    """Print a command's help. False: it must be imported to tell."""
    try:
        signatures = read_signatures(command, argv)
    except schema.Unreadable:
        return False
    if not signatures:
        from ponder.cli.recipe_files import recipes_help

        print(PLAN_USAGE if command == "plan" else recipes_help())
        return True
    from ponder.cli.flags import Parser

    name = f" {argv[0]}" if command in ("run", "plan") else ""
    parser = Parser(f"ponder {command}{name}", "\n\n".join(s.doc for s in signatures if s.doc))
    for signature in signatures:
        parser.add_signature(signature)
    parser.print_help()
    return True


def read_signatures(command: str, argv: Sequence[str]) -> list[schema.Signature]:
    """The signatures whose parameters are this line's flags; none for `run` and `plan` without a recipe."""
    first = argv[0] if argv and not argv[0].startswith("-") else ""
    if command == "demo":
        (recipe,) = _recipe(DEMO_RECIPE)
        return [schema.Signature(recipe.parameters, f"{DEMO_DESCRIPTION}\n\n{recipe.doc}".strip()), _silent(RUN_FLAGS)]
    if command not in ("run", "plan"):
        return [command_signature(COMMANDS[command].target)]
    if not first:
        return []
    if command == "plan" and first == "eval":
        return [schema.read_signature(PLAN_EVAL)]
    plan = [_silent(PLAN_FLAGS)] if command == "plan" else []
    if command == "plan" and first in PLANNED_COMMANDS:
        return [command_signature(COMMANDS[first].target), *plan]
    if (Path(first) / "job.json").is_file():
        return [schema.read_signature(RERUN_FLAGS), *plan]
    return [*_recipe(first), _silent(RUN_FLAGS), _silent(RANK_FLAGS), *plan]


def _recipe(name: str) -> list[schema.Signature]:
    """A recipe's parameters; its description is what its file and its function say."""
    from ponder.cli.recipe_files import find_recipe

    target = f"{find_recipe(name)}:recipe"
    read = schema.read_signature(target)
    texts = dict.fromkeys(text.strip() for text in (schema.read_module_doc(target), read.doc) if text.strip())
    return [schema.Signature(read.parameters, "\n\n".join(texts))]


def _silent(target: str) -> schema.Signature:
    return schema.Signature(schema.read_signature(target).parameters)
