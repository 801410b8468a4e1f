"""How the last process that wrote a run ended: `status.json`, written when it closes the run.

A process that was killed leaves none, and one that goes on with the run removes the old one first. So a run without
this file and without a lock was killed, or is of an earlier version.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ponder.errors import Interrupted, PonderError

STATUS_FILE = "status.json"
MAX_MESSAGE_CHARS = 500
EndState = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class RunStatus:
    state: EndState
    message: str = ""  # why it stopped or failed
    time: float = 0.0  # seconds since the epoch
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the whole result, such as an accuracy

    @classmethod
    def after(cls, error: BaseException | None, metrics: Mapping[str, float]) -> RunStatus:
        """The status of a run that ended with this error, or with none."""
        if error is None:
            return cls("finished", "", time.time(), metrics)
        first = _first_error(error)
        stopped = isinstance(first, Interrupted | KeyboardInterrupt | CancelledError)
        message = str(first) if isinstance(first, PonderError) else f"{type(first).__name__}: {first}"
        return cls("stopped" if stopped else "failed", message[:MAX_MESSAGE_CHARS], time.time(), metrics)


def read_status(folder: Path) -> RunStatus | None:
    """None where there is none, or none that can be read."""
    try:
        data = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
        state, message, at = data["state"], str(data["message"]), float(data["time"])
        metrics = {str(name): float(value) for name, value in data["metrics"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return RunStatus(state, message, at, metrics) if state in ("finished", "stopped", "failed") else None


def write_status(folder: Path, status: RunStatus) -> None:
    """Written as far as the disk allows: a run must not fail because its status cannot be kept."""
    temporary = folder / f"{STATUS_FILE}.new"
    metrics = {name: value for name, value in status.metrics.items() if math.isfinite(value)}
    data = {"state": status.state, "message": status.message, "time": status.time, "metrics": metrics}
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(data) + "\n", encoding="utf-8")
        temporary.replace(folder / STATUS_FILE)


def remove_status(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / STATUS_FILE).unlink(missing_ok=True)


def _first_error(error: BaseException) -> BaseException:
    """The error itself, or the first of a group; an interruption before all others."""
    while isinstance(error, BaseExceptionGroup):
        stops = error.subgroup((Interrupted, KeyboardInterrupt))
        error = (stops or error).exceptions[0]
    return error
