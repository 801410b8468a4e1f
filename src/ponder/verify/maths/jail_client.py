"""Calls of `in_jail.symbolic` in the sandbox, and scores from their results. All maths verifiers share one pool."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from ponder.types import Score
from ponder.verify.sandbox import CallResult, Plain, Sandbox, SandboxLimits

SYMBOLIC_JAIL_MODULE = "ponder.verify.in_jail.symbolic"
CALLS_PER_CLONE = 200  # sympy's caches stay warm, and their memory is freed in the end


Result = TypeVar("Result")
# A computation that yields (function, arguments) for each call it needs in the sandbox, and is sent the reply.
JailCalls: TypeAlias = Generator[tuple[str, tuple[Plain, ...]], CallResult, Result]


def run(steps: JailCalls[Result], seconds: float) -> Result:
    """Run a computation to its end, from any thread."""
    try:
        function, arguments = next(steps)
        while True:
            function, arguments = steps.send(call(seconds, function, *arguments))
    except StopIteration as end:
        result: Result = end.value
        return result


async def arun(steps: JailCalls[Result], seconds: float) -> Result:
    """The same from any event loop."""
    try:
        function, arguments = next(steps)
        while True:
            function, arguments = steps.send(await acall(seconds, function, *arguments))
    except StopIteration as end:
        result: Result = end.value
        return result


def call(seconds: float, function: str, *arguments: Plain) -> CallResult:
    return symbolic_pool().call(f"{SYMBOLIC_JAIL_MODULE}:{function}", *arguments, limits=_limits(seconds))


async def acall(seconds: float, function: str, *arguments: Plain) -> CallResult:
    return await symbolic_pool().acall(f"{SYMBOLIC_JAIL_MODULE}:{function}", *arguments, limits=_limits(seconds))


@lru_cache(maxsize=1)
def symbolic_pool() -> Sandbox:
    # More slots than processors: an answer that hangs holds one for its time, and honest ones go on beside it.
    return Sandbox(max(4, os.cpu_count() or 1), preload=(SYMBOLIC_JAIL_MODULE,), calls_per_clone=CALLS_PER_CLONE)


def _limits(seconds: float) -> SandboxLimits:
    return SandboxLimits(seconds, wall_seconds=seconds, memory_bytes=1 << 30)


def failed_on_input(reply: CallResult) -> bool:
    """The call ended because of the two texts: too much time or memory, or an error in a library."""
    return reply.run_status not in ("done", "lost")


def gold_evaluates(alone: CallResult) -> bool:
    return alone.run_status == "done" and alone.value == "right"


def assign_blame(alone: CallResult, again: CallResult) -> Score:
    """The score where the first comparison failed: `alone` evaluated the gold by itself, `again` compared the pair a
    second time. If the gold evaluates, the answer is at fault, so that no answer gets "undecided" by being slow."""
    if gold_evaluates(alone) and failed_on_input(again):
        return Score(0.0, f"too slow: {again.run_status}")
    return reply_score(again)


def reply_score(reply: CallResult) -> Score:
    if reply.run_status != "done":
        return Score(None, reply.description)
    if reply.value == "bad data":
        return Score(None, "bad data: the gold answer cannot be read; check the task's data")
    return Score(1.0 if reply.value == "right" else 0.0, str(reply.value))
