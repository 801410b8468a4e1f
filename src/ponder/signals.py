"""SIGINT, SIGTERM and SIGHUP from the first moment of a command: they end it in one line and never in a traceback.

Imports next to nothing, since it is at work before all else is imported. An exception raised by a signal handler would
come up anywhere: inside numpy's import, a destructor, or Python's own end, which print it. So the process ends here,
and removes its unfinished folders itself. A job that saves before it stops has handlers of its own (cli/graceful_stop.py).
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_stop_checks: list[Any] = []  # of each job that saves before it stops: whether it was asked to
_owner_pid = 0  # the process that the handlers were installed in; one that it forks has nothing to clear up


def install(handler: Any = None) -> dict[int, Any]:
    """Handle the stop signals by `handler`, by default `end`. Gives the handlers before. `nohup` stays in force."""
    global _owner_pid
    _owner_pid = os.getpid()
    before: dict[int, Any] = {}
    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler or exit_on_signal)
    return before


def stop_requested() -> bool:
    """Whether a job that is running was asked to stop: for whoever waits inside it."""
    return any(asked() for asked in list(_stop_checks))


def add_stop_check(asked: Any) -> None:
    """Let `stop_requested` ask this function too, until `remove_stop_check`."""
    _stop_checks.append(asked)


def remove_stop_check(asked: Any) -> None:
    if asked in _stop_checks:
        _stop_checks.remove(asked)


def exit_on_signal(number: int, frame: FrameType | None = None, message: str = "stopped") -> NoReturn:
    """End the process at once, with the exit code that shells expect: 130 (SIGINT), 143 (SIGTERM), 129 (SIGHUP)."""
    try:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
    except ValueError:
        pass  # another thread than the main one
    if os.getpid() == _owner_pid:
        if (scratch := sys.modules.get("ponder.staging")) is not None:
            scratch.remove_all()
        shown = os.isatty(2)
        write_fd(2, f"{chr(27) + '[?25h' if shown else ''}{message}\n")  # the live panel hides the cursor
        if "--json" in sys.argv:
            write_fd(1, f'{{"event": "stopped", "message": "{message}"}}\n')
    os._exit(128 + number)


def write_fd(fd: int, text: str) -> None:
    """Past Python's buffers, which the interrupted code may hold."""
    try:  # noqa: SIM105 (contextlib would have to be imported first)
        os.write(fd, text.encode())
    except OSError:  # the terminal is gone
        pass
