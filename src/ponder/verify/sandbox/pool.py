"""The sandbox: a pool of warm workers, lent out one run at a time, to any thread and any event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from ponder.errors import UsageError
from ponder.verify.sandbox import host
from ponder.verify.sandbox.codec import Plain, Tree, encode
from ponder.verify.sandbox.fair_semaphore import FairSemaphore
from ponder.verify.sandbox.isolation import choose_isolation
from ponder.verify.sandbox.results import (
    CallResult,
    IsolationKind,
    ProgramResult,
    SandboxError,
    SandboxLimits,
    TestsResult,
)
from ponder.verify.sandbox.sandbox_run import WorkerLost
from ponder.verify.sandbox.worker import Kind, Mode, Worker

P = ParamSpec("P")
T = TypeVar("T")
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class Sandbox:
    """Runs untrusted programs. `slots`: runs at once (default: one for each processor).

    `paths`: folders of modules; `tools`: folders outside /usr that other programs than Python are found in. Both can
    be read inside, and not changed.
    """

    def __init__(
        self,
        slots: int | None = None,
        *,
        limits: SandboxLimits = SandboxLimits(),
        preload: Sequence[str] = (),
        paths: Sequence[str] = (),
        tools: Sequence[str] = (),
        isolation: IsolationKind | None = None,
        calls_per_clone: int = 1,
    ) -> None:
        if (slots is not None and slots < 1) or calls_per_clone < 1:
            raise UsageError(f"slots is {slots} and calls_per_clone is {calls_per_clone}; each must be at least 1")
        self.slots = slots or os.cpu_count() or 1
        self.limits, self.preload, self.paths, self.calls_per_clone = (
            limits,
            tuple(preload),
            tuple(paths),
            calls_per_clone,
        )
        self.tools = tuple(tools)
        self.isolation = choose_isolation(isolation)
        self.closed = False
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Kind, list[Worker]] = {"python": [], "programs": []}
        self._semaphore = FairSemaphore(self.slots)
        self._threads: ThreadPoolExecutor | None = None

    def call(self, function: str, *arguments: Plain, limits: SandboxLimits | None = None) -> CallResult:
        """Call a trusted function ("module:function" of a preloaded module) on untrusted plain data."""
        module = function.partition(":")[0]
        if module not in {name.partition(":")[0] for name in self.preload}:
            raise UsageError(f"{module!r} is not preloaded; make the sandbox with preload=({module!r},)")
        request, bounds = [function, encode(list(arguments))], limits or self.limits

        def work(fresh: bool) -> CallResult:
            with self._worker("python", fresh) as worker:
                return host.call(worker, request, bounds, self.calls_per_clone)

        try:
            return self._with_retry(work)
        except WorkerLost as lost:
            return CallResult("lost", None, str(lost))

    async def acall(self, function: str, *arguments: Plain, limits: SandboxLimits | None = None) -> CallResult:
        """`call`, without blocking the event loop."""
        return await self.in_thread(self.call, function, *arguments, limits=limits)

    def run_script(self, source: str, stdin: str = "", limits: SandboxLimits | None = None) -> ProgramResult:
        """Run a Python program that reads stdin and writes stdout."""
        return self._stream("python", "script", [source], stdin.encode("utf-8", "surrogateescape"), limits)[1]

    def run_cell(self, source: str, limits: SandboxLimits | None = None) -> ProgramResult:
        """Run a Python cell: stdout is all it printed, errors included, and the value of its last line."""
        return self._stream("python", "notebook", [source], b"", limits)[1]

    def run_program(
        self,
        command: Sequence[str],
        stdin: bytes = b"",
        files: Mapping[str, bytes] = NO_FILES,
        limits: SandboxLimits | None = None,
        reserves: bool = False,
    ) -> tuple[bytes, ProgramResult]:
        """Run any program of this machine, with these files beside it, in a folder of its own: its stdout as bytes too.

        `reserves`: it takes far more address space than it uses, as Node and Java do.
        """
        if self.isolation == "landlock" and files:
            raise SandboxError(f"a program with files ({', '.join(files)}) needs namespaces, and here is only Landlock")
        request = encode([list(command), dict(files)])
        return self._stream("programs", "program", request, stdin, limits, reserves)

    def call_program(
        self,
        source: str,
        entry: str,
        calls: Sequence[tuple[Sequence[Plain], Mapping[str, Plain]]],
        limits: SandboxLimits | None = None,
    ) -> list[CallResult]:
        """Call a function of an untrusted program, once for each case: one reply each, its value as a tree (`codec`).

        The tree is untrusted and not decoded yet. After a call that ends the program,
        the cases that are left end the same way.
        """
        requests = [["plain", entry, encode(list(args)), encode(dict(kwargs))] for args, kwargs in calls]

        def work(fresh: bool) -> list[CallResult]:
            with self._worker("python", fresh) as worker:
                return host.call_program(worker, source, entry, requests, limits or self.limits)

        try:
            return self._with_retry(work)
        except WorkerLost as lost:
            return [CallResult("lost", None, str(lost))] * len(requests)

    def run_tests(
        self,
        source: str,
        tests: Sequence[str],
        entry: str = "",
        setup: str = "",
        count_each: bool = False,
        limits: SandboxLimits | None = None,
        names: Sequence[str] = (),
    ) -> TestsResult:
        """Run trusted tests against an untrusted program: each in a jail of its own, with proxies between them.

        The program supplies `entry`, `names` and classes (free_names.py says which), and no helpers.
        object_trust.py says what its objects may decide. `count_each` counts every assert on its own.
        """
        request = [setup, list(tests), entry, list(names), count_each]

        def work(fresh: bool) -> TestsResult:
            with self._worker("python", fresh) as worker, self._worker("python", fresh) as other:
                return host.run_tests(worker, other, source, entry, request, limits or self.limits)

        try:
            return self._with_retry(work)
        except WorkerLost as lost:
            return TestsResult("lost", 0, 0, str(lost))

    async def in_thread(self, work: Callable[P, T], *arguments: P.args, **kwargs: P.kwargs) -> T:
        """Run any of the above without blocking the event loop: `await jail.in_thread(jail.run_script, source)`."""
        with self._lock:
            self._check_open()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.slots, "sandbox")
            future = self._threads.submit(work, *arguments, **kwargs)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End every worker and wait until all are gone. Runs in progress end first."""
        with self._lock:
            self.closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        with contextlib.ExitStack() as all_turns:  # a worker in use is closed by its borrower
            for _ in range(self.slots):
                all_turns.enter_context(self._semaphore)
        with self._lock:
            idle, self._idle = self._idle, {"python": [], "programs": []}
        for worker in (*idle["python"], *idle["programs"]):
            worker.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("the sandbox is closed; make another")

    def _with_retry(self, work: Callable[[bool], T]) -> T:
        """Run `work`, and retry once with fresh workers where the jail broke. Waits for a free slot."""
        with self._semaphore:
            try:
                return work(False)
            except WorkerLost:
                return work(True)

    @contextlib.contextmanager
    def _worker(self, kind: Kind, fresh: bool = False) -> Iterator[Worker]:
        """Borrow a worker. One that breaks is closed and not reused."""
        with self._lock:
            self._check_open()
            worker = None if fresh else self._next(self._idle[kind])
        if worker is None:
            preload, paths = (self.preload, self._paths()) if kind == "python" else ((), list(self.tools))
            worker = Worker(self.isolation, kind, self.limits, preload, paths)
        try:
            yield worker
        except BaseException:
            worker.close()
            raise
        with self._lock:
            if not self.closed:
                self._idle[kind].append(worker)
                return
        worker.close()

    def _next(self, idle: list[Worker]) -> Worker | None:
        """The first worker that can start at once; None where a new worker is faster than waiting.

        A new worker that must preload modules never is: an old one reaps its last run in milliseconds.
        """
        at = next((n for n, worker in enumerate(idle) if worker.ready), None)
        if at is None and (not idle or (len(idle) < self.slots and not self.preload)):
            return None
        return idle.pop(at or 0)

    def _paths(self) -> list[str]:
        """The import path of preloaded modules and their dependencies."""
        if not self.preload:
            return list(self.paths)
        folders = sysconfig.get_paths()
        return [*self.paths, *dict.fromkeys((folders["purelib"], folders["platlib"]))]

    def _stream(
        self,
        kind: Kind,
        mode: Mode,
        request: Tree,
        stdin: bytes,
        limits: SandboxLimits | None,
        reserves: bool = False,
    ) -> tuple[bytes, ProgramResult]:
        def work(fresh: bool) -> tuple[bytes, ProgramResult]:
            with self._worker(kind, fresh) as worker:
                if reserves and not worker.has_cgroup and self.isolation != "unsafe":
                    raise SandboxError("only a control group can bound this program, and none can be made here")
                return host.stream(worker, mode, request, stdin, limits or self.limits, reserves)

        try:
            return self._with_retry(work)
        except WorkerLost as lost:
            return b"", ProgramResult("lost", detail=str(lost))


_all: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_shared: dict[tuple[SandboxLimits, IsolationKind | None, tuple[str, ...]], Sandbox] = {}
_sharing = threading.Lock()


def shared_sandbox(
    limits: SandboxLimits = SandboxLimits(), isolation: IsolationKind | None = None, tools: tuple[str, ...] = ()
) -> Sandbox:
    """The one sandbox of this process for these limits and tools, made when it is first needed and closed at exit."""
    with _sharing:
        sandbox = _shared.get((limits, isolation, tools))
        if sandbox is None or sandbox.closed:
            sandbox = _shared[limits, isolation, tools] = Sandbox(limits=limits, isolation=isolation, tools=tools)
        return sandbox


def _close_all() -> None:
    for sandbox in list(_all):
        if not sandbox.closed:
            sandbox.close()


def _after_fork() -> None:
    """In a forked child, let go of the parent's workers; the child starts its own."""
    global _sharing
    _sharing = threading.Lock()
    for sandbox in list(_all):
        for workers in sandbox._idle.values():
            for worker in workers:
                worker.abandon_after_fork()
        sandbox._reset()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
