"""The host side of a run: the messages between host and guest in each mode. Each function owns its workers.

`RunEnded` (the program sends no more) becomes a result here; `WorkerLost` (the jail broke) is passed on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from ponder.verify.sandbox.codec import NotPlainData, Tree, decode, dumps
from ponder.verify.sandbox.results import (
    CallResult,
    ProgramResult,
    RunStatus,
    SandboxLimits,
    TestsResult,
    printable_line,
)
from ponder.verify.sandbox.sandbox_run import RunEnded, RunExit, SandboxRun, read_tree
from ponder.verify.sandbox.worker import Mode, Worker

MAX_REQUEST_BYTES = 64 << 20  # of one request from trusted tests, which may have long arguments
MAX_PIPELINED_BYTES = 32 << 10  # that a socket buffers even if its other end is not reading


def call(worker: Worker, request: Tree, limits: SandboxLimits, reuse: int) -> CallResult:
    """Call a trusted function, in a run that may be reused for the next call."""
    run, worker.run = worker.run, None
    if run is None:
        run = worker.launch("calls", limits, keep_seconds=None if reuse == 1 else limits.deadline * reuse)
    run.limits, run.served = limits, run.served + 1
    until = time.monotonic() + limits.deadline
    try:
        run.send(request, until)
        reply = _reply(run.receive(until)[1])
        reply = CallResult(reply.run_status, decode(reply.value), reply.detail)
    except NotPlainData as error:
        reply = CallResult("malformed", None, str(error))
    except RunEnded as ended:
        return _ended(ended, run.wait_for_exit(stop=ended.run_status is not None))
    if run.served < reuse and time.monotonic() + limits.deadline < run.reusable_until:
        worker.run = run
    else:
        run.end_without_waiting()
    return reply


def call_program(
    worker: Worker, source: str, entry: str, requests: Sequence[Tree], limits: SandboxLimits
) -> list[CallResult]:
    """The results of a program's function for each request. Values are trees, not decoded yet."""
    replies: list[CallResult] = []
    run = worker.launch("candidate", limits)
    bodies = [dumps(tree) for tree in ([source, entry], *requests)]
    at_once = (
        len(bodies) if sum(map(len, bodies)) <= MAX_PIPELINED_BYTES else 1
    )  # it reads while it answers, or they would block
    try:
        run.send_bodies(bodies[:at_once])
        loaded = _reply(run.receive()[1])
        for number in range(1, len(bodies)) if loaded.run_status == "done" else ():
            if number >= at_once:
                run.send_bodies(bodies[number : number + 1])
            replies.append(_reply(run.receive()[1]))
        last = loaded
        run.end_without_waiting()
    except RunEnded as ended:
        last = _ended(ended, run.wait_for_exit(stop=ended.run_status is not None))
    return replies + [last] * (len(requests) - len(replies))


def run_tests(
    worker: Worker, other: Worker, source: str, entry: str, request: Tree, limits: SandboxLimits
) -> TestsResult:
    """Tests in one worker, the program they test in another. The host passes their frames on without parsing them."""
    run = worker.launch("candidate", limits)
    tests_run = other.launch("tests", replace(limits, output_bytes=max(limits.output_bytes, MAX_REQUEST_BYTES)))
    try:
        run.send([source, entry])
        loaded = _reply(run.receive()[1])
        tested = TestsResult(loaded.run_status, detail=loaded.detail)
        if loaded.run_status == "done":
            tested = _relay(run, tests_run, [*request, loaded.value == "function"])
        run.end_without_waiting()
    except RunEnded as ended:
        last = _ended(ended, run.wait_for_exit(stop=ended.run_status is not None))
        tested = TestsResult(last.run_status, detail=last.detail)
    tests_run.end_without_waiting()
    return tested


def _relay(run: SandboxRun, tests_run: SandboxRun, request: Tree) -> TestsResult:
    """Relay the tests' requests to the program and its answers back, until the tests send their verdict."""
    try:
        tests_run.send(request)
        letter, body = tests_run.receive()
    except RunEnded as ended:
        return TestsResult(ended.run_status or "crashed", detail=f"the tests ended: {ended}")
    while letter == "c":
        run.send_bodies([body])
        _, answer = run.receive()
        try:
            tests_run.send_bodies([answer])
            letter, body = tests_run.receive()
        except RunEnded as ended:
            return TestsResult(ended.run_status or "crashed", detail=f"the tests ended: {ended}")
    if letter != "v":
        return TestsResult("lost", detail=f"the tests broke: {printable_line(str(read_tree(body)))}")
    passed, total, why, undecided, failed, weaknesses = read_tree(body)
    return TestsResult(
        "done",
        passed,
        total,
        printable_line(why),
        printable_line(undecided),
        failed,
        tuple(map(printable_line, weaknesses)),
    )


def stream(
    worker: Worker,
    mode: Mode,
    request: Tree,
    stdin: bytes,
    limits: SandboxLimits,
    reserves: bool = False,
) -> tuple[bytes, ProgramResult]:
    """Run a program with stdin, stdout and stderr: its stdout as bytes, and its result."""
    ends = [os.pipe() for _ in range(2 if mode == "notebook" else 3)]  # a cell's errors go where it prints
    theirs = [ends[0][0], ends[1][1], ends[-1][1]]
    ours = [ends[0][1], *(pair[0] for pair in ends[1:])]
    try:
        run = worker.launch(mode, limits, theirs, reserves=reserves)
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in set(theirs):
            os.close(fd)
    not_received = False
    try:
        run.send(request)
    except RunEnded:
        not_received = True
    out, err, over = run.pump_streams(stdin, ours[0], ours[1:])
    run.await_confinement()
    failed = _failure(run) if mode == "program" else ""
    report = run.wait_for_exit(stop=over or not_received)
    if failed:
        return b"", ProgramResult("crashed", detail=failed)
    texts = (out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    if over:
        return out, ProgramResult(
            "too much output", *texts, None, report.seconds, f"more than {limits.output_bytes} bytes"
        )
    return out, ProgramResult(report.run_status, *texts, report.status, report.seconds, report.detail)


def _failure(run: SandboxRun) -> str:
    """Why a program could not be started; empty where it could."""
    try:
        letter, body = run.receive(time.monotonic() + 0.2)
        return printable_line(str(read_tree(body))[:300]) if letter == "!" else ""
    except RunEnded:
        return ""


_STATUS: dict[str, RunStatus] = {"ok": "done", "raised": "raised", "not plain": "malformed"}


def _reply(body: bytes) -> CallResult:
    """Parse a reply of the program. Its value is a tree, not decoded yet."""
    tree = read_tree(body)
    if type(tree) is not list or not tree or type(tree[0]) is not str or tree[0] not in _STATUS:
        raise RunEnded("malformed", "the reply is malformed")
    end, rest = _STATUS[tree[0]], tree[1:]
    if end == "done":
        return CallResult(end, rest[0] if rest else None)
    texts = [printable_line(part[:300]) for part in rest if type(part) is str]
    if texts[:1] == ["MemoryError"]:
        return CallResult("out of memory")
    return CallResult(end, None, ": ".join(part for part in texts if part))


def _ended(ended: RunEnded, report: RunExit) -> CallResult:
    """The result of a run that ended without an answer, by its own status or by the zygote's report."""
    if ended.run_status is not None:
        return CallResult(ended.run_status, None, str(ended))
    end = "crashed" if report.run_status in ("done", "raised") else report.run_status  # it exited without an answer
    return CallResult(end, None, report.detail or "it exited without an answer")
