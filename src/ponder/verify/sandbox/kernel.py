"""The Linux system calls that build a jail, through ctypes: nothing to compile, nothing to install."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

try:
    import fcntl
    import resource
except ImportError:  # Windows, where no jail can be built (`worker.missing_support`) and the module only has its tables
    pass

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_THREAD = 0x10000000, 0x20000000, 0x40000000, 0x00010000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME = 1, 2, 4, 8, 1024
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 32, 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
SIGCHLD = 17


@dataclass(frozen=True)
class Machine:
    """What differs between processors: the audit architecture, and some system call numbers."""

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

if os.name == "posix":
    libc = ctypes.CDLL(None, use_errno=True)
    _python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock over a call


def machine() -> Machine:
    """This processor's numbers; `KeyError` on one that is not in the table."""
    return MACHINES[platform.machine()]


def checked(result: int, name: str) -> int:
    """The result of a system call; raises `OSError` with its errno where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


# A prepared system call: its name for error messages, the function, its arguments. A negative result is a failure.
Call: TypeAlias = tuple[str, Callable[..., int], tuple[Any, ...]]


def make(*calls: Call) -> None:
    """Make these calls in order, up to the first that fails."""
    for name, function, arguments in calls:
        if function(*arguments) < 0:
            checked(-1, name)


def unshare(flags: int) -> None:
    checked(libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> Call:
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind, data or None)]
    return f"mount {target}", libc.mount, (encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def chdir(folder: str) -> Call:
    return f"chdir {folder}", libc.chdir, (os.fsencode(folder),)


def limit(which: int, most: int) -> Call:
    """Set a resource limit, or keep the current hard limit where that is lower."""
    own = resource.getrlimit(which)[1]
    least = most if own == resource.RLIM_INFINITY else min(most, own)
    return f"setrlimit {which}", libc.setrlimit, (which, struct.pack("QQ", least, least))


def become(user: int) -> list[Call]:
    """Change to another user, with one group and no supplementary ones."""
    number = ctypes.c_uint(user)
    return [
        ("setgroups", libc.setgroups, (ctypes.c_size_t(0), None)),
        ("setresgid", libc.setresgid, (number, number, number)),
        ("setresuid", libc.setresuid, (number, number, number)),
    ]


def enter_root(folder: str) -> None:
    """Make this mount point the root, and drop the old one."""
    os.chdir(folder)
    checked(libc.syscall(ctypes.c_long(machine().pivot_root), b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount")  # the old root covers the new one until it is detached
    os.chdir("/")


def prctl(option: int, value: int = 0) -> Call:
    return f"prctl {option}", libc.prctl, (option, ctypes.c_ulong(value), 0, 0, 0)


def bound_capabilities() -> None:
    """Empty the capability bounding set: nothing that this process executes can gain a capability."""
    number = 0
    while libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) == 0:
        number += 1


def no_capabilities() -> Call:
    """Drop all capabilities for good."""
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    return "capset", libc.syscall, (ctypes.c_long(machine().capset), header, none)


def high(descriptor: int) -> int:
    """Move a descriptor to a high number, so that runs can use the low ones."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(descriptor)
    return moved


def close_from(lowest: int) -> None:
    """Close every descriptor from this one up."""
    if libc.syscall(ctypes.c_long(CLOSE_RANGE), ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)):
        os.closerange(lowest, 65536)  # a kernel before 5.9


# Looked up once: a lookup in each clone would copy all the memory that it touches.
_before_fork, _in_child, _in_parent = (
    getattr(ctypes.pythonapi, f"PyOS_{name}") for name in ("BeforeFork", "AfterFork_Child", "AfterFork_Parent")
)


def clone(flags: int) -> int:
    """Like `os.fork`, into new namespaces. For a process with one thread only."""
    _before_fork()
    pid = _python.syscall(ctypes.c_long(machine().clone), ctypes.c_ulong(flags | SIGCHLD), None, None, None, None)
    number = ctypes.get_errno()
    if pid == 0:
        _in_child()
        return 0
    _in_parent()
    if pid < 0:
        raise OSError(number, f"clone: {os.strerror(number)}")
    return int(pid)
