"""Detect the strongest isolation possible here. Each level is tried for real, once; the first that works wins."""

from __future__ import annotations

import functools
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from ponder.verify.sandbox import landlock
from ponder.verify.sandbox.kernel import MACHINES
from ponder.verify.sandbox.results import IsolationKind, SandboxError, SandboxLimits
from ponder.verify.sandbox.sandbox_run import RunEnded, WorkerLost, read_tree
from ponder.verify.sandbox.worker import Worker, missing_support

NO_JAIL_ADVICE = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces=10000, and on Ubuntu"
    " kernel.apparmor_restrict_unprivileged_userns=0), use Linux 5.13 or newer with Landlock, or start the container"
    " with --security-opt seccomp=unconfined. Or choose isolation='unsafe' (--unsafe-sandbox), which gives up the jail"
    " and says so."
)
UNSAFE_WARNING = (
    "isolation='unsafe' runs programs without a jail: they can read and delete your files, use the network, start"
    " processes that outlive them and fill memory and disk. Scores are still computed outside of them."
)


@dataclass(frozen=True)
class IsolationReport:
    """The isolation that runs get, its layers, and why no stronger one works. `isolation=None`: none works."""

    isolation: IsolationKind | None
    layers: tuple[str, ...] = ()
    why_not: tuple[tuple[str, str], ...] = ()  # a stronger isolation, and what prevents it

    def __str__(self) -> str:
        summary = f"{self.isolation} ({', '.join(self.layers)})" if self.isolation else "no jail"
        return summary + "".join(f"; not {isolation}: {reason}" for isolation, reason in self.why_not)


@functools.cache
def detect_isolation() -> IsolationReport:
    """The isolation that this machine supports. Detected once per process, in about a tenth of a second."""
    if missing := missing_support():
        return IsolationReport(None, (), (("namespaces", missing),))
    if platform.machine() not in MACHINES:
        supported = " and ".join(MACHINES)
        return IsolationReport(
            None, (), (("namespaces", f"processor {platform.machine()!r} is not known here, only {supported}"),)
        )
    obstacles: list[tuple[str, str]] = []
    candidates: dict[IsolationKind, Callable[[], str]] = {"namespaces": lambda: "", "landlock": _no_landlock}
    for isolation, obstacle in candidates.items():
        reason = obstacle()
        if not reason:
            try:
                return IsolationReport(isolation, tuple(_try_isolation(isolation)), tuple(obstacles))
            except WorkerLost as lost:
                reason = str(lost)
        obstacles.append((isolation, reason))
    return IsolationReport(None, (), tuple(obstacles))


_unsafe_allowed = False  # the user allowed programs to run where no jail can be built


def allow_unsafe() -> None:
    """From now on in this process: where no jail can be built, programs run without one, and a warning says so."""
    global _unsafe_allowed
    _unsafe_allowed = True


def choose_isolation(isolation: IsolationKind | None) -> IsolationKind:
    """The requested isolation, or the strongest possible; `SandboxError` says why there is none."""
    if isolation is None and _unsafe_allowed and detect_isolation().isolation is None:
        isolation = "unsafe"
    if isolation is not None:
        if missing := missing_support():
            raise SandboxError(f"no code can be run here: {missing}")
        if isolation == "unsafe":
            warnings.warn(UNSAFE_WARNING, RuntimeWarning, stacklevel=3)
        return isolation
    report = detect_isolation()
    if report.isolation is None:
        raise SandboxError(f"no code is run, since nothing here would hold it: {report}. {NO_JAIL_ADVICE}")
    return report.isolation


def _no_landlock() -> str:
    return "" if landlock.version() else "the kernel has no Landlock, or has it switched off"


def _try_isolation(isolation: IsolationKind) -> list[str]:
    """Start a worker, run a program in it, and check that the program is confined."""
    worker = Worker(isolation)
    try:
        run = worker.launch("candidate", SandboxLimits())
        try:
            run.send(["import os\ndef probe():\n    try: os.fork()\n    except OSError: return 'held'", "probe"])
            run.receive()
            run.send(["plain", "probe", ["l"], ["d"]])
            answer = read_tree(run.receive(time.monotonic() + 10)[1])
        except RunEnded as ended:
            raise WorkerLost(f"a first program {ended.run_status or 'died'} {ended}") from None
        run.wait_for_exit(stop=True)
        if answer != ["ok", "held"]:
            raise WorkerLost(f"a first program was not held: {answer!r}"[:200])
        return worker.layers()
    finally:
        worker.close()
