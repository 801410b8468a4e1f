"""`ponder plan ... --gpus 8 --nodes 2`: memory and time of ranks, what does not fit, and the commands that start them.

Nothing is run and no weights are loaded: it can be asked on a machine without a GPU.
"""

from __future__ import annotations

import json as json_lib
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.errors import UsageError
from ponder.pipelines.job.one_process import trains_over_ranks

if TYPE_CHECKING:
    from ponder.nets.config import DecoderConfig
    from ponder.train.rank_memory import TrainingShape
    from ponder.train.step_time import GPURates, StepTime

GIB = 1 << 30
RESERVED_BYTES = 2 * GIB  # of each GPU: CUDA itself, kernels, fragmentation
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}  # a GPU computes in bfloat16
PORT = 29500  # torchrun's
RAY_PORT = 6379  # of `ponder cluster up`
MODULE = "-m -- ponder"  # without -- torchrun takes --run for one of its own flags


@dataclass(frozen=True)
class ReplicaPlan:
    """The memory of each GPU of a replica, in bytes."""

    replicas: int
    tensor_parallel: int  # GPUs of each
    gpu_bytes: int
    weights: int  # of the first shard, which has the most
    cache_token_bytes: int
    smallest: int | None  # number of GPUs over which the weights fit; None: there is none

    @property
    def cache_bytes(self) -> int:
        return max(0, self.gpu_bytes - RESERVED_BYTES - self.weights)

    @property
    def fits(self) -> bool:
        return self.cache_bytes > 0


@dataclass(frozen=True)
class RankPlan:
    """The memory of a rank in bytes by purpose, copied whole and sharded, and the command that is to be run."""

    gpus: int  # of each node
    nodes: int
    node_ranks: int  # those of each node; its other GPUs are for replicas
    gpu_bytes: int
    fsdp: bool  # what the job says
    parameters: int
    trained: int
    replicated: dict[str, int]
    sharded: dict[str, int]
    command: tuple[str, ...]
    replica: ReplicaPlan | None = None
    time: StepTime | None = None  # at least, of a step of RL; of other jobs it depends on their texts

    @property
    def ranks(self) -> int:
        return self.node_ranks * self.nodes

    def fits(self, fsdp: bool) -> bool:
        return sum((self.sharded if fsdp else self.replicated).values()) + RESERVED_BYTES <= self.gpu_bytes


def make_rank_plan(
    job: Any, command: Sequence[str], gpus: int, nodes: int, gpu_memory: float, rates: GPURates | None = None,
    rl: Any = None,
) -> RankPlan:  # fmt: skip
    """`command`: the words after `ponder`; `gpu_memory` in GiB; `rl`: the stage whose steps are timed."""
    from ponder.train.rank_memory import rank_memory

    if not trains_over_ranks(job):
        raise UsageError(f"{type(job).__name__} does not train over ranks: leave out --gpus")
    shape = training_shape(job, int(gpu_memory * GIB))
    node_ranks = ranks_of_node(job, gpus, nodes)
    ranks = node_ranks * nodes
    check_shares(job, ranks)
    return RankPlan(
        gpus, nodes, node_ranks, int(gpu_memory * GIB), job.fsdp, shape.parameters, shape.trained,
        rank_memory(shape, ranks, fsdp=False),
        rank_memory(shape, ranks, fsdp=True, shard_size=job.shard_size), tuple(command),
        make_replica_plan(job, shape.config, shape.dtype_bytes, int(gpu_memory * GIB)),
        _step_time(job if rl is None else rl, shape, ranks, rates),
    )  # fmt: skip


def ranks_of_node(job: Any, gpus: int, nodes: int) -> int:
    """As many ranks as leave the replicas GPUs of their own, and share them out evenly."""
    replicas = getattr(job, "replicas", 0)
    if not replicas:
        return gpus
    if replicas % nodes:
        raise UsageError(f"{nodes} nodes cannot share {replicas} replicas: give a multiple of {nodes}")
    here = replicas // nodes
    taken = here * job.tensor_parallel
    ranks = next((n for n in range(gpus - taken, 0, -1) if here % n == 0), None)
    if ranks is None:
        each = "a GPU" if job.tensor_parallel == 1 else f"{job.tensor_parallel} GPUs"
        raise UsageError(
            f"a rank and {here} replicas on {each} each take {taken + 1} GPUs{' of each node' * (nodes > 1)}, and there"
            f" are {gpus}: where they share GPUs, leave out --gpus, and the plan tries a step"
        )
    return ranks


def check_shares(job: Any, ranks: int) -> None:
    """Refuse what the job would be refused for once it runs: numbers that so many ranks cannot share."""
    from ponder.train.distributed import DataParallelGroup, ShardMesh
    from ponder.train.sequence_parallel import SequenceGroup

    group = DataParallelGroup(0, ranks)
    SequenceGroup.of(group, job.sequence_parallel)
    if job.fsdp:
        ShardMesh.over(group, job.shard_size)
    workers = getattr(job, "verifier_workers", 0)
    if workers % ranks:
        raise UsageError(f"{ranks} ranks cannot share {workers} verifier workers: give a multiple of {ranks}")


