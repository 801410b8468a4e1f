"""A jail for programs nobody trusts: no network, no files to see or leave behind, bounded time, memory and output.

    with Sandbox() as jail:
        jail.script("print(int(input()) + 1)", stdin="41")     # Ran(end="done", stdout="42\\n", ...)
        await jail.later(jail.script, "print(1)")              # the same from any event loop

Nothing that a run does is seen by the next one, by another jail or by the host: streams that nobody reads are a file of
the run alone, and file locks are answered by the filter of system calls without locking anything, since the files that
every run can see (/dev/null, the library) are the host's own.

A `Sandbox` keeps warm interpreters, each inside its own jail; one run is one clone of one of them. It may be used from
any thread and any event loop, many runs at once. A worker that dies is replaced, and what it ran is run again once.

A trusted function that reads hostile text runs there too. Its module is imported once, inside, and each call is a
clone of that; arguments and result cross as plain data (`codec.py`):

    jail = Sandbox(preload=("package.module",), reuse=100)
    jail.call("package.module:compare", "1/2", "0.5")          # Reply(end="done", value=True)
    await jail.acall("package.module:compare", "1/2", "0.5")

`reuse` lets one clone answer so many calls before it is replaced, which saves the cost of cloning a large process;
after a timeout or a crash it is replaced at once. With `reuse=1`, the default, no call can leave a trace in the next.
A module of ponder itself may be preloaded, but packages' `__init__` of ponder do not run inside: import from modules.

Programs other than Python are found under /usr and in the folders given as `tools`, which can only be read.

What holds a run is decided by asking the kernel (`level()` says what it answered, and why):

1. namespaces: fresh user, pid, mount, ipc, network and host-name namespaces, a sized private /tmp, another user, no
   capabilities; with Landlock, seccomp, resource limits and control groups on top, where the kernel has them
2. landlock: Landlock and seccomp over the same limits. A program has nowhere to write, so nothing can be compiled, and
   it can see which files exist (not what is in them)
3. nothing: `SandboxError` says what is missing and what to do. `isolation="unsafe"` runs without a jail, on your word, and
   warns. Systems other than Linux are refused: use Docker there
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
