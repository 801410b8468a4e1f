"""Several processes give the gradient of one: each computes its share, and what is summed is the gradient itself.

Run as a program, this file is one of the processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fakes import mixed_groups, tiny_decoder
from float64_losses import turned
from ponder.train import losses, pack
from ponder.train.critic import make_critic_learner, write_values
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup, current_group
from ponder.train.learner import Learner
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.types import Trace

SECONDS = 60.0  # for all processes of a test, their imports included
LOOP = "lo0" if sys.platform == "darwin" else "lo"
CASES = ("grpo", "one trace", "critic", "bfloat16")


def credited(case: str) -> list[Trace]:
    traces = mixed_groups()[:1] if case == "one trace" else mixed_groups()
    if case == "critic":
        write_values(make_critic_learner(tiny_decoder(), Critic()), traces)
        PPO(kl=None).credit(traces, "wanted", {})
    else:
        GRPO().credit(traces, "wanted", {})
    return traces


def learner(case: str, peers: DataParallelGroup) -> Learner:
    if case == "critic":
        return make_critic_learner(tiny_decoder(), Critic(), max_tokens_per_microbatch=20, process_group=peers)
    net = tiny_decoder(dtype=torch.bfloat16 if case == "bfloat16" else torch.float32)
    return Learner(net, GRPO(), AdamW(lr=0.01), max_tokens_per_microbatch=20, epochs_per_batch=2, process_group=peers)


def work(case: str, peers: DataParallelGroup) -> dict[str, Any]:
    """What a process has to tell: its gradient, its metrics after two optimiser steps, its weights."""
    one = learner(case, peers)
    traces = credited(case)
    mine = len(peers.shard(pack.plan(traces, losses.token_mean, True)))
    grads = one.gradient(traces)
    return {"grads": grads, "told": one.step(traces), "weights": one.net.state_dict(), "mine": mine}


def process(rank: int, size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    peers = current_group()
    result: dict[str, Any] = {case: work(case, peers) for case in CASES}
    result["any"] = [peers.any(rank == 1), peers.any(False), peers.any(True)]
    result["rank"] = peers
    torch.save(result, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("peers")
    path = os.pathsep.join(p for p in sys.path if p)
    more = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": LOOP}
    children = [
        subprocess.Popen([sys.executable, __file__, str(rank), "2", str(folder)], env={**os.environ, **more})
        for rank in range(2)
    ]
    try:
        assert [child.wait(SECONDS) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(2)]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradient_of_one(case: str, two: list[dict[str, Any]]) -> None:
    alone = work(case, SINGLE_PROCESS)
    here, there = (result[case] for result in two)
    near = 1e-2 if case == "bfloat16" else 1e-6  # there the sums are float32, what is summed is not
    assert turned(here["grads"], alone["grads"]) < near
    assert all(torch.equal(g, there["grads"][n]) for n, g in here["grads"].items()), "and the same one"
    assert all(torch.equal(w, there["weights"][n]) for n, w in here["weights"].items()), "so they stay together"
    for name, value in alone["told"].items():
        assert here["told"][name] == there["told"][name] == pytest.approx(value, rel=10 * near, abs=1e-5), name


def test_one_process_may_have_no_work(two: list[dict[str, Any]]) -> None:
    assert sorted(result["one trace"]["mine"] for result in two) == [0, 1]
    assert sorted(result["grpo"]["mine"] for result in two) == [2, 3]


def test_current_group_of_processes(two: list[dict[str, Any]]) -> None:
    assert [result["rank"] for result in two] == [
        DataParallelGroup(0, 2),
        DataParallelGroup(1, 2),
    ] and current_group() == SINGLE_PROCESS
    assert [result["any"] for result in two] == [[True, False, True]] * 2


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shards_are_disjoint_and_even(size: int) -> None:
    traces = [t for seed in range(4) for t in mixed_groups(seed)]
    GRPO().credit(traces, "wanted", {})
    whole = pack.plan(traces, losses.token_mean, True)
    shares = [DataParallelGroup(rank, size).shard(whole) for rank in range(size)]
    assert sorted(id(w) for share in shares for w in share) == sorted(map(id, whole))
    loads = [sum(w.tokens() for w in share) for share in shares]
    assert max(loads) - min(loads) <= max(w.tokens() for w in whole)


def test_mean_over_processes_would_be_detected() -> None:
    """What is wrong with averaging: with one process idle the gradient would be halved."""
    whole = work("one trace", SINGLE_PROCESS)["grads"]
    assert turned({n: g / 2 for n, g in whole.items()}, whole) == pytest.approx(0.5)


if __name__ == "__main__":
    process(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