def make_replica_plan(job: Any, config: DecoderConfig, dtype_bytes: int, gpu_bytes: int) -> ReplicaPlan | None:
    """Of a job with replicas of ponder's engine."""
    from ponder.nets.tensor_parallel import MAX_SHARDS, Shard, can_split, shard_config, shard_parameters

    if not getattr(job, "replicas", 0) or job.replica_engine != "ponder":
        return None
    own = shard_config(config, Shard(0, job.tensor_parallel))
    sizes = {n: shard_parameters(config, n) * dtype_bytes for n in range(1, MAX_SHARDS + 1) if can_split(config, n)}
    return ReplicaPlan(
        job.replicas, job.tensor_parallel, gpu_bytes, sizes[job.tensor_parallel],
        2 * own.layers * own.kv_heads * own.head_dim * dtype_bytes,
        next((n for n, size in sizes.items() if size + RESERVED_BYTES < gpu_bytes), None),
    )  # fmt: skip


def _step_time(job: Any, shape: TrainingShape, ranks: int, rates: GPURates | None) -> StepTime | None:
    from ponder.train.step_time import GPURates, least_step_time

    group_size = getattr(getattr(job, "rollout_strategy", None), "n", None)
    if group_size is None:
        return None
    sequences, tokens = job.problems_per_step * group_size, job.rollout_sampling.max_tokens
    return least_step_time(
        shape, sequences, tokens, ranks, rates or GPURates(), job.epochs_per_batch, job.replicas, job.tensor_parallel
    )


