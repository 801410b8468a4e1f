"""A jail for untrusted programs: no network, no files of the host, bounded time, memory and output.

    with Sandbox() as jail:
        jail.run_script("print(int(input()) + 1)", stdin="41")  # ProgramResult(run_status="done", stdout="42\\n", ...)
        await jail.in_thread(jail.run_script, "print(1)")  # the same from any event loop

No run sees what another run did, in this jail or another, and neither does the host. Streams that nobody reads are
files of the run alone. The seccomp filter answers file locks without locking anything, because the files that all runs
can see (/dev/null, the library) are the host's own.

A `Sandbox` keeps warm interpreters, each inside its own jail. One run is one clone of one of them. Any thread and any
event loop may use it, with many runs at once. A worker that dies is replaced, and its run is repeated once.

Trusted functions that read hostile text run there too. Their module is imported once, inside, and each call is a clone
of that process. Arguments and result cross as plain data (`codec.py`):

    jail = Sandbox(preload=("package.module",), calls_per_clone=100)
    jail.call("package.module:compare", "1/2", "0.5")          # CallResult(run_status="done", value=True)
    await jail.acall("package.module:compare", "1/2", "0.5")

`calls_per_clone` lets one clone answer several calls before it is replaced, which saves the cost of cloning a large
process; after a timeout or a crash it is replaced at once. With 1, the default, no call leaves a trace in the next.
A module of ponder may be preloaded. Inside, `ponder`, `ponder.verify` and `ponder.verify.sandbox` are empty packages;
the `__init__` of any other package runs, so it must import nothing (see `ponder.verify.in_jail`).

Programs other than Python are found under /usr and in the folders given as `tools`, which are read-only.

`detect_isolation()` tries what the kernel allows and says why. The levels:

1. namespaces: fresh user, pid, mount, ipc, network and host-name namespaces, a sized private /tmp, another user, no
   capabilities; with Landlock, seccomp, resource limits and control groups on top, where the kernel has them
2. landlock: Landlock and seccomp over the same limits. A program has nowhere to write, so nothing can be compiled, and
   it can see which files exist (not what is in them)
3. nothing: `SandboxError` says what is missing and what to do. `isolation="unsafe"` runs without a jail when you ask
   for it, and warns. Systems other than Linux are refused: use Docker there
"""

from ponder.verify.sandbox.codec import Plain
from ponder.verify.sandbox.isolation import IsolationReport, allow_unsafe, detect_isolation
from ponder.verify.sandbox.pool import Sandbox, shared_sandbox
from ponder.verify.sandbox.results import (
    CallResult,
    IsolationKind,
    ProgramResult,
    RunStatus,
    SandboxError,
    SandboxLimits,
    TestsResult,
)

__all__ = [
    "CallResult",
    "IsolationKind",
    "IsolationReport",
    "Plain",
    "ProgramResult",
    "RunStatus",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "TestsResult",
    "allow_unsafe",
    "detect_isolation",
    "shared_sandbox",
]  # fmt: skip
