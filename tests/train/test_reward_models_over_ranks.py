"""Reward models on two ranks, replicated and sharded, have the gradient of one process.

Run as a program, this file forks the ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fakes import mixed_groups, perturb, tiny_decoder
from float64_losses import turned
from fork_ranks import fork_ranks, run_program
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup, current_group
from ponder.train.optimizer import AdamW
from ponder.train.reward_learner import make_reward_learner
from ponder.train.reward_objectives import BradleyTerry, ImplicitReward, OutcomeReward, ProcessReward, StateValue

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:mkldnn_matmul")]

RULES: dict[str, Any] = {
    "bradley-terry": BradleyTerry(), "orm": OutcomeReward(), "prm": ProcessReward(), "value": StateValue(),
    "implicit": ImplicitReward(0.3),
}  # fmt: skip


def run_case(name: str, group: DataParallelGroup, fsdp: bool) -> dict[str, Any]:
    rule, traces = RULES[name], mixed_groups()
    base = tiny_decoder(scale=0.1)
    kind: Any = DecoderWithReference if name == "implicit" else DecoderWithHead
    net = perturb(kind.from_decoder(base, rule.head), 0.05, seed=4)
    compute: Any = {"max_tokens_per_microbatch": 40, "process_group": group, "fsdp": fsdp}
    learner = make_reward_learner(net, rule, AdamW(lr=0.01, eps=1e-3), **compute)
    rule.credit(traces, "wanted", {})
    gradient = learner.gradient(traces)
    learner.step(traces)
    return {"gradient": gradient, "weights": learner.whole_net.state_dict()}


def run_rank(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    done = {(name, fsdp): run_case(name, current_group(), fsdp) for name in RULES for fsdp in (False, True)}
    if rank == 0:
        torch.save(done, folder / "done")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rewards")
    run_program(__file__, folder)
    return torch.load(folder / "done", weights_only=False)


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_gradient_of_ranks_is_that_of_one_process(name: str, fsdp: bool, results: Any) -> None:
    one, ranks = run_case(name, SINGLE_PROCESS, False), results[name, fsdp]
    assert turned(ranks["gradient"], one["gradient"]) < 1e-6
    assert turned(ranks["weights"], one["weights"]) < 1e-5


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(fork_ranks(2, lambda rank, size: run_rank(rank, size, Path(sys.argv[1]))))
