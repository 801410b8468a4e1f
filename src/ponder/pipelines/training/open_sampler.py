"""What samples the rollouts of a training job: the policy that learns, a copy of it, or sampler processes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.models.sampler_copy import SamplerCopy
from ponder.train.distributed import current_group

REPLICAS_FOLDER = "replicas"  # in the run directory: the ledger of requests, and what each process wrote


class SamplerSettings(Protocol):
    @property
    def staleness(self) -> int: ...
    @property
    def replicas(self) -> int: ...


async def open_sampler(
    job: SamplerSettings, policy: PonderPolicy, run_folder: Path
) -> SamplerCopy | ReplicaPolicy | None:
    """A sampler with weights of its own; None: the policy samples itself, with the weights that learn."""
    if not job.replicas:
        return SamplerCopy(policy) if job.staleness else None
    if current_group().size > 1:
        raise UsageError("replicas sample for one learner: leave out --ranks, or --replicas")
    replicas = ReplicaPolicy(policy, job.replicas, run_folder / REPLICAS_FOLDER)
    await replicas.start()
    return replicas
