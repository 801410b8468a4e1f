"""Ranks that share the tokens of a micro-batch have the gradient, metrics and weights of one process.

Run as a program, this file forks the ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from float64_losses import turned
from fork_ranks import fork_ranks, import_peft, run_program
from ponder.errors import UsageError
from ponder.nets.tree_attention import PaddedTreeAttention
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup, current_group
from ponder.train.sequence_parallel import SequenceGroup, SlicedTreeAttention
from rank_program import FSDP, REPLICATED, run_case

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")
# Losses of tokens, of sequences and of pairs, a critic, adapters, windows of attention, and what computes twice.
NAMES = ["grpo", "gspo", "ppo", "dpo", "distill", "one-trace", "critic", "lora", "gemma", "checkpointing", "imitation"]
CASES_OF_2 = [
    (case.replace("-", " "), kind, 2)
    for case in NAMES
    for kind in (REPLICATED, *([FSDP] if case in ("grpo", "critic") else []))
]
CASES = {2: CASES_OF_2, 4: [("grpo", REPLICATED, 2), ("gspo", FSDP, 2), ("one trace", REPLICATED, 4)]}


def run_rank(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{size}", rank=rank, world_size=size)
    done: dict[Any, Any] = {case: run_case(case[0], current_group(), case[1], case[2]) for case in CASES[size]}
    if rank == 0:
        torch.save(
            {c: (r["gradient"], r["metrics"], r["weights"], r["notes"]) for c, r in done.items()}, folder / str(size)
        )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    folder = tmp_path_factory.mktemp("shared")
    run_program(__file__, folder)
    return {(n, *case): r for n in CASES for case, r in torch.load(folder / str(n), weights_only=False).items()}


@pytest.mark.parametrize("case", [(n, *case) for n in CASES for case in CASES[n]], ids=str)
def test_ranks_that_share_tokens_learn_as_one_process(case: tuple[int, str, str, int], results: dict[Any, Any]) -> None:
    one = run_case(case[1], SINGLE_PROCESS, REPLICATED)
    gradient, metrics, weights, notes = results[case]
    assert turned(gradient, one["gradient"]) < 1e-6
    assert turned(weights, one["weights"]) < 1e-5
    assert metrics.keys() == one["metrics"].keys()
    for name, value in one["metrics"].items():
        if case[1] == "dpo" and name == "rewards/accuracies":
            continue  # before the first step margins are 0 up to rounding, whose sign it would be; they are compared
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for mine, wanted in zip(notes, one["notes"], strict=True):
        assert mine.keys() == wanted.keys()
        assert all(abs(mine[name] - wanted[name]).max(initial=0.0) < 1e-5 for name in wanted)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_slices_attend_as_the_whole(size: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks in one process: what is gathered is there already."""
    lengths, parents = [4, 3, 2, 5, 6, 1], [-1, 0, 0, -1, 3, -1]  # a tree, an unbranched tree, a single token
    total, draw = sum(lengths), torch.Generator().manual_seed(0)
    q = torch.randn(total, 4, 8, generator=draw)
    k, v = (torch.randn(total, 2, 8, generator=draw) for _ in range(2))
    whole = PaddedTreeAttention(lengths, parents)(0, q, k, v, scale=0.3, window=window)
    both = torch.cat((k, v), 1)
    monkeypatch.setattr(SequenceGroup, "gather_tokens", lambda self, x, tokens: both)
    found = []
    for rank in range(size):
        group = SequenceGroup(rank, size, tuple(range(size)))
        attend = SlicedTreeAttention(lengths, parents, group, torch.device("cpu"))
        own = group.slice_of(total)
        if own.start < own.stop:
            found.append(attend(0, q[own], k[own], v[own], scale=0.3, window=window))
    torch.testing.assert_close(torch.cat(found), whole, rtol=1e-5, atol=1e-6)


def test_slices_cover_all_tokens_once() -> None:
    for tokens in (1, 2, 7, 8, 64):
        for size in (2, 3, 8):
            groups = [SequenceGroup(rank, size, tuple(range(size))) for rank in range(size)]
            assert [i for g in groups for i in range(tokens)[g.slice_of(tokens)]] == list(range(tokens))


def test_groups_are_ranks_in_a_row() -> None:
    world = [DataParallelGroup(rank, 6) for rank in range(6)]
    assert [SequenceGroup.of(w, 1) for w in world] == [None] * 6
    found = [SequenceGroup.of(w, 3) for w in world]
    assert [(g.rank, g.ranks) for g in found if g is not None] == [
        *((r, (0, 1, 2)) for r in range(3)),
        *((r, (3, 4, 5)) for r in range(3)),
    ]
    with pytest.raises(UsageError, match="--sequence-parallel that divides"):
        SequenceGroup.of(world[0], 4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_peft()
    sys.exit(max(fork_ranks(n, lambda rank, size: run_rank(rank, size, Path(sys.argv[1]))) for n in CASES))
