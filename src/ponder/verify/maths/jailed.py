"""The processes in which `maths_inside` runs: one pool for all maths verifiers of this process, closed when it ends."""

from __future__ import annotations

import os
from functools import lru_cache

from ponder.verify.sandbox import Limits, Plain, Reply, Sandbox

MODULE = "ponder.verify.maths_inside"
REUSE = 200  # comparisons by one clone: sympy's caches stay warm, and what it hoards is given back


def call(seconds: float, function: str, *arguments: Plain) -> Reply:
    return _pool().call(f"{MODULE}:{function}", *arguments, limits=_limits(seconds))


async def acall(seconds: float, function: str, *arguments: Plain) -> Reply:
    return await _pool().acall(f"{MODULE}:{function}", *arguments, limits=_limits(seconds))


@lru_cache(maxsize=1)
def _pool() -> Sandbox:
    # More slots than processors: an answer that hangs holds one for its time, and honest ones go on beside it.
    return Sandbox(max(4, os.cpu_count() or 1), preload=(MODULE,), reuse=REUSE)


def _limits(seconds: float) -> Limits:
    return Limits(seconds, wall=seconds, memory=1 << 30)
