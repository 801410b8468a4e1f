"""Landlock: a process gives up, for good, every file it does not name. Linux 5.13 and newer."""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import struct
from collections.abc import Iterable

from ponder.verify.sandbox.kernel import LANDLOCK_ADD, LANDLOCK_CREATE, LANDLOCK_RESTRICT, checked, libc

# The rights by their bit, and the version of Landlock that knows them.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
MAKE_CHAR, MAKE_BLOCK, IOCTL_DEVICE = 1 << 6, 1 << 11, 1 << 15
FIRST = (1 << 13) - 1
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE
ANYTHING = ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEVICE)
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE  # what makes sense for something not a folder


@functools.cache
def version() -> int:
    """Of the kernel's Landlock; 0 where it has none or has it switched off."""
    return max(0, int(libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def rule(beneath: int, rights: int) -> bytes:
    """What `restrict` takes: these rights over what lies below an open path, which stays open until then."""
    folder = stat.S_ISDIR(os.fstat(beneath).st_mode)
    return struct.pack("=Qi", rights & handled_files() & (-1 if folder else OF_FILES), beneath)


def restrict(rules: Iterable[bytes]) -> None:
    """Only this from now on; no TCP, no signals or abstract sockets to the outside, as far as the version knows them.

    The caller has set no_new_privs.
    """
    known = version()
    handled = struct.pack("QQQ", handled_files(), 3, 3)[: 24 if known >= 6 else 16 if known >= 4 else 8]
    held = checked(
        libc.syscall(ctypes.c_long(LANDLOCK_CREATE), handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )
    for packed in rules:
        checked(libc.syscall(ctypes.c_long(LANDLOCK_ADD), held, 1, packed, 0), "landlock_add_rule")
    checked(libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT), held, ctypes.c_uint(0)), "landlock_restrict_self")
    os.close(held)


@functools.cache
def handled_files() -> int:
    """The rights over files that this kernel's Landlock knows, all of which must be granted to be had."""
    known = version()
    return (
        FIRST | (1 << 13 if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0) | (IOCTL_DEVICE if known >= 5 else 0)
    )
