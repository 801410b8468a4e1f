"""Which jobs run in several processes; the others refuse to."""

from __future__ import annotations

from typing import Any

from ponder import rank_env
from ponder.errors import UsageError


def trains_over_ranks(job: Any) -> bool:
    """Whether the job is one with a `Learner`, whose work ranks share out."""
    return hasattr(job, "fsdp")


def runs_over_ranks(job: Any) -> bool:
    """Whether the job, or a stage of it, trains over ranks."""
    return trains_over_ranks(job) or any(trains_over_ranks(stage.job) for stage in getattr(job, "stages", ()))


def require_one_process(job: Any) -> None:
    """Refuse a job under torchrun that does not train over ranks: each process would do all of it."""
    if rank_env.world_size() > 1 and not runs_over_ranks(job):
        raise UsageError(f"{type(job).__name__} runs in one process: start it without torchrun and --ranks")
