"""Seccomp: the system calls a jailed process may make. All that are not listed are refused.

The filter is classic BPF, assembled here: a binary search over the call's number ends in a block that allows it,
refuses it, or first checks its arguments. An argument's low word is enough wherever the kernel takes an int.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct
from collections.abc import Iterable
from typing import TypeAlias

from ponder.verify.sandbox.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    CLONE_THREAD,
    MACHINES,
    PR_SET_SECCOMP,
    Call,
    libc,
)

# name, number on x86-64, number on aarch64 (a dash where it has none). Numbers never change.
ALWAYS = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, shutdown 48 210,
getsockname 51 204, getpeername 52 205, socketpair 53 199, getsockopt 55 209, exit 60 93, wait4 61 260, uname 63 160,
fsync 74 82, fdatasync 75 83, ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49,
fchdir 81 50, rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, readlink 89 -,
umask 95 166, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173, getpgrp 111 -,
getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgid 121 155, getsid 124 156, capget 125 90,
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, statfs 137 43,
fstatfs 138 44, getpriority 140 141, sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
sched_get_priority_min 147 126, sched_rr_get_interval 148 127, arch_prctl 158 -, setrlimit 160 164, gettid 186 178,
time 201 -,
futex 202 98, sched_getaffinity 204 123, epoll_create 213 -, getdents64 217 61, set_tid_address 218 96,
restart_syscall 219 128, fadvise64 221 223, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108,
timer_getoverrun 225 109, timer_delete 226 111, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
exit_group 231 94, epoll_wait 232 -, epoll_ctl 233 21, waitid 247 95, openat 257 56, mkdirat 258 34,
newfstatat 262 79, unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78,
faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99, get_robust_list 274 100,
epoll_pwait 281 22, timerfd_create 283 85, eventfd 284 -, fallocate 285 47, timerfd_settime 286 86,
timerfd_gettime 287 87, signalfd4 289 74, eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59,
preadv 295 69, pwritev 296 70, getcpu 309 168, renameat2 316 276, getrandom 318 278, membarrier 324 283,
copy_file_range 326 285, preadv2 327 286, pwritev2 328 287, statx 332 291, rseq 334 293, close_range 436 436,
faccessat2 439 439, epoll_pwait2 441 441
"""
# Landlock does not look at these, so they are for runs that see no files but their own.
PRIVATE = """
truncate 76 45, chmod 90 -, fchmod 91 52, fchmodat 268 53, utime 132 -, utimes 235 -, utimensat 280 88, getxattr 191 8,
lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13
"""
PROGRAMS = "fork 57 -, vfork 58 -, execve 59 221"  # more, where the jail runs something else than Python
SESSIONS = "setpgid 109 154, setsid 112 157"  # harmless only where killing the first process kills them all
EXAMINED = """
ioctl 16 29, sendto 44 206, recvfrom 45 207, clone 56 220, kill 62 129, fcntl 72 25, flock 73 32, prctl 157 167,
tgkill 234 131, prlimit64 302 261, clone3 435 435
"""
OWN = 0x7FFFFEED  # placeholder for the process's own id; no process has it, because ids end at 1 << 22
NEWEST = 424  # calls from here up are refused as unknown, so that libraries fall back to older ones

Instruction: TypeAlias = tuple[int, int, int, int]
LOAD, EQUAL, AT_LEAST, ANY_BIT, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
ALLOW: list[Instruction] = [(RETURN, 0, 0, 0x7FFF0000)]
KILL: list[Instruction] = [(RETURN, 0, 0, 0x80000000)]

NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)  # fmt: skip
# Terminal and descriptor queries; nothing that pushes input, sets an owner to be signalled or reaches a device.
IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_OFD_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no F_SETOWN, which
# signals, and no lease.
FCNTLS = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
# F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW. A lock belongs to the file, and files such as /dev/null or the library
# are the host's own and every other jail's. So the filter answers "locked" itself, and the kernel locks nothing: within
# a run, which nobody shares files with, a lock keeps nobody out.
LOCKS = (6, 7, 37, 38)
# MSG_DONTWAIT, _EOR, _NOSIGNAL, _MORE; MSG_PEEK, _TRUNC, _DONTWAIT, _WAITALL. No MSG_OOB, whose bytes leave the stream.
SENDING, RECEIVING = 0x40 | 0x80 | 0x4000 | 0x8000, 0x02 | 0x20 | 0x40 | 0x100
# PR_GET_DUMPABLE, _SET/GET_NAME, _GET_SECCOMP, _CAPBSET_READ, _SET/GET_TIMERSLACK, _SET/GET_NO_NEW_PRIVS, _SET_VMA
PRCTLS = (3, 15, 16, 21, 23, 29, 30, 38, 39, 0x53564D41)


