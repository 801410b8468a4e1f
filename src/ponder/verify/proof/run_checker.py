"""Run a proof checker over hostile text, in the sandbox: files go in, its output and some files come back."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ponder.verify.sandbox import ProgramResult, SandboxLimits, shared_sandbox

# How a checker ended: by itself, at a limit, without enough CPU time on a busy machine, or by a crash.
CheckerStatus = Literal["ended", "timed out", "out of memory", "too much output", "starved", "crashed"]

_MAX_OUTPUT_BYTES = 4 << 20  # of stdout or stderr
_SIGNALS = {
    128 + getattr(signal, name)
    for name in ("SIGABRT", "SIGBUS", "SIGILL", "SIGKILL", "SIGSEGV", "SIGXCPU")
    if hasattr(signal, name)  # Windows has two of them
}
_NOTHING: Mapping[str, str] = MappingProxyType({})


def checker_limits(seconds: float, memory: int = 2 << 30) -> SandboxLimits:
    """Limits of one process of a checker. Wall time is four times as long, for busy machines."""
    return SandboxLimits(
        cpu_seconds=seconds, wall_seconds=4 * seconds, memory_bytes=memory, disk_bytes=64 << 20, output_bytes=96 << 20
    )


@dataclass(frozen=True)
class CheckerResult:
    checker_status: CheckerStatus
    exit_code: int = -1  # the exit status, as a shell gives it
    output: str = ""
    errors: str = ""  # what it wrote to standard error
    files: Mapping[str, bytes] = field(default_factory=dict)  # the requested files that exist
    detail: str = ""  # the sandbox's description where the status is not "ended"

    @property
    def all_output(self) -> str:
        return self.output + self.errors

    @property
    def passed(self) -> bool:
        return self.checker_status == "ended" and self.exit_code == 0


def run_checker(
    command: Sequence[str],
    files: Mapping[str, bytes],
    limits: SandboxLimits,
    keep: Sequence[str] = (),
    env: Mapping[str, str] = _NOTHING,
    tools: tuple[str, ...] = (),
) -> CheckerResult:
    """Run one command in a jail with these files, and return those named in `keep`.

    `tools`: folders outside /usr with the command and its libraries.

    The checker's output goes to files, and only the shell around it writes to the sandbox's streams. So nothing that
    hostile text makes a checker print can be mistaken for something else.
    """
    env = {"PATH": _search_path(tools), **env}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    script = f"""
        {settings} {shlex.join(command)} >.output 2>.errors
        code=$?
        tar -cf - .output .errors {shlex.join(keep)} 2>/dev/null
        exit $code
    """
    packed, result = shared_sandbox(limits, tools=tools).run_program(["/bin/sh", "-c", script], b"", files, limits)
    if result.run_status not in ("done", "raised") or result.exit_code is None:
        return CheckerResult(_failure_status(result, limits), detail=result.description)
    unpacked = _unpacked(packed)
    output, errors = (unpacked.pop(name, b"") for name in (".output", ".errors"))
    if max(len(output), len(errors)) > _MAX_OUTPUT_BYTES:
        return CheckerResult("too much output", result.exit_code, detail=f"more than {_MAX_OUTPUT_BYTES} bytes")
    texts = [text.decode(errors="replace") for text in (output, errors)]
    status = _failure_status(result, limits, texts[1]) if result.exit_code in _SIGNALS else "ended"
    return CheckerResult(
        status,
        result.exit_code,
        texts[0],
        texts[1],
        unpacked,
        "" if status == "ended" else f"exit status {result.exit_code}",
    )


def _unpacked(packed: bytes) -> dict[str, bytes]:
    """The plain files of an archive, in memory."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            opened = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
            return {name: file.read() for name, file in opened.items() if file is not None}
    except tarfile.TarError:  # nothing was packed
        return {}


def _failure_status(result: ProgramResult, limits: SandboxLimits, errors: str = "") -> CheckerStatus:
    """The status of a process that was killed."""
    if result.run_status in ("out of memory", "too much output"):
        return result.run_status
    if "out of memory" in errors.lower():
        return "out of memory"
    if result.cpu_seconds >= 0.9 * limits.cpu_seconds:
        return "timed out"
    return "starved" if result.run_status == "timed out" else "crashed"


def _search_path(tools: Sequence[str]) -> str:
    """The PATH for programs, inside and outside of the sandbox."""
    return os.pathsep.join((*(f"{folder}/bin" for folder in tools), "/usr/local/bin", "/usr/bin", "/bin"))


def find_checker(program: str, tools: Sequence[str] = ()) -> str:
    """The path of a program that the sandbox can run; empty where there is none."""
    return shutil.which(program, path=_search_path(tools)) or ""


def missing_checker(system: str, programs: Sequence[str], advice: str, tools: Sequence[str] = ()) -> str:
    """That a checker is not installed, and what to do; empty where it is."""
    for folder in tools:
        if fault := _folder_fault(folder):
            return f"tools has {folder!r}, which {fault}; name the folder that {system}'s bin and lib lie in"
    absent = [program for program in programs if not find_checker(program, tools)]
    if not absent:
        return ""
    missing, places = " and no ".join(absent), " or ".join(["/usr", *tools])
    if elsewhere := shutil.which(absent[0]):
        advice = (
            f"there is {elsewhere}: give tools=({str(Path(elsewhere).resolve().parents[1])!r},), if that is all its own"
        )
    return f"{system} is not installed: no {missing} under {places}, where the sandbox looks; {advice}"


def _folder_fault(folder: str) -> str:
    """Why the sandbox must not show this folder; empty where it may."""
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        return "is no folder by its whole path"
    if path.resolve() != path:
        return f"is reached through a link to {path.resolve()}"
    if Path.home().resolve().is_relative_to(path.resolve()):
        return "would show a whole home to what is run"
    return ""
