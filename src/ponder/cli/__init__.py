"""The command line. Each command is a function; its signature is its flags (see flags.py).

Nothing heavy is imported before a command runs, so that `ponder --help` answers at once.
"""

from __future__ import annotations

import contextvars
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ponder.errors import Interrupted, PonderError, UnknownName
from ponder.registry import import_object
from ponder.terminal import safe_std_streams

_PYTHON_FORMAT = warnings.formatwarning  # Python's own: with file and line


class CommandSpec(NamedTuple):
    target: str  # module:function
    summary: str
    raw_args: bool = False  # takes the arguments as they are: its flags depend on them


COMMANDS = {
    "demo": CommandSpec(
        "ponder.cli.demo:demo", "train a small model on this machine and see what it learned", raw_args=True
    ),
    "plan": CommandSpec("ponder.cli.plan:plan", "before a run: its cost, prompt, pass rate, and checks", raw_args=True),
    "run": CommandSpec("ponder.cli.job_commands:run", "run a recipe, or a run directory again", raw_args=True),
    "train": CommandSpec("ponder.cli.job_commands:train", "reinforcement learning on a task"),
    "sft": CommandSpec("ponder.cli.job_commands:sft", "supervised fine-tuning on a task or a file of conversations"),
    "reward": CommandSpec("ponder.cli.reward_models:reward", "train a reward, process reward or value model"),
    "label": CommandSpec("ponder.cli.reward_models:label", "label the steps of answers by completing them"),
    "processbench": CommandSpec(
        "ponder.cli.reward_models:processbench", "does a process reward model find the first wrong step"
    ),
    "solve": CommandSpec("ponder.cli.solve:solve", "ask a model a question, and think about it by a strategy"),
    "eval": CommandSpec("ponder.cli.job_commands:evaluate", "measure a model on a task's held-out problems"),
    "harvest": CommandSpec("ponder.cli.harvest:harvest", "the traces of runs as data to learn from", raw_args=True),
    "compare": CommandSpec("ponder.cli.compare:compare", "runs and logs side by side, with paired intervals"),
    "plot": CommandSpec("ponder.cli.plot:plot", "pictures of runs and logs, with their numbers"),
    "replay": CommandSpec("ponder.cli.replay:replay", "judge and decide stored traces again, another way"),
    "contamination": CommandSpec("ponder.cli.contamination:contamination", "is an evaluation in the training data?"),
    "problems": CommandSpec("ponder.cli.problems:problems", "make problems, and keep those of fitting difficulty"),
    "reflect": CommandSpec(
        "ponder.cli.reflect:reflect", "where a run's answers doubt themselves and take something back"
    ),
    "strategies": CommandSpec("ponder.cli.strategies:strategies", "the ways to think, presets, and efforts"),
    "tasks": CommandSpec("ponder.cli.tasks:tasks", "which tasks there are, with a problem of each"),
    "export": CommandSpec("ponder.cli.export:export", "write a model as a Hugging Face folder or a GGUF file"),
    "doctor": CommandSpec("ponder.cli.doctor:doctor", "what this machine can do, and what is missing"),
}

UNSAFE_SANDBOX_FLAG = (
    "--unsafe-sandbox"  # with any command: where no jail can be built, run a model's programs without one
)
TRUST_FLAG = "--trust"  # with commands that take run directories: load the code that these name, as their author's word
READS_RUN_DIRECTORIES = ("run", "plan", "harvest", "compare", "plot", "replay", "contamination", "reflect")

# What the user can put right: no space, no permission, a path that cannot be one.
USER_ERRNOS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 something the user can put right, 3 an evaluation of which too many problems have no
    verdict, 130, 143 or 129 stopped by SIGINT, SIGTERM or SIGHUP. Anything else is a bug, with traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets another
    warnings.formatwarning = _format_warning
    with safe_std_streams():
        return _run_guarded(given)


