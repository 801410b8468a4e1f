"""The warm interpreter inside the jail: one clone of it is one run.

worker.py starts it and talks to it over a socket. It holds no tests, no expected values and no secrets, because every
run begins as a copy of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
from typing import Any

from ponder.verify.sandbox import guest, jail, kernel, run_tests, seccomp
from ponder.verify.sandbox.wire import CONFINEMENT_SECONDS, EXITED, HEADER, REPORT, STOP, STOPPED, TIMED_OUT

# Loaded before the first run, so that no run has to. Without `random`, which draws a new seed in every clone.
PRELOADED_MODULES = [
    "abc", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "math", "operator", "re", "string", "struct", "textwrap",
    "threading", "types", "typing",
]  # fmt: skip
CHANNEL = guest.CHANNEL
UNCONFINED = CHANNEL + 1  # open in a run until it is confined, which starts its clock
MODES = {**guest.MODES, "tests": run_tests.tests}
RIGHTS = socket.CMSG_SPACE(4 * 8)  # bytes for the descriptors that may come with one request


def main(descriptor: int, settings: jail.Settings) -> None:
    """Enter the jail, load what was asked for, and serve until the host is gone."""
    _reset_process_state()
    host = kernel.high(_open_host_pidfd(settings["host"]))
    control = socket.socket(fileno=kernel.high(descriptor))
    try:
        reached = ["control group"] if settings["cgroups"] and _join_cgroups(settings["cgroups"]) else []
        if settings["isolation"] == "namespaces":
            reached += jail.enter_namespaces(settings)
            settings["run_as"] = 1 if "another user" in reached else None
        if settings["isolation"] != "unsafe":
            kernel.bound_capabilities()
            seccomp.program(
                settings["kind"] == "programs", settings["isolation"] == "namespaces", platform.machine()
            )  # once
        settings["rules"] = jail.open_rules(settings)
        sys.path.extend(settings["paths"])
        guest.load([*PRELOADED_MODULES, *settings["preload"]] if settings["kind"] == "python" else [])
    except BaseException as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode())
        raise SystemExit(1) from None
    null = os.open("/dev/null", os.O_RDWR)
    # Nobody reads the zygote's error messages from here on. A run gets streams of its own: see `_arrange_descriptors`.
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    guest.discard_output()
    gc.collect()
    gc.freeze()  # so that a run's collections do not touch, and so copy, what it shares with this process
    control.send(json.dumps({"reached": reached}).encode())
    serve(control, host, settings)


def _reset_process_state() -> None:
    """Reset inherited process state of the host, so that it does not affect runs."""
    os.environ.clear()
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, the exit status of a run is lost


def _join_cgroups(folders: list[str]) -> bool:
    """Join the worker's control groups. Some machines allow to create one and not to join it."""
    try:
        for folder in folders:
            with open(os.path.join(folder, "cgroup.procs"), "r+") as members:
                members.write("0")
        return True
    except OSError:
        return False


def _open_host_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the host dies. (A death signal would follow its thread instead.)"""
    pidfd = os.pidfd_open(pid)
    if os.getppid() != pid:  # it died before we looked, and another may have its number
        os._exit(0)
    return pidfd


def serve(control: socket.socket, host: int, settings: jail.Settings) -> None:
    """Serve one run after the other."""
    flags = jail.PRIVATE if settings["isolation"] == "namespaces" else 0
    while True:
        ready, _, _ = select.select([control.fileno(), host], [], [])
        if host in ready:
            os._exit(0)
        data, descriptors = _receive(control)
        if data == STOP:  # for a run that has ended meanwhile
            continue
        number, wall = HEADER.unpack_from(data)
        bounds, locks = _prepare(settings, data[HEADER.size :])
        confined, unconfined = os.pipe()
        pid = kernel.clone(flags)
        if pid == 0:
            run(settings, bounds, locks, descriptors, unconfined)
        for descriptor in (*descriptors, unconfined):
            os.close(descriptor)
        end, status, seconds = _wait_for_run(control, host, pid, confined, wall)
        control.send(REPORT.pack(number, end, status, seconds))


_prepared_calls: dict[bytes, tuple[dict[str, Any], list[kernel.Call]]] = {}


def _prepare(settings: jail.Settings, bounds: bytes) -> tuple[dict[str, Any], list[kernel.Call]]:
    """The bounds of a run and the calls that confine it, prepared once for all runs with the same bounds."""
    if bounds not in _prepared_calls:
        if len(_prepared_calls) > 50:
            _prepared_calls.clear()
        read = json.loads(bounds)
        _prepared_calls[bounds] = read, jail.locks(settings, read)
    return _prepared_calls[bounds]


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = control.recvmsg(65536, RIGHTS)
    if not data:
        os._exit(0)  # the host closed its end
    descriptors: list[int] = []
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"{len(rights) // 4}i", rights[: len(rights) // 4 * 4])
    return data, descriptors


def _wait_for_run(control: socket.socket, host: int, pid: int, confined: int, wall: float) -> tuple[int, int, float]:
    """Wait for the run, kill it at its deadline or at the host's request, and return how it ended.

    Its `wall` seconds count from its confinement, so that a busy machine takes none of them before the program began.
    """
    process = os.pidfd_open(pid)
    end = EXITED
    watched = [process, control.fileno(), host]
    ready, _, _ = select.select([*watched, confined], [], [], CONFINEMENT_SECONDS)
    os.close(confined)
    if ready == [confined]:
        ready, _, _ = select.select(watched, [], [], wall)
    if process not in ready:
        end = STOPPED if ready else TIMED_OUT
        if host in ready or (ready and not control.recv(256)):
            _kill(pid)
            os.waitpid(pid, 0)
            os._exit(0)
    _kill(pid)  # and what it started, where that could outlive it
    _, status, used = os.wait4(pid, 0)
    os.close(process)
    return end, status, used.ru_utime + used.ru_stime


def _kill(pid: int) -> None:
    """The process and its group. It cannot leave its group, and is not reaped yet, so the numbers are still its own."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def run(
    settings: jail.Settings, bounds: dict[str, Any], locks: list[kernel.Call], descriptors: list[int], unconfined: int
) -> None:
    """In the clone: confine the process, then run the program. Never returns."""
    try:
        os.setsid()
        _arrange_descriptors(descriptors, unconfined)
        jail.confine(settings, bounds, locks)
        kernel.close_from(UNCONFINED + 1)
        guest.send("s", None)  # confined; nothing untrusted has run yet
        os.close(UNCONFINED)
        if bounds["mode"] == "program":
            guest.program(settings["environment"])
        MODES[bounds["mode"]]()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            guest.send("!", f"{type(error).__name__}: {error}"[:500])
    finally:
        os._exit(125)


def _arrange_descriptors(descriptors: list[int], unconfined: int) -> None:
    """The channel to the host at 3, the pipe to the zygote at 4, and stdin, stdout and stderr at 0, 1 and 2.

    Without streams, each is an empty file of this run alone. Not /dev/null: it is one file for the host and all
    jails, and its locks, or the flags of a descriptor that runs inherit, would go from one run to the next.
    """
    channel, *streams = descriptors
    if not streams:
        streams = [os.memfd_create("stream", os.MFD_CLOEXEC)] * 3
    for target, source in enumerate(streams):
        os.dup2(source, target, inheritable=True)
    if channel != CHANNEL:
        os.dup2(channel, CHANNEL)
    if unconfined != UNCONFINED:
        os.dup2(unconfined, UNCONFINED)
