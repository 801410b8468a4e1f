"""A program that trains in several processes on gloo: what they compute is written to a folder, by size and rank.

torch is imported once, and each rank is a fork.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from fakes import mixed_groups, tiny_decoder
from fork_ranks import fork_ranks, import_peft
from ponder.nets import decoder, lora
from ponder.nets.lora import LoRA
from ponder.nets.torch_compile import compile_once
from ponder.train import adam_states, losses, pack
from ponder.train.algorithms import OFFLINE, ONLINE
from ponder.train.critic import make_critic_learner, write_values
from ponder.train.distributed import DataParallelGroup, current_group
from ponder.train.learner import ImitationTerm, Learner
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from sizes import NIGHTLY

ALGORITHMS = {**ONLINE, **OFFLINE}
# Losses of every kind, and beside them: one trace for all ranks, a critic, adapters, other types and kinds of network.
CASES_OF_2 = (
    "grpo", "gspo", "ppo", "sft", "dpo", "distill", "one trace", "critic", "lora", "bfloat16", "gemma", "checkpointing",
    "frozen", "cpu states", "int8 states", "imitation", "compiled", "four layers", "four layers, checkpointing",
)  # fmt: skip
CASES_OF_1 = ("grpo", "critic", "lora", "bfloat16", *(("compiled",) if NIGHTLY else ()))  # on 2 ranks it is, too
EPS = 1e-3  # else Adam makes whole steps of gradients that are rounding errors
CASES_OF_4 = ("grpo", "critic", "lora")
REPLICATED, FSDP, HSDP = "replicated", "fsdp", "hsdp"  # HSDP on 4 ranks: two copies over two ranks each
# The other cases differ in what is summed, not in how: on every change they are sharded, which sums in parts.
REPLICATED_TOO = CASES_OF_2 if NIGHTLY else ("grpo", "ppo", "one trace", "critic", "lora", "bfloat16")
# What is trained on how many ranks: (case, how weights are held).
CASES = {
    1: [(case, FSDP) for case in CASES_OF_1],
    2: [(case, kind) for case in CASES_OF_2 for kind in (REPLICATED, FSDP) if kind == FSDP or case in REPLICATED_TOO],
    4: [
        (case, kind)
        for case in CASES_OF_4
        for kind in (REPLICATED, FSDP, HSDP)
        if NIGHTLY or kind == HSDP or case == "grpo"
    ],
}


@patch.object(adam_states, "MIN_INT8_ELEMENTS", 500)  # the tiny network has no larger weights
def run_case(case: str, group: DataParallelGroup, kind: str, sequence_parallel: int = 1) -> dict[str, Any]:
    """The gradient, and the metrics and new weights of two optimiser steps."""
    layers = 4 if case.startswith("four layers") else 2  # two of four are gathered at once
    net = tiny_decoder("gemma" if case == "gemma" else "llama", dtype=_dtype(case), scale=0.1, layers=layers)
    traces = mixed_groups()[:1] if case == "one trace" else mixed_groups()
    rule = ALGORITHMS.get(case, PPO if case == "critic" else GRPO)()
    compute: Any = {"max_tokens_per_microbatch": 40, "epochs_per_batch": 2, "process_group": group}
    compute |= {"fsdp": kind != REPLICATED, "shard_size": 2 if kind == HSDP else 0}
    compute["sequence_parallel"] = sequence_parallel
    states: Any = case.removesuffix(" states") if case.endswith(" states") else "float32"
    optimizer = AdamW(lr=0.01, eps=EPS, states=states)
    critic = make_critic_learner(net, Critic(optimizer=optimizer), **compute) if isinstance(rule, PPO) else None
    if case == "lora":
        lora.attach(net, LoRA(rank=4), seed=0)
    learner = Learner(
        net, rule, optimizer,
        reference=tiny_decoder(seed=3, scale=0.1) if case == "distill" else None,
        gradient_checkpointing=case.endswith("checkpointing"), frozen_layers=int(case == "frozen"), **compute,
    )  # fmt: skip
    learner.compiled = case == "compiled" and learner.sharded
    learner.write_reference_logprobs(traces)
    if critic is not None:
        write_values(critic, traces)
    rule.credit(traces, "wanted", {})
    if case == "critic":
        assert critic is not None
        learner = critic
    if case == "imitation":
        learner.imitation = ImitationTerm(0.5, traces[:1])
    gradient = learner.gradient(traces)
    metrics = learner.step(traces)
    return {
        "gradient": gradient,
        "metrics": metrics,
        "weights": learner.whole_net.state_dict(),
        "notes": [step.notes for trace in traces for step in trace.steps],
        "share": len(group.shard(pack.plan(traces, losses.token_mean, True))),
        "sharded": learner.sharded,
        "rows": {n: list(t.shape) for n, t in learner.tensors().items()},
    }


def _dtype(case: str) -> torch.dtype:
    return torch.bfloat16 if case == "bfloat16" else torch.float32


def run_rank(rank: int, size: int, folder: str) -> None:
    Learner.shards_one_rank = True
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{size}", rank=rank, world_size=size)
    group = current_group()
    # Blocks are traced and differentiated, without a compiler.
    setattr(decoder, "compile_once", partial(compile_once, backend="aot_eager"))  # noqa: B010
    result: dict[Any, Any] = {(case, kind): run_case(case, group, kind) for case, kind in CASES[size]}
    result["any"] = [group.any(rank == 1), group.any(False), group.any(True)]
    result["numbers"] = [group.max_of(float(rank)), group.sum_of(rank + 0.5)]
    result["bytes"] = group.all_gather_bytes(b"x" * rank)
    result["broadcast"] = group.broadcast_bytes(b"from %d" % rank)
    result["group"] = group
    torch.save(result, f"{folder}/{size}-{rank}")
    dist.destroy_process_group()


def main(folder: str) -> int:
    import_peft()
    return max(fork_ranks(size, lambda rank, size: run_rank(rank, size, folder)) for size in CASES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
