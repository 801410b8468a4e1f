"""The processes in which `maths_inside` runs: one pool for all maths verifiers of this process, closed when it ends."""

from __future__ import annotations

import os
from functools import lru_cache

from ponder.verify.sandbox import CallResult, Plain, Sandbox, SandboxLimits

SYMBOLIC_JAIL_MODULE = "ponder.verify.in_jail.symbolic"
CALLS_PER_CLONE = 200  # comparisons by one clone: sympy's caches stay warm, and what it hoards is given back


def call(seconds: float, function: str, *arguments: Plain) -> CallResult:
    return _pool().call(f"{SYMBOLIC_JAIL_MODULE}:{function}", *arguments, limits=_limits(seconds))


async def acall(seconds: float, function: str, *arguments: Plain) -> CallResult:
    return await _pool().acall(f"{SYMBOLIC_JAIL_MODULE}:{function}", *arguments, limits=_limits(seconds))


@lru_cache(maxsize=1)
def _pool() -> Sandbox:
    # More slots than processors: an answer that hangs holds one for its time, and honest ones go on beside it.
    return Sandbox(max(4, os.cpu_count() or 1), preload=(SYMBOLIC_JAIL_MODULE,), calls_per_clone=CALLS_PER_CLONE)


def _limits(seconds: float) -> SandboxLimits:
    return SandboxLimits(seconds, wall_seconds=seconds, memory_bytes=1 << 30)
