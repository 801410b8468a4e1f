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
from ponder.nets.hardware import pick_device, pick_dtype
from ponder.nets.tensor_parallel import check_shard_count
from ponder.nets.weight_transports import TransportName
from ponder.protocols import Policy
from ponder.settings import When
from ponder.train.distributed import current_group

Replicas = Annotated[int, "sampler processes to spread the work over, on the machine's GPUs in turn; 0: this one"]
ReplicaEngineName = Annotated[
    ReplicaEngine, "what samples in them: ponder's own engine, or a server of vLLM's", When("replicas")
]
TensorParallel = Annotated[
    int, "GPUs, or processes on the CPU, over which each replica's network is split", When("replicas")
]
WeightTransportName = Annotated[
    TransportName,
    "how new weights get to them: cuda_ipc or shared_memory on one machine, broadcast (NCCL or gloo), tcp, or a file; "
    "default: the best one",
    When("replicas"),
]
REPLICAS_FOLDER = "replicas"  # in the run directory: the ledger of requests, and what each process wrote


class ReplicaSettings(Protocol):
    @property
    def replicas(self) -> int: ...
    @property
    def replica_engine(self) -> ReplicaEngine: ...
    @property
    def tensor_parallel(self) -> int: ...


class SamplerSettings(ReplicaSettings, Protocol):
    @property
    def staleness(self) -> int: ...
    @property
    def weight_transport(self) -> TransportName: ...


def check_sampler(job: ReplicaSettings, policy: PonderPolicy) -> None:
    """Refuse replicas that the ranks cannot share, or whose network cannot be split. To be called before the preflight,
    which takes minutes."""
    ranks = current_group().size
    if job.replicas % ranks:
        raise UsageError(f"{ranks} ranks cannot share {job.replicas} replicas: give a multiple of {ranks}")
    if job.replicas:
        check_shard_count(policy.net.config, job.tensor_parallel)


async def open_sampler(
    job: SamplerSettings, policy: PonderPolicy, run_folder: Path
) -> SamplerCopy | ReplicaPolicy | None:
    """A sampler with weights of its own; None: the policy samples itself, with the weights that learn."""
    if not job.replicas:
        return SamplerCopy(policy) if job.staleness else None
    group, folder = current_group(), run_folder / REPLICAS_FOLDER
    own = job.replicas // group.size  # each rank's, since each samples its part of the problems
    replicas = ReplicaPolicy(
        policy,
        own,
        folder if group.size == 1 else folder / f"rank-{group.rank}",
        transport=job.weight_transport,
        place=open_place(run_folder.name),
        next_gpu=rank_env.ranks_here() + (own * job.tensor_parallel - 1) * rank_env.local_rank(),
        engine=job.replica_engine,
        tensor_parallel=job.tensor_parallel,
    )
    await replicas.start()
    return replicas


class SpreadJob(ReplicaSettings, Protocol):
    """A job that samples and does not train."""

    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def host_if_split(job: SpreadJob) -> tuple[str, str]:
    """Device and dtype to load the job's own policy with. One whose replicas are split over GPUs may fit none of them:
    it stays in the host's memory, in their dtype."""
    if job.tensor_parallel == 1 or (device := pick_device(job.device)).type != "cuda":
        return job.device, job.dtype
    return "cpu", str(pick_dtype(job.dtype, device)).removeprefix("torch.")


@asynccontextmanager
async def over_replicas(job: SpreadJob, policy: Policy, run_folder: Path, *seed: int) -> AsyncIterator[Policy]:
    """The policy, or the same in the job's replicas, with the random stream of this seed."""
    if not job.replicas:
        yield policy
        return
    if not isinstance(policy, PonderPolicy):
        raise UsageError("replicas run ponder's own networks: leave out --replicas for this model")
    place = open_place(run_folder.name)
    spread = ReplicaPolicy(
        policy,
        job.replicas,
        run_folder / REPLICAS_FOLDER,
        place=place,
        device=pick_device(job.device) if job.tensor_parallel > 1 else None,
        engine=job.replica_engine,
        tensor_parallel=job.tensor_parallel,
    )
    async with spread:
        spread.on_tokens = policy.on_tokens
        spread.reseed(*seed)
        yield spread


def check_replicas(replicas: int, tensor_parallel: int) -> None:
    if replicas < 0:
        raise UsageError(f"replicas is {replicas}; it must be 0 or more")
    if tensor_parallel < 1:
        raise UsageError(f"tensor_parallel is {tensor_parallel}; it must be 1 or more")
    if tensor_parallel > 1 and not replicas:
        raise UsageError("tensor_parallel splits the networks of replicas: give --replicas 1 or more")
