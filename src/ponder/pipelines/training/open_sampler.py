"""What samples for a job: its policy, a copy of it, or sampler processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Protocol

from ponder import rank_env
from ponder.cluster.job_place import open_place
from ponder.errors import UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.replica_policy import ReplicaEngine, ReplicaPolicy
from ponder.models.sampler_copy import SamplerCopy
from ponder.protocols import Policy
from ponder.settings import When
from ponder.train.distributed import current_group

Replicas = Annotated[int, "sampler processes to spread the work over, on the machine's GPUs in turn; 0: this one"]
ReplicaEngineName = Annotated[
    ReplicaEngine, "what samples in them: ponder's own engine, or a server of vLLM's", When("replicas")
]
REPLICAS_FOLDER = "replicas"  # in the run directory: the ledger of requests, and what each process wrote


class ReplicaSettings(Protocol):
    @property
    def replicas(self) -> int: ...
    @property
    def replica_engine(self) -> ReplicaEngine: ...


class SamplerSettings(ReplicaSettings, Protocol):
    @property
    def staleness(self) -> int: ...


async def open_sampler(
    job: SamplerSettings, policy: PonderPolicy, run_folder: Path
) -> SamplerCopy | ReplicaPolicy | None:
    """A sampler with weights of its own; None: the policy samples itself, with the weights that learn."""
    if not job.replicas:
        return SamplerCopy(policy) if job.staleness else None
    group, folder = current_group(), run_folder / REPLICAS_FOLDER
    if job.replicas % group.size:
        raise UsageError(f"{group.size} ranks cannot share {job.replicas} replicas: give a multiple of {group.size}")
    own = job.replicas // group.size  # each rank's, since each samples its part of the problems
    replicas = ReplicaPolicy(
        policy,
        own,
        folder if group.size == 1 else folder / f"rank-{group.rank}",
        place=open_place(run_folder.name),
        next_gpu=rank_env.ranks_here() + (own - 1) * rank_env.local_rank(),
        engine=job.replica_engine,
    )
    await replicas.start()
    return replicas


@asynccontextmanager
async def over_replicas(job: ReplicaSettings, policy: Policy, run_folder: Path, *seed: int) -> AsyncIterator[Policy]:
    """The policy, or the same in as many processes as the job says, with the random stream of this seed."""
    replicas, engine = job.replicas, job.replica_engine
    if not replicas:
        yield policy
        return
    if not isinstance(policy, PonderPolicy):
        raise UsageError("replicas run ponder's own networks: leave out --replicas for this model")
    place = open_place(run_folder.name)
    async with ReplicaPolicy(policy, replicas, run_folder / REPLICAS_FOLDER, place=place, engine=engine) as spread:
        spread.on_tokens = policy.on_tokens
        spread.reseed(*seed)
        yield spread


def check_replicas(replicas: int) -> None:
    if replicas < 0:
        raise UsageError(f"replicas is {replicas}; it must be 0 or more")
