"""Landlock: a process gives up access to every file that it does not list, for good. Linux 5.13 and newer."""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import struct
from collections.abc import Sequence
from typing import Any

from ponder.verify.sandbox.kernel import LANDLOCK_ADD, LANDLOCK_CREATE, LANDLOCK_RESTRICT, Call, checked, libc

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
    """The ABI version of the kernel's Landlock; 0 where it has none or it is disabled."""
    return max(0, int(libc.syscall(ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def rule(beneath: int, rights: int) -> bytes:
    """A rule that grants these rights below an open path. The path must stay open while the rule is used."""
    folder = stat.S_ISDIR(os.fstat(beneath).st_mode)
    return struct.pack("=Qi", rights & handled_files() & (-1 if folder else OF_FILES), beneath)


def restriction(rules: Sequence[bytes], scratch: str | None) -> Call:
    """Restrict the process to these rules. Newer versions also deny TCP, signals and abstract sockets to the outside.

    `scratch`: a folder that may be used in any way, by its name at the time of the call. The caller has set
    no_new_privs.
    """
    abi_version = version()
    handled = struct.pack("QQQ", handled_files(), 3, 3)[: 24 if abi_version >= 6 else 16 if abi_version >= 4 else 8]
    create = (ctypes.c_long(LANDLOCK_CREATE), handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0))
    return (
        "landlock",
        _restrict,
        (create, ctypes.c_long(LANDLOCK_ADD), ctypes.c_long(LANDLOCK_RESTRICT), rules, scratch),
    )


def _restrict(create: tuple[Any, ...], add: Any, enforce: Any, rules: Sequence[bytes], scratch: str | None) -> int:
    ruleset = checked(libc.syscall(*create), "landlock_create_ruleset")
    for packed in rules:
        if libc.syscall(add, ruleset, 1, packed, 0) < 0:
            checked(-1, "landlock_add_rule")
    if scratch is not None:
        beneath = os.open(scratch, os.O_PATH)
        own = struct.pack("=Qi", ANYTHING & handled_files(), beneath)
        checked(libc.syscall(add, ruleset, 1, own, 0), "landlock_add_rule")
        os.close(beneath)
    checked(libc.syscall(enforce, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return 0


@functools.cache
def handled_files() -> int:
    """The file rights that this kernel's Landlock knows. Each of them is denied unless a rule grants it."""
    abi_version = version()
    return (
        FIRST
        | (1 << 13 if abi_version >= 2 else 0)
        | (TRUNCATE if abi_version >= 3 else 0)
        | (IOCTL_DEVICE if abi_version >= 5 else 0)
    )