def numbers(table: str, machine: str) -> dict[str, int]:
    """The calls of a list by name, with their numbers on this machine."""
    column = 1 if machine == "x86_64" else 2
    rows = (entry.split() for entry in table.replace("\n", " ").split(",") if entry.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def for_process(pid: int, programs: bool, alone: bool) -> bytes:
    """The filter for the process of this id."""
    return program(programs, alone, platform.machine()).replace(struct.pack("I", OWN), struct.pack("I", pid))


@functools.cache
def program(programs: bool, alone: bool, machine: str) -> bytes:
    """The filter, with `OWN` where the process's id belongs.

    `programs`: it may fork and execute others. `alone`: it has namespaces of its own, where nobody else
    is there to signal, and no file but its own to change.
    """
    blocks = dict.fromkeys(numbers(ALWAYS, machine).values(), ALLOW)
    if alone:
        blocks.update(dict.fromkeys(numbers(PRIVATE, machine).values(), ALLOW))
    if programs:
        blocks.update(dict.fromkeys(numbers(PROGRAMS, machine).values(), ALLOW))
        if alone:
            blocks.update(dict.fromkeys(numbers(SESSIONS, machine).values(), ALLOW))
    n = numbers(EXAMINED, machine)
    free = programs and alone
    blocks |= {
        n["ioctl"]: _only(1, IOCTLS, errno.ENOTTY),
        n["fcntl"]: _only(1, FCNTLS, errno.EINVAL, pretended=LOCKS),
        n["flock"]: _refuse(0),
        n["prctl"]: _only(0, PRCTLS),
        n["sendto"]: _flags(3, SENDING) + _no_address(4),
        n["recvfrom"]: _flags(3, RECEIVING) + ALLOW,
        n["kill"]: ALLOW if free else _only(0, (OWN,)),
        n["tgkill"]: ALLOW if free else _only(0, (OWN,)),
        n["prlimit64"]: _only(0, (0, OWN)),
        n["clone"]: _process() if programs else _thread(),
        n["clone3"]: _refuse(errno.ENOSYS),  # its flags lie in memory, where a filter cannot look; libraries fall back
    }
    wrong_abi: list[Instruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, MACHINES[machine].audit), *KILL, (LOAD, 0, 0, 0)]
    code = wrong_abi + _search(_ranges(blocks))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filtered(code: bytes) -> Call:
    """From now on, for this process and all it starts. The caller has set no_new_privs."""
    filled = _Program(len(code) // 8, code)
    return "seccomp", libc.prctl, (PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(filled), 0, 0)


def _refuse(number: int = errno.EPERM) -> list[Instruction]:
    """The kernel does nothing and returns this error; with 0, it does nothing and returns success."""
    return [(RETURN, 0, 0, 0x00050000 | number)]


def _only(
    argument: int, values: Iterable[int], refusal: int = errno.EPERM, pretended: Iterable[int] = ()
) -> list[Instruction]:
    """Allowed where this argument is in `values`; success without effect where it is in `pretended`; else refused."""
    code: list[Instruction] = [(LOAD, 0, 0, 16 + 8 * argument)]
    for value in values:
        code += [(EQUAL, 0, 1, value), *ALLOW]
    for value in pretended:
        code += [(EQUAL, 0, 1, value), *_refuse(0)]
    return code + _refuse(refusal)


def _flags(argument: int, allowed: int) -> list[Instruction]:
    """Refused where this argument has any other bit; else what follows decides."""
    return [(LOAD, 0, 0, 16 + 8 * argument), (ANY_BIT, 0, 1, ~allowed & 0xFFFFFFFF), *_refuse()]


def _no_address(argument: int) -> list[Instruction]:
    """Allowed where this pointer is null: a connected socket needs none, and no other can be reached."""
    low = 16 + 8 * argument
    return [(LOAD, 0, 0, low), (EQUAL, 0, 3, 0), (LOAD, 0, 0, low + 4), (EQUAL, 0, 1, 0), *ALLOW, *_refuse()]


def _process() -> list[Instruction]:
    """clone, without new namespaces."""
    return [(LOAD, 0, 0, 16), (ANY_BIT, 0, 1, NAMESPACES), *_refuse(), *ALLOW]


def _thread() -> list[Instruction]:
    """clone, for threads only."""
    return [(LOAD, 0, 0, 16), (ANY_BIT, 1, 0, NAMESPACES), (ANY_BIT, 1, 0, CLONE_THREAD), *_refuse(), *ALLOW]


def _ranges(blocks: dict[int, list[Instruction]]) -> list[tuple[int, list[Instruction]]]:
    """Where each block begins, in order, with refusals between."""
    ranges: list[tuple[int, list[Instruction]]] = []
    for number in range(max(blocks) + 2):
        block = blocks.get(number) or _refuse(errno.ENOSYS if number >= NEWEST else errno.EPERM)
        if not ranges or ranges[-1][1] != block:
            ranges.append((number, block))
    return [*ranges, (0x40000000, KILL)]  # from there on x86-64 has its 32-bit twins


def _search(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    return [(AT_LEAST, 0, 1, ranges[middle][0]), (JUMP, 0, 0, len(below)), *below, *above]
