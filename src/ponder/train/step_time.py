"""The least time that an RL step can take on ranks, by the matrix rate and the memory bandwidth of their GPUs.

It is a bound: what the host does, short kernels and the network between GPUs come on top. Answers are taken to be as
long as they may be; prompts, which a group computes once, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.train.rank_memory import TrainingShape


@dataclass(frozen=True, slots=True)
class GPURates:
    """Of an H100, unless others are given."""

    flops: float = 989e12  # a second, of dense matrix products in the type that the network computes in
    bandwidth: float = 3.35e12  # bytes a second, of its own memory


@dataclass(frozen=True, slots=True)
class StepTime:
    sample: float  # seconds
    learn: float


def least_step_time(
    shape: TrainingShape, sequences: int, tokens: int, ranks: int, rates: GPURates = GPURates(), passes: int = 1,
    replicas: int = 0, tensor_parallel: int = 1,
) -> StepTime:  # fmt: skip
    """Of a step with so many answers of so many tokens, sampled by the ranks' own processes or by replicas, each split
    over `tensor_parallel` GPUs; `passes` over them are learned from."""
    forward = _forward_flops(shape, tokens)
    backward = forward * (1 if shape.lora is not None else 2)  # adapters need no gradient of the weights below them
    learn = passes * (forward + backward + forward * shape.gradient_checkpointing) + forward * shape.reference_copy
    learn *= 2 if shape.critic else 1
    own = -(-sequences // (replicas or ranks))
    moved = shape.parameters * shape.dtype_bytes + own * _cache_bytes(shape) * tokens / 2  # in a pass, in the mean
    sample = tokens * max(moved / rates.bandwidth, own * forward / rates.flops) / tensor_parallel
    return StepTime(sample, sequences * tokens * learn / ranks / rates.flops)


def _forward_flops(shape: TrainingShape, tokens: int) -> float:
    """Of one token, in the mean of an answer."""
    c = shape.config
    products = 2.0 * (c.layers * c.layer_parameter_count + c.vocab * c.width)
    return products + 4.0 * c.layers * c.heads * c.head_dim * tokens / 2


def _cache_bytes(shape: TrainingShape) -> int:
    """Keys and values of one token."""
    c = shape.config
    return 2 * c.layers * c.kv_heads * c.head_dim * shape.dtype_bytes
