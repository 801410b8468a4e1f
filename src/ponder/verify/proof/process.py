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

from ponder.verify.sandbox import Limits, Ran, shared

# How it went: it came to its end, used up what it may, did not get its time on a busy machine, or broke.
Fate = Literal["ended", "timed out", "out of memory", "too much output", "starved", "crashed"]

_LONGEST_OUTPUT = 4 << 20  # bytes a checker may say
_SIGNALS = {
    128 + number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGXCPU)
}
_NOTHING: Mapping[str, str] = MappingProxyType({})


def bounds(seconds: float, memory: int = 2 << 30) -> Limits:
    """Limits of one process of a checker. By the clock it may take four times as long, on a machine with much to do."""
    return Limits(seconds=seconds, wall=4 * seconds, memory=memory, disk=64 << 20, output=96 << 20)


@dataclass(frozen=True)
class Outcome:
    fate: Fate
    code: int = -1  # the exit status, as a shell gives it
    output: str = ""
    errors: str = ""  # what it wrote to standard error
    files: Mapping[str, bytes] = field(default_factory=dict)  # those asked for that were there
    detail: str = ""  # what the sandbox says where it is not "ended"

    @property
    def said(self) -> str:
        return self.output + self.errors

    @property
    def passed(self) -> bool:
        return self.fate == "ended" and self.code == 0


def run(
    command: Sequence[str],
    files: Mapping[str, bytes],
    limits: Limits,
    keep: Sequence[str] = (),
    env: Mapping[str, str] = _NOTHING,
    tools: tuple[str, ...] = (),
) -> Outcome:
    """Run one command among these files, in a jail, and bring back those named in `keep`.

    `tools`: folders outside /usr that the command, and what it needs, is found in.

    The checker writes into files, and what the sandbox hears is written by the shell around it: nothing that hostile
    text makes a checker print can pass for something else.
    """
    env = {"PATH": _places(tools), **env}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    script = f"""
        {settings} {shlex.join(command)} >.output 2>.errors
        code=$?
        tar -cf - .output .errors {shlex.join(keep)} 2>/dev/null
        exit $code
    """
    packed, ran = shared(limits, tools=tools).program(["/bin/sh", "-c", script], b"", files, limits)
    if ran.end not in ("done", "raised") or ran.status is None:
        return Outcome(_fate(ran, limits), detail=ran.why)
    found = _unpacked(packed)
    output, errors = (found.pop(name, b"") for name in (".output", ".errors"))
    if max(len(output), len(errors)) > _LONGEST_OUTPUT:
        return Outcome("too much output", ran.status, detail=f"more than {_LONGEST_OUTPUT} bytes")
    said = [text.decode(errors="replace") for text in (output, errors)]
    fate = _fate(ran, limits, said[1]) if ran.status in _SIGNALS else "ended"
    return Outcome(fate, ran.status, said[0], said[1], found, "" if fate == "ended" else f"exit status {ran.status}")


def _unpacked(packed: bytes) -> dict[str, bytes]:
    """The plain files of an archive, in memory."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            opened = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
            return {name: file.read() for name, file in opened.items() if file is not None}
    except tarfile.TarError:  # nothing was packed
        return {}


def _fate(ran: Ran, limits: Limits, errors: str = "") -> Fate:
    """How a process was ended from outside."""
    if ran.end in ("out of memory", "too much output"):
        return ran.end
    if "out of memory" in errors.lower():
        return "out of memory"
    if ran.seconds >= 0.9 * limits.seconds:
        return "timed out"
    return "starved" if ran.end == "timed out" else "crashed"


def _places(tools: Sequence[str]) -> str:
    """Where programs are looked for, inside and outside of the sandbox."""
    return os.pathsep.join((*(f"{folder}/bin" for folder in tools), "/usr/local/bin", "/usr/bin", "/bin"))


def installed(program: str, tools: Sequence[str] = ()) -> str:
    """Where the sandbox finds a program of this machine; empty where it does not."""
    return shutil.which(program, path=_places(tools)) or ""


def missing(system: str, programs: Sequence[str], advice: str, tools: Sequence[str] = ()) -> str:
    """That a checker is not there, and what to do about it; empty where it is."""
    for folder in tools:
        if fault := _unfit(folder):
            return f"tools has {folder!r}, which {fault}; name the folder that {system}'s bin and lib lie in"
    absent = [program for program in programs if not installed(program, tools)]
    if not absent:
        return ""
    listed, places = " and no ".join(absent), " or ".join(["/usr", *tools])
    if elsewhere := shutil.which(absent[0]):
        advice = (
            f"there is {elsewhere}: give tools=({str(Path(elsewhere).resolve().parents[1])!r},), if that is all its own"
        )
    return f"{system} is not installed: no {listed} under {places}, where the sandbox looks; {advice}"


def _unfit(folder: str) -> str:
    """Why the sandbox must not show this folder; empty where it may."""
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        return "is no folder by its whole path"
    if path.resolve() != path:
        return f"is reached through a link to {path.resolve()}"
    if Path.home().resolve().is_relative_to(path.resolve()):
        return "would show a whole home to what is run"
    return ""
