"""The Linux calls a jail is made of, through ctypes: nothing to compile, nothing to install."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from dataclasses import dataclass

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_THREAD = 0x10000000, 0x20000000, 0x40000000, 0x00010000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME = 1, 2, 4, 8, 1024
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 32, 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
SIGCHLD = 17


@dataclass(frozen=True)
class Machine:
    """What differs between the processors: the name the kernel audits by, and the numbers of some calls."""

    audit: int
    clone: int
    pivot_root: int
    capset: int


MACHINES = {
    "x86_64": Machine(audit=0xC000003E, clone=56, pivot_root=155, capset=126),
    "aarch64": Machine(audit=0xC00000B7, clone=220, pivot_root=41, capset=91),
}
# The same number on every processor: calls added since 2019 share one table.
CLOSE_RANGE, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 436, 444, 445, 446

libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock over a call


def machine() -> Machine:
    """This processor's numbers; `KeyError` on one that is not in the table."""
    return MACHINES[platform.machine()]


def checked(result: int, what: str) -> int:
    """A call's result, or the error it left."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    checked(libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind, data or None)]
    checked(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def enter_root(folder: str) -> None:
    """Make this mount point the root, and drop the old one."""
    os.chdir(folder)
    checked(libc.syscall(ctypes.c_long(machine().pivot_root), b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount")  # the old root lies over the new one until it is detached
    os.chdir("/")


def prctl(option: int, value: int = 0) -> None:
    checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def bound_capabilities() -> None:
    """Nothing that this process executes from now on can gain a capability."""
    number = 0
    while libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) == 0:
        number += 1


def drop_capabilities() -> None:
    """None left, and none to be had back."""
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    checked(libc.syscall(ctypes.c_long(machine().capset), header, none), "capset")


def high(descriptor: int) -> int:
    """The same descriptor at a number that leaves the low ones to the runs."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(descriptor)
    return moved


def close_from(lowest: int) -> None:
    """Close every descriptor from this one up."""
    if libc.syscall(ctypes.c_long(CLOSE_RANGE), ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)):
        os.closerange(lowest, 65536)  # a kernel before 5.9


def clone(flags: int) -> int:
    """Like `os.fork`, into new namespaces. For a process with one thread only."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _python.syscall(ctypes.c_long(machine().clone), ctypes.c_ulong(flags | SIGCHLD), None, None, None, None)
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone: {os.strerror(number)}")
    return int(pid)
