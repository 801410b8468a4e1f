"""Every algorithm, on two and on four ranks, replicated and sharded, has the gradient of one process.

Run as a program, this file forks the ranks. test_distributed.py has a few algorithms, and more kinds of networks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from float64_losses import turned
from fork_ranks import fork_ranks, run_program
from ponder.train.distributed import SINGLE_PROCESS, current_group
from rank_program import ALGORITHMS, FSDP, HSDP, REPLICATED, run_case

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:mkldnn_matmul")]

KINDS = {2: (REPLICATED, FSDP), 4: (REPLICATED, FSDP, HSDP)}


def run_rank(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{size}", rank=rank, world_size=size)
    cases = [(name, kind) for name in ALGORITHMS for kind in KINDS[size]]
    done: dict[Any, Any] = {case: run_case(case[0], current_group(), case[1]) for case in cases}
    if rank == 0:
        torch.save({case: (r["gradient"], r["weights"]) for case, r in done.items()}, folder / str(size))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    folder = tmp_path_factory.mktemp("every")
    run_program(__file__, folder)
    return {size: torch.load(folder / str(size), weights_only=False) for size in KINDS}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient_of_ranks_is_that_of_one_process(name: str, results: dict[int, Any]) -> None:
    one = run_case(name, SINGLE_PROCESS, REPLICATED)
    for size, kinds in KINDS.items():
        for kind in kinds:
            gradient, weights = results[size][name, kind]
            assert turned(gradient, one["gradient"]) < 1e-6, (size, kind)
            assert turned(weights, one["weights"]) < 1e-5, (size, kind)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(max(fork_ranks(n, lambda rank, size: run_rank(rank, size, Path(sys.argv[1]))) for n in KINDS))