def _run_guarded(given: list[str]) -> int:
    try:
        code = contextvars.copy_context().run(_dispatch, given)  # what it trusts ends with it
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone
        _discard_stdout()
        return 1
    except KeyboardInterrupt:
        return _report_exit("stopped", 130, given)
    except BaseException as error:
        if (
            _find_error(error, Interrupted) is None
            and type(error).__name__ == "CancelledError"
            and _signal_exit_code() > 0
        ):
            error = Interrupted("stopped; what was done is saved, and the same command goes on")
        said = _user_message(error)
        if said is None:
            raise
        return _report_exit(said, _signal_exit_code() or 130 if _find_error(error, Interrupted) else 2, given)


def _signal_exit_code() -> int:
    """The exit code by the signal that stopped the command; 0: none did."""
    stopping = sys.modules.get("ponder.cli.graceful_stop")
    return stopping.code() if stopping is not None else 0


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own in one line, without the place in our code that says it."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"  ! {message}\n"
    return _PYTHON_FORMAT(message, category, filename, lineno, line)


def _dispatch(argv: list[str]) -> int:
    from ponder import __version__

    if UNSAFE_SANDBOX_FLAG in argv:
        from ponder.verify.sandbox import allow_unsafe

        argv = [a for a in argv if a != UNSAFE_SANDBOX_FLAG]
        allow_unsafe()
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help", "help"):
        print(commands_help())
        return 0
    if name == "--version":
        print(f"ponder {__version__}")
        return 0
    if name not in COMMANDS:
        raise UnknownName("command", name, COMMANDS)
    command = COMMANDS[name]
    if TRUST_FLAG in rest and name in READS_RUN_DIRECTORIES:
        rest = [a for a in rest if a != TRUST_FLAG]
        _trust_run_code()
    function = import_object(command.target)
    if command.raw_args:
        return int(function(rest))
    from ponder.cli import flags
    from ponder.cli.launch import JobLaunch, run_job

    made = flags.run_command(function, rest, f"ponder {name}")
    return run_job(*made) if isinstance(made, JobLaunch) else int(made)


def _trust_run_code() -> None:
    """Modules in the current folder are found too, as where the run was made."""
    from ponder.cli import recipe_files
    from ponder.runs.trust import trust

    trust(True)
    recipe_files.add_to_import_path([Path.cwd()])


def commands_help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}} {command.summary}" for name, command in COMMANDS.items())
    return f"""\
ponder trains, runs and measures reasoning language models.

usage: ponder COMMAND ...

{rows}

`ponder COMMAND --help` lists a command's flags; `ponder run RECIPE --help` a recipe's. Programs that a model writes
run in a jail; where none can be built they are refused, or run without one under --unsafe-sandbox.
A run directory's own code, where it names any that is not ponder's, is loaded only under --trust.
A stopped run goes on when the same command is given again."""


def _user_message(error: BaseException) -> str | None:
    """What to tell the user; None where this is our own mistake."""
    if (ours := _find_error(error, PonderError)) is not None:
        return str(ours)
    if isinstance(error, OSError) and error.errno in USER_ERRNOS:
        return f"{error.filename or 'cannot write'}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return "out of memory: lower --micro-tokens, --prompts, --n or --max-tokens, or take a smaller model"
    return None


def _find_error(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first error of a kind: this one, or wherever it is nested in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _find_error(inner, kind))), None)
    return error if isinstance(error, kind) else None


def _report_exit(said: str, code: int, argv: list[str]) -> int:
    stopped = code > 128
    try:
        print(said if stopped else f"error: {said}", file=sys.stderr)
        if "--json" in argv:
            from ponder.cli.progress import print_json

            print_json({"event": "stopped" if stopped else "error", "message": said})
        sys.stdout.flush()
    except OSError:  # nobody reads it any more
        _discard_stdout()
    return code


def _discard_stdout() -> None:
    """What cannot be written shall not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
