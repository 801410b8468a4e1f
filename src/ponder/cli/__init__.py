"""The command line. Each command is a function; its signature is its flags (see flags.py).

Nothing heavy is imported before a command runs: help, completion and the list of commands read source (see schema.py).
"""

from __future__ import annotations

import contextvars
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from ponder.cli.commands import COMMANDS, commands_help
from ponder.errors import Interrupted, PonderError, RankLost, UnknownName
from ponder.terminal import safe_std_streams

# The arguments of the command that runs, for one that starts itself in several processes.
command_line: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("command_line", default=())
EXIT_RANK_LOST = 75  # of a rank that ends because another did
_PYTHON_FORMAT = warnings.formatwarning  # Python's own: with file and line


UNSAFE_SANDBOX_FLAG = "--unsafe-sandbox"  # with any command: run a model's programs even where no jail can be built
TRUST_FLAG = "--trust"  # with commands that take run directories: load the code that they name
READS_RUN_DIRECTORIES = ("run", "plan", "harvest", "compare", "plot", "replay", "contamination", "reflect")

# What the user can put right: no space, no permission, a path that cannot be one.
USER_ERRNOS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 something the user can put right, 3 an evaluation of which too many problems have no
    verdict, 75 of a rank that ends because another did, 130, 143 or 129 stopped by SIGINT, SIGTERM or SIGHUP. Anything
    else is a bug, with traceback."""
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
        message = _user_message(error)
        if message is None:
            raise
        if _find_error(error, Interrupted):
            return _report_exit(message, _signal_exit_code() or 130, given)
        return _report_exit(message, EXIT_RANK_LOST if _find_error(error, RankLost) else 2, given)


def _signal_exit_code() -> int:
    """The exit code by the signal that stopped the command; 0: none did."""
    stopping = sys.modules.get("ponder.cli.graceful_stop")
    return int(stopping.signal_exit_code()) if stopping is not None else 0


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own in one line, without the place in our code that says it."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"  ! {message}\n"
    return _PYTHON_FORMAT(message, category, filename, lineno, line)


def _dispatch(argv: list[str]) -> int:
    from ponder import __version__

    command_line.set(tuple(argv))

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
    if name == "completion" and rest[:1] == ["words"]:
        from ponder.cli.completion import print_words

        return print_words(rest[1:])
    if any(word in ("-h", "--help") for word in rest):
        from ponder.cli.command_help import print_help

        if print_help(name, rest):
            return 0
    if TRUST_FLAG in rest and name in READS_RUN_DIRECTORIES:
        rest = [a for a in rest if a != TRUST_FLAG]
        _trust_run_code()
    from ponder.registry import import_object

    function = import_object(command.target)
    if command.raw_args:
        return int(function(rest))
    from ponder.cli import flags
    from ponder.cli.launch import JobLaunch, run_job

    result = flags.run_command(function, rest, f"ponder {name}")
    return run_job(*result) if isinstance(result, JobLaunch) else int(result)


def _trust_run_code() -> None:
    """Modules in the current folder are found too, as where the run was made."""
    from ponder.cli import recipe_files
    from ponder.runs.trust import trust

    trust(True)
    recipe_files.add_to_import_path([Path.cwd()])


def _user_message(error: BaseException) -> str | None:
    """What to tell the user; None where this is our own mistake."""
    if (ours := _find_error(error, PonderError)) is not None:
        return str(ours)
    if isinstance(error, OSError) and error.errno in USER_ERRNOS:
        return f"{error.filename or 'cannot write'}: {error.strerror}"
    if type(error).__name__ == "SafetensorError":  # no OSError, whatever the reason
        from ponder.full_disk import is_disk_full

        return f"cannot write: {os.strerror(errno.ENOSPC)}" if is_disk_full(error) else None
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return (
            "out of memory: lower --max-tokens-per-microbatch, --problems-per-step, --group-size or --max-tokens,"
            " or take a smaller model"
        )
    return None


def _find_error(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first error of a kind: this one, or wherever it is nested in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((match for inner in error.exceptions if (match := _find_error(inner, kind))), None)
    return error if isinstance(error, kind) else None


def _report_exit(message: str, code: int, argv: list[str]) -> int:
    stopped = code > 128
    try:
        print(message if stopped else f"error: {message}", file=sys.stderr)
        if "--json" in argv:
            from ponder.cli.progress import print_json

            print_json({"event": "stopped" if stopped else "error", "message": message})
        sys.stdout.flush()
    except OSError:  # nobody reads it any more
        _discard_stdout()
    return code


def _discard_stdout() -> None:
    """What cannot be written shall not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
