"""Build the jail around this process, and confine one run in it. Runs inside, with the standard library only."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

from ponder.verify.sandbox import kernel, landlock, seccomp

# A worker's settings and a run's request are plain JSON objects, written by the host: see worker.py.
Settings = dict[str, Any]
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
PRIVATE = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS  # new for every run, in addition to the worker's


def enter_namespaces(settings: Settings) -> list[str]:
    """Enter new namespaces, with a read-only root that holds only the files in `visible`.

    Returns the layers reached. The caller is then the second process of a pid namespace; the first waits outside.
    """
    opened, reached = _enter_user_namespace(settings)
    links = {path: os.readlink(path) for path in settings["links"]}
    _build("/tmp", opened, links, settings["scratch"])
    kernel.enter_root("/tmp")
    _remount("/", kernel.MS_NOSUID | kernel.MS_NODEV)
    _become_init()
    return reached


def _enter_user_namespace(settings: Settings) -> tuple[list[tuple[str, int]], list[str]]:
    """As root, map two users, neither of them root outside. Otherwise only the current user can be mapped.

    Returns the visible files, opened before the change of user: the new user may have no access to them.
    """
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    flags |= kernel.CLONE_NEWUTS | kernel.CLONE_NEWUSER
    uid, gid, me = os.getuid(), os.getgid(), os.getpid()
    ready, mapped = os.pipe(), os.pipe()
    helper = os.fork() if uid == 0 else -1
    if helper == 0:
        _map_users(me, settings["uid"], ready, mapped)
    kernel.unshare(flags)
    opened = [(path, os.open(path, os.O_PATH)) for path in (*settings["visible"], *DEVICES)]
    two = False
    if uid == 0:
        os.write(ready[1], b"x")
        two = os.read(mapped[0], 1) == b"y"
        os.waitpid(helper, 0)
    for end in (*ready, *mapped):
        os.close(end)
    if two:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        return opened, ["namespaces", "another user"]
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    return opened, ["namespaces"]


def _map_users(pid: int, first: int, ready: tuple[int, int], mapped: tuple[int, int]) -> NoReturn:
    """Map users, in a helper process outside the namespace: only there can other users be mapped."""
    os.close(ready[1])
    if not os.read(ready[0], 1):  # the parent is gone
        os._exit(1)
    try:
        for kind in ("uid", "gid"):
            _write(f"/proc/{pid}/{kind}_map", f"0 {first} 2")
        os.write(mapped[1], b"y")
    except OSError:
        os.write(mapped[1], b"n")
    finally:
        os._exit(0)


def _build(root: str, opened: Sequence[tuple[str, int]], links: dict[str, str], scratch: str) -> None:
    """Mount a small tmpfs over a folder that every machine has, and bind the opened files into it."""
    kernel.make(
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE),
        kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755"),
    )
    for path, link in links.items():
        os.symlink(link, root + path)
    for path, descriptor in opened:
        target, source = root + path, f"/proc/self/fd/{descriptor}"
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        kernel.make(kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC))
        _remount(target, kernel.MS_NOSUID | (0 if path in DEVICES else kernel.MS_NODEV))
        os.close(descriptor)
    os.makedirs(root + scratch, exist_ok=True)


def _remount(target: str, flags: int) -> None:
    """Remount read-only. Flags that were set outside are locked, so they are set again."""
    had = os.statvfs(target).f_flag
    flags |= had & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_RELATIME | os.ST_NODIRATIME)
    kernel.make(kernel.mount("none", target, None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | flags))


def _become_init() -> None:
    """Continue as process 1 of the new pid namespace: when it ends, the kernel kills all others in it."""
    child = os.fork()
    if child:
        kernel.close_from(3)  # or the host would wait for this process too
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 1)
    kernel.make(kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL))


def open_rules(settings: Settings) -> list[bytes]:
    """The Landlock rules for files that every run may read. Its writable folder is added for each run."""
    if not settings["landlock"]:
        return []
    rights_by_path = [(path, landlock.READ) for path in settings["visible"]]
    rights_by_path += [(path, landlock.DEVICE) for path in DEVICES]
    return [landlock.rule(kernel.high(os.open(path, os.O_PATH)), rights) for path, rights in rights_by_path]


def locks(settings: Settings, bounds: dict[str, Any]) -> list[kernel.Call]:
    """The system calls that confine a process for good, in order, just before it runs an untrusted program.

    They are prepared once for all runs with the same bounds: a clone that computes less copies less memory.
    """
    isolation, scratch, programs = settings["isolation"], settings["scratch"], bounds["mode"] == "program"
    alone = isolation == "namespaces"
    calls: list[kernel.Call] = []
    if alone:
        noexec = 0 if programs else kernel.MS_NOEXEC
        size = f"size={bounds['disk']},nr_inodes={settings['inodes']},mode=1777"
        calls.append(kernel.mount("tmpfs", scratch, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | noexec, size))
    if isolation != "landlock":
        calls.append(kernel.chdir(scratch if alone else settings["work"]))
    calls += [kernel.limit(which, most) for which, most in _limits(bounds).items()]
    if isolation == "unsafe":
        return calls
    calls.append(kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1))
    if settings["landlock"]:
        calls.append(landlock.restriction(settings["rules"], scratch if alone else None))
    if settings["run_as"] is not None:
        calls += kernel.become(settings["run_as"])
    calls += [
        kernel.no_capabilities(),
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL),  # after the change of user, which clears it
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0),
    ]
    # Alone in its namespace, a run is process 1. Elsewhere its number is known only when it is there.
    return [*calls, seccomp.filtered(seccomp.for_process(1, programs, alone))] if alone else calls


def confine(settings: Settings, bounds: dict[str, Any], prepared: list[kernel.Call]) -> None:
    """Confine this process, with the calls from `locks`."""
    kernel.make(*prepared)
    if settings["isolation"] == "landlock":
        kernel.make(seccomp.filtered(seccomp.for_process(os.getpid(), bounds["mode"] == "program", alone=False)))


def _limits(bounds: dict[str, Any]) -> dict[int, int]:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: max(1, int(bounds["seconds"] + 0.999)),
        resource.RLIMIT_FSIZE: bounds["disk"],
        resource.RLIMIT_NOFILE: 64 if bounds["mode"] != "program" else 256,
        resource.RLIMIT_DATA if bounds["reserves"] else resource.RLIMIT_AS: bounds["memory"],
        resource.RLIMIT_MEMLOCK: 0,
    }
    if bounds["processes"] is not None:
        limits[resource.RLIMIT_NPROC] = bounds["processes"]
    return limits


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