def training_shape(job: Any, gpu_bytes: int = 0) -> TrainingShape:
    """What a job's memory depends on, by its model's configuration; `gpu_bytes`: of each GPU."""
    from ponder.engine.engine import MAX_NUM_SEQS
    from ponder.train.activation_memory import gpu_microbatch_tokens
    from ponder.train.rank_memory import TrainingShape

    algorithm, config, dtype_bytes = job.algorithm, model_config(job.model), DTYPE_BYTES[job.dtype]
    tokens = job.max_tokens_per_microbatch or gpu_microbatch_tokens(config, dtype_bytes, gpu_bytes)
    reads_reference = algorithm.kl is not None or algorithm.needs_reference
    return TrainingShape(
        config, dtype_bytes, job.lora, job.frozen_layers, job.optimizer.states,
        reads_reference and job.lora is None and not algorithm.needs_teacher, algorithm.critic is not None,
        -(-tokens // job.sequence_parallel),
        job.gradient_checkpointing,
        bool(getattr(job, "staleness", 0) or getattr(job, "replicas", 0)),
        MAX_NUM_SEQS if getattr(job, "replicas", None) == 0 else 0,  # other jobs than RL have no replicas
        gpu_bytes,
    )  # fmt: skip


def model_config(model: Any) -> DecoderConfig:
    """The shape of a model, without its weights."""
    from ponder.models.model_paths import find_model
    from ponder.nets import config

    if not isinstance(model, str):
        import torch

        net, _ = model.build(torch.float32, torch.device("cpu"))
        own: DecoderConfig = net.config
        return own
    path = find_model(model, weights=False) / "config.json"
    if not path.is_file():
        raise UsageError(f"{model} has no config.json to read its shape from: give a Hugging Face folder")
    return config.from_hf(json_lib.loads(path.read_text(encoding="utf-8")))


def rank_plan_lines(plan: RankPlan) -> list[str]:
    """For people."""
    chosen, other = plan.fits(plan.fsdp), plan.fits(not plan.fsdp)
    nodes = f" on each of {plan.nodes} nodes" if plan.nodes > 1 else ""
    lines = [
        f"ranks     {plan.ranks}: {_gpus(plan.node_ranks)}{nodes}, one process each{_other_gpus(plan)}",
        f"model     {plan.parameters:,} parameters, {plan.trained:,} learn",
        "",
        f"GiB of each GPU, an estimate{'':4}{'replicated':>12}{'--fsdp':>10}",
    ]
    names = list(dict.fromkeys([*plan.replicated, *plan.sharded]))
    for name in names:
        lines.append(_memory_line(name, plan.replicated.get(name, 0), plan.sharded.get(name, 0)))
    lines += [_memory_line("in all", sum(plan.replicated.values()), sum(plan.sharded.values()))]
    free = [max(0, plan.gpu_bytes - RESERVED_BYTES - sum(p.values())) for p in (plan.replicated, plan.sharded)]
    lines += [_memory_line("left for the KV cache", *free), ""]
    verdict = "fits" if chosen else "does not fit"
    lines.append(f"{_kind(plan.fsdp)} {verdict} into {plan.gpu_bytes / GIB:g} GiB")
    if not chosen and other:
        lines[-1] += f"; {_kind(not plan.fsdp)} does: {'give' if not plan.fsdp else 'leave out'} --fsdp"
    elif not chosen:
        lines[-1] += ": " + _advice(plan)
    if plan.replica is not None:
        lines.append(replica_line(plan.replica))
    if plan.time is not None:
        took = f"{plan.time.sample:.3g} s of sampling and {plan.time.learn:.3g} s of learning at least"
        lines.append(f"a step takes {took}, by the GPUs' limits (--gpu-tflops, --gpu-bandwidth)")
    return [*lines, "", "start it", *(f"  {line}" for line in start_lines(plan)), *_slurm_section(plan)]


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _other_gpus(plan: RankPlan) -> str:
    """What the GPUs are for that have no rank."""
    if plan.replica is None:
        return ""
    taken = plan.replica.replicas // plan.nodes * plan.replica.tensor_parallel
    idle = plan.gpus - plan.node_ranks - taken
    return f"; {_gpus(taken)} for replicas" + (f", {_gpus(idle)} unused" if idle else "")


def replica_line(plan: ReplicaPlan) -> str:
    """What each GPU of a replica holds, and how many GPUs it needs."""
    over = "a GPU" if plan.tensor_parallel == 1 else f"{plan.tensor_parallel} GPUs"
    has = f"{plan.replicas} replicas, each on {over} of its own: {plan.weights / GIB:.1f} GiB of weights on each GPU"
    if plan.fits:
        tokens = plan.cache_bytes // plan.cache_token_bytes
        return f"{has}, {plan.cache_bytes / GIB:.1f} left for the KV cache of {tokens:,} tokens"
    if plan.smallest is None:
        return f"{has}, which do not fit, over any number of GPUs"
    return f"{has}, which do not fit: give --tensor-parallel {plan.smallest}"


def rank_plan_json(plan: RankPlan) -> dict[str, Any]:
    """For programs."""
    fits = {"replicated": plan.fits(False), "fsdp": plan.fits(True)}
    return {
        "event": "rank_plan", **asdict(plan), "ranks": plan.ranks, "fits": fits, "start": start_lines(plan),
        "replica_fits": None if plan.replica is None else plan.replica.fits,
        "slurm": slurm_script(plan),
    }  # fmt: skip


def start_lines(plan: RankPlan) -> list[str]:
    """The command on one machine, or on each of several."""
    command = shlex.join(plan.command)
    if plan.nodes == 1:
        one = f"ponder {command} --ranks {plan.ranks}" if plan.ranks > 1 else f"ponder {command}"
        return [one, "# the same:", f"torchrun --nproc-per-node {plan.ranks} {MODULE} {command}"]
    where = f"--rdzv-backend c10d --rdzv-id ponder --rdzv-endpoint HOST:{PORT}"
    return [
        "# on each node, with the first one's name in place of HOST; all must see the run directory",
        f"torchrun --nnodes {plan.nodes} --nproc-per-node {plan.node_ranks} {where} {MODULE} {command}",
        "# or once, on a machine of a Ray cluster (ponder cluster up), whose head is HOST",
        f"ponder {command} --ranks {plan.ranks} --cluster HOST:{RAY_PORT}",
    ]


def slurm_script(plan: RankPlan) -> str:
    """A batch script: one task on each node, which starts the ranks there."""
    launch = (
        f"srun torchrun --nnodes {plan.nodes} --nproc-per-node {plan.node_ranks} --rdzv-backend c10d"
        f' --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:{PORT}" \\\n    {MODULE} {shlex.join(plan.command)}'
    )
    return "\n".join([
        "#!/bin/bash",
        "#SBATCH --job-name ponder",
        f"#SBATCH --nodes {plan.nodes}",
        "#SBATCH --ntasks-per-node 1",
        f"#SBATCH --gpus-per-node {plan.gpus}",
        "",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        launch,
        "",
    ])  # fmt: skip


def without_flags(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without some flags and their values."""
    out: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in flags:
            skip = not equals
        else:
            out.append(word)
    return out


def run_command_words(argv: Sequence[str], plan_flags: Sequence[str], planned_commands: Sequence[str]) -> list[str]:
    """The words after `ponder` that run what `ponder plan` was asked about."""
    first, *rest = without_flags(argv, plan_flags)
    verb = [first] if first in planned_commands else ["run", str(Path(first)) if Path(first).exists() else first]
    return [*verb, *(word for word in rest if word != "--json")]


def _memory_line(name: str, *sizes: int) -> str:
    return f"  {name:<30}" + "".join(f"{size / GIB:>{width}.1f}" for size, width in zip(sizes, (12, 10), strict=True))


def _kind(fsdp: bool) -> str:
    return "sharded (--fsdp)" if fsdp else "replicated"


def _advice(plan: RankPlan) -> str:
    ways = ["more GPUs with --fsdp"] if plan.trained == plan.parameters else []
    weights = plan.replicated["weights"]
    if weights + RESERVED_BYTES > plan.gpu_bytes:
        return "every GPU samples from whole weights, which alone do not fit; take a smaller model"
    smaller = ["--gradient-checkpointing", "fewer --max-tokens-per-microbatch", "or --lora.rank 16 may do"]
    return ", ".join([*ways, *smaller])


def _slurm_section(plan: RankPlan) -> list[str]:
    if plan.nodes == 1:
        return []
    return ["", "or with Slurm, as a file for sbatch", *(f"  {line}" for line in slurm_script(plan).splitlines())]
