"""One worker: a zygote in its jail, seen from the host. It does one run at a time, for one holder."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ponder.verify.sandbox import landlock
from ponder.verify.sandbox.cgroup import ControlGroup
from ponder.verify.sandbox.results import IsolationKind, SandboxLimits
from ponder.verify.sandbox.sandbox_run import GRACE_SECONDS, RunExit, SandboxRun, WorkerLost
from ponder.verify.sandbox.wire import HEADER, REPORT, STOP, TIMED_OUT

with contextlib.suppress(ImportError):  # Windows has none: see `missing_support`
    import fcntl

Kind = Literal["python", "programs"]
Mode = Literal["calls", "candidate", "tests", "script", "notebook", "program"]

HERE = Path(__file__).resolve().parent
# Packages of ponder are empty modules inside, so that their modules load without the imports of their __init__.
# Nor does `threading` hear of clones: it would renew its locks in each, and where there is one thread, none is held.
ZYGOTE_BOOT_CODE = """
import json, os, sys, types
hook, os.register_at_fork = os.register_at_fork, lambda **_: None
import threading
os.register_at_fork = hook
settings = json.loads(sys.argv[2])
for name, folder in settings["packages"]:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from ponder.verify.sandbox.zygote import main
main(int(sys.argv[1]), settings)
"""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
PROGRAMS = ("/bin", "/lib", "/lib64", "/usr", "/etc/ld.so.cache", "/etc/alternatives")
PROGRAM_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
# The same program meets the same hashes every time, writes no bytecode, and starts no threads behind our back.
GUEST_ENVIRONMENT = {
    "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # a symbol that is looked up late would be looked up in every run
}  # fmt: skip
STARTUP_TIMEOUT_SECONDS = 60.0
ZYGOTE_MEMORY_BYTES = 256 << 20  # the zygote's own share of the control group


class Worker:
    """Starts at once, and raises `WorkerLost` with the reason where it cannot."""

    def __init__(
        self,
        isolation: IsolationKind,
        kind: Kind = "python",
        limits: SandboxLimits = SandboxLimits(),
        preload: Sequence[str] = (),
        paths: Sequence[str] = (),
    ) -> None:
        self.isolation, self.kind = isolation, kind
        self.run: SandboxRun | None = None  # a run that is kept open for more calls
        self._numbers = itertools.count()
        self._stopping: tuple[int, SandboxLimits] | None = None  # a run that is being stopped, and its limits
        memory = limits.memory_bytes if kind == "python" else max(limits.memory_bytes, 1 << 30)  # a compiler needs more
        self._group = ControlGroup(memory + limits.disk_bytes + ZYGOTE_MEMORY_BYTES, max(limits.max_processes, 64) + 8)
        self._kills = self._group.oom_kills()
        other = random.SystemRandom().randrange(1 << 20, 1 << 30) * 2  # a user id that no user has, nor the next one
        visible = _visible_paths(kind, paths, preload)
        self._work = tempfile.mkdtemp(prefix="ponder-unsafe-") if isolation == "unsafe" else None
        self._settings: dict[str, Any] = {
            "isolation": isolation,
            "kind": kind,
            "host": os.getpid(),
            "packages": [("ponder", str(HERE.parents[1])), ("ponder.verify", str(HERE.parent)),
                         ("ponder.verify.sandbox", str(HERE))],
            "visible": visible,
            "scratch": "/scratch" if any(f"{path}/".startswith("/tmp/") for path in visible) else "/tmp",
            "links": [p for p in ("/bin", "/lib", "/lib64") if os.path.islink(p)],
            "paths": list(paths) if kind == "python" else [],
            "preload": list(preload),
            "cgroups": self._group.folders,
            "landlock": landlock.version() > 0,
            "inodes": 4096,
            "environment": PROGRAM_ENVIRONMENT,
            "work": self._work,
            "uid": other,
            "run_as": other if isolation == "landlock" and os.getuid() == 0 and _world_readable() else None,
        }  # fmt: skip
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = self._spawn(theirs)
            self.reached = self._greeting()
        except (OSError, ValueError, WorkerLost) as error:
            self.close()
            raise WorkerLost(str(error)) from None

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)  # a host without stdin may have it at 0
        python = [os.path.realpath(sys.executable), "-S", "-s", "-P", "-c", ZYGOTE_BOOT_CODE]
        command = [*python, str(number), json.dumps(self._settings)]
        try:
            return subprocess.Popen(
                command, pass_fds=[number], env=GUEST_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, cwd="/", start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(number)

    def _greeting(self) -> list[str]:
        """The isolation layers that the zygote reached, once it is ready."""
        self._control.settimeout(STARTUP_TIMEOUT_SECONDS)
        data = self._control.recv(65536)
        assert self._process.stderr is not None
        if not data:
            stderr = self._process.stderr.read(4000).decode(errors="replace").strip()
            raise WorkerLost(stderr.splitlines()[-1] if stderr else "the interpreter ended at once")
        self._process.stderr.close()
        greeting = json.loads(data)
        if "error" in greeting:
            raise WorkerLost(greeting["error"])
        return list(greeting["reached"])

    def layers(self) -> list[str]:
        """All isolation layers of a run, for people."""
        if self.isolation == "unsafe":
            return ["resource limits"]
        return [
            *(["another user"] if self._settings["run_as"] is not None else []),
            *self.reached,
            *(["landlock"] if self._settings["landlock"] else []),
            "seccomp",
            "resource limits",
        ]

    @property
    def has_cgroup(self) -> bool:
        """Whether a control group bounds all that a run holds in memory."""
        return "control group" in self.reached

    def launch(
        self,
        mode: Mode,
        limits: SandboxLimits,
        streams: Sequence[int] = (),
        keep_seconds: float | None = None,
        reserves: bool = False,
    ) -> SandboxRun:
        """Start a run. `streams` are its stdin, stdout and stderr; the caller closes its own copies.

        `keep_seconds`: how long to keep it for many calls, each of which the caller bounds. `reserves`: it takes far
        more address space than it uses, so the limit is on what it writes to.
        """
        if self._stopping is not None:
            self.report(*self._stopping, time.monotonic() + GRACE_SECONDS)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        number, wall = next(self._numbers), limits.deadline if keep_seconds is None else keep_seconds
        bounds = {
            "mode": mode, "seconds": limits.cpu_seconds if keep_seconds is None else keep_seconds,
            "memory": int(limits.memory_bytes), "reserves": reserves, "disk": int(limits.disk_bytes),
            "processes": self._processes(mode, limits),
        }  # fmt: skip
        request = HEADER.pack(number, wall) + json.dumps(bounds).encode()
        rights = array.array("i", [theirs.fileno(), *streams])
        try:
            self._control.settimeout(GRACE_SECONDS)
            self._control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            ours.close()
            raise WorkerLost(f"the worker does not accept requests: {error}") from None
        finally:
            theirs.close()
        return SandboxRun(self, ours, number, limits, wall)

    def _processes(self, mode: Mode, limits: SandboxLimits) -> int | None:
        """The limit counts all of a user's processes, so it can be set only where the user is the run's alone."""
        if self.isolation == "namespaces" or self._settings["run_as"] is not None:
            return limits.max_processes
        return _own_tasks() + limits.max_processes if mode == "program" else None

    @property
    def ready(self) -> bool:
        """Whether a run would start at once: the last one is reaped."""
        if self._stopping is None:
            return True
        events = select.poll()
        events.register(self._control, select.POLLIN)
        return bool(events.poll(0))

    def stop_without_waiting(self, run: int, limits: SandboxLimits) -> None:
        """End a run without waiting for the zygote's report."""
        self.stop()
        self._stopping = (run, limits)

    def stop(self) -> None:
        """Tell the zygote to end the run."""
        try:
            self._control.send(STOP)
        except OSError as error:
            raise WorkerLost(str(error)) from None

    def report(self, run: int, limits: SandboxLimits, until: float) -> RunExit:
        """The zygote's report on how a run ended."""
        self._stopping = None
        try:
            self._control.settimeout(max(0.1, until - time.monotonic()))
            data = self._control.recv(65536)
        except OSError as error:
            raise WorkerLost(f"the worker does not answer: {error}") from None
        if len(data) != REPORT.size:
            raise WorkerLost("the worker ended")
        number, end, status, seconds = REPORT.unpack(data)
        if number != run:
            raise WorkerLost("the worker is out of step")
        return self._read(end, status, seconds, limits)

    def _read(self, end: int, status: int, seconds: float, limits: SandboxLimits) -> RunExit:
        if end == TIMED_OUT:
            return RunExit("timed out", None, seconds, f"{limits.deadline:g} s by the clock")
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            return RunExit("raised" if code else "done", code, seconds, f"exit status {code}" if code else "")
        number = os.WTERMSIG(status)
        kills = self._group.oom_kills()
        if kills > self._kills:
            self._kills = kills
            return RunExit("out of memory", None, seconds, "")
        # The kernel kills by its count of ticks, which on a busy machine runs ahead of the time that it reports.
        if number in (signal.SIGXCPU, signal.SIGKILL) and seconds >= 0.5 * limits.cpu_seconds:
            return RunExit("timed out", None, seconds, f"{limits.cpu_seconds:g} s of processor time")
        return RunExit("crashed", None, seconds, signal.Signals(number).name if number < 65 else str(number))

    def close(self) -> None:
        """End the zygote and all it started, and wait until they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        process = getattr(self, "_process", None)
        if process is not None:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if self.run is not None:
            self.run.channel.close()
        self._group.close()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)

    def abandon_after_fork(self) -> None:
        """In a forked child: the worker belongs to the parent, so only let go of it."""
        self._control.close()
        self._process.returncode = 0
        if self.run is not None:
            self.run.channel.close()


def _visible_paths(kind: Kind, paths: Sequence[str], preload: Sequence[str]) -> list[str]:
    """The paths that are visible inside the jail."""
    if kind == "programs":
        candidates = [*PROGRAMS, *paths]
    else:
        library = os.path.join(os.path.realpath(sys.base_prefix), "lib")
        candidates = [*LIBRARIES, library, sysconfig.get_paths()["stdlib"], *paths]
    if any(name.split(".")[0] == "ponder" for name in preload):
        candidates.append(str(HERE.parents[1]))
    visible: list[str] = []
    for path in sorted({os.path.abspath(p) for p in candidates if os.path.exists(p) and not os.path.islink(p)}):
        if not any(path.startswith(above + "/") for above in visible):  # a folder includes everything below it
            visible.append(path)
    return visible


def _world_readable() -> bool:
    """Whether another user can read this Python's library."""
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (library, *library.parents))


def _own_tasks() -> int:
    """How many threads this user has now."""
    mine, count = os.getuid(), 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid == mine:
                count += len(os.listdir(folder / "task"))
        except OSError:
            pass
    return count


def missing_support() -> str:
    """What this machine lacks for any sandbox; empty where nothing is missing."""
    if sys.platform != "linux":
        return "the sandbox is made of Linux's own means; run ponder in Docker (python:3.12 will do) to use it here"
    if not hasattr(os, "pidfd_open"):
        return "Python was built without pidfd_open; use one for Linux 5.3 or newer"
    return ""
