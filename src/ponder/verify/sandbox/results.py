"""The limits of a run, and the results of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ponder.errors import PonderError, UsageError

IsolationKind = Literal["namespaces", "landlock", "unsafe"]

# How a run ended. Only "lost" is the jail's fault: it died twice, or did not start.
RunStatus = Literal[
    "done", "raised", "timed out", "out of memory", "too much output", "crashed", "malformed", "lost",
]  # fmt: skip


def printable_line(text: str) -> str:
    """A program's text as one line without control characters, safe for terminals and files."""
    return "".join(c if c.isprintable() else " " for c in text)


class SandboxError(PonderError):
    """No jail can be built here, or the request makes no sense."""


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of one run. `cpu_seconds` is processor time. `wall_seconds=None` means twice that and a second."""

    cpu_seconds: float = 5.0
    wall_seconds: float | None = None
    memory_bytes: int = 512 << 20  # bytes of address space of each process, and of all together where there are cgroups
    disk_bytes: int = 16 << 20  # bytes in /tmp, which is empty at first and gone afterwards
    max_processes: int = 32  # threads of a Python program; processes of any other
    output_bytes: int = 1 << 20  # bytes of stdout, of stderr, or of one reply

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "wall_seconds", "memory_bytes", "disk_bytes", "max_processes", "output_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1 << 50:
                raise UsageError(f"the limit {name!r} is {value}; it must be positive and finite")
        if self.memory_bytes < 64 << 20:
            raise UsageError(f"the limit 'memory_bytes' is {self.memory_bytes}; an interpreter alone needs 64 MiB")

    @property
    def deadline(self) -> float:
        """Wall-clock seconds after which a run is killed."""
        return self.wall_seconds if self.wall_seconds is not None else 2 * self.cpu_seconds + 1


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call: its value where `run_status` is "done", else None and what went wrong."""

    run_status: RunStatus
    value: Any = None
    detail: str = ""

    @property
    def description(self) -> str:
        """How it ended, for people."""
        return f"{self.run_status}: {self.detail}" if self.detail else self.run_status


@dataclass(frozen=True, slots=True)
class TestsResult:
    """The result of tests: how many passed (-1: they cannot be run), and how the program or the tests ended.

    `undecided` says why some of them have no verdict; `failed`, whether others failed all the same. `weaknesses` says
    how a wrong program could have passed them.
    """

    run_status: RunStatus
    passed: int = 0
    total: int = 0
    detail: str = ""
    undecided: str = ""
    failed: bool = False
    weaknesses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A program's output and how it ended. "done" is an exit with status 0, "raised" with another."""

    run_status: RunStatus
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None  # None: it was killed
    cpu_seconds: float = 0.0  # processor time
    detail: str = ""

    @property
    def description(self) -> str:
        return f"{self.run_status}: {self.detail}" if self.detail else self.run_status
