"""Handlers for SIGINT, SIGTERM and SIGHUP, from the start of a command: it ends with one line, never a traceback.

The module imports almost nothing, because it is installed before everything else is imported. A signal handler that
raises could raise anywhere: inside numpy's import, in a destructor, or while Python shuts down, which prints it. So the
handler ends the process, after it removed the staging folders. A job that saves before it stops has handlers of its own
(cli/graceful_stop.py).
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_stop_checks: list[Any] = []  # of each job that saves before it stops: was it asked to stop?
_owner_pid = 0  # the process that installed the handlers; a fork of it has nothing to clean up


def install(handler: Any = None) -> dict[int, Any]:
    """Install `handler`, by default `exit_on_signal`, and return the previous handlers. `nohup` stays in force."""
    global _owner_pid
    _owner_pid = os.getpid()
    before: dict[int, Any] = {}
    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler or exit_on_signal)
    return before


def stop_requested() -> bool:
    """Whether a running job was asked to stop: for code that waits inside it."""
    return any(check() for check in list(_stop_checks))


def add_stop_check(check: Any) -> None:
    """Let `stop_requested` call this function too, until `remove_stop_check`."""
    _stop_checks.append(check)


def remove_stop_check(check: Any) -> None:
    if check in _stop_checks:
        _stop_checks.remove(check)


def exit_on_signal(number: int, frame: FrameType | None = None, message: str = "stopped") -> NoReturn:
    """End the process at once, with the exit code that shells expect: 130 (SIGINT), 143 (SIGTERM), 129 (SIGHUP)."""
    try:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
    except ValueError:
        pass  # another thread than the main one
    if os.getpid() == _owner_pid:
        # While the module is imported it has no such function yet, and there is no folder.
        if (remove_all := getattr(sys.modules.get("ponder.staging"), "remove_all", None)) is not None:
            remove_all()
        shown = os.isatty(2)
        write_fd(2, f"{chr(27) + '[?25h' if shown else ''}{message}\n")  # the live panel hides the cursor
        if "--json" in sys.argv:
            write_fd(1, f'{{"event": "stopped", "message": "{message}"}}\n')
    os._exit(128 + number)


def write_fd(fd: int, text: str) -> None:
    """Write without Python's buffers, whose lock the interrupted code may hold."""
    try:  # noqa: SIM105 (contextlib would have to be imported first)
        os.write(fd, text.encode())
    except OSError:  # the terminal is gone
        pass
