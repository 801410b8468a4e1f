"""Several processes give the gradient of one, replicated and sharded: each computes its share, and what is summed is
the gradient itself. tests/rank_program.py is what the processes run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import mixed_groups
from float64_losses import turned
from fork_ranks import run_program
from ponder.errors import UsageError
from ponder.train import losses, pack
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup, ShardMesh, current_group
from ponder.train.policy_gradient import GRPO
from rank_program import CASES, FSDP, HSDP, REPLICATED, run_case

BFLOAT16 = 2e-2  # the sums are float32, what is summed is not
Results = dict[int, list[dict[Any, Any]]]  # by number of ranks, then by rank

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("ranks")
    run_program(Path(__file__).parents[1] / "rank_program.py", folder)
    return {size: [torch.load(folder / f"{size}-{rank}", weights_only=False) for rank in range(size)] for size in CASES}


@cache
def alone(case: str) -> dict[str, Any]:
    return run_case(case, SINGLE_PROCESS, REPLICATED)


@pytest.mark.parametrize(
    ("size", "case", "kind"),
    [
        pytest.param(size, case, kind, id=f"{size}-{case}-{kind}")
        for size, cases in CASES.items()
        for case, kind in cases
    ],
)
def test_gradient_of_ranks_is_that_of_one_process(size: int, case: str, kind: str, results: Results) -> None:
    one, ranks = alone(case), [result[case, kind] for result in results[size]]
    near = BFLOAT16 if case == "bfloat16" else 1e-6
    assert all(rank["sharded"] == (kind != REPLICATED) for rank in ranks)
    assert turned(ranks[0]["gradient"], one["gradient"]) < near
    for rank in ranks[1:]:
        for name in ("gradient", "weights"):
            assert all(torch.equal(t, rank[name][n]) for n, t in ranks[0][name].items()), f"the same {name}"
    # a moment that rounds to the next level of its 8 bits differs by more than its gradient does
    assert turned(ranks[0]["weights"], one["weights"]) < max(near, 1e-4 if case == "int8 states" else 1e-5)
    for name, value in one["metrics"].items():
        if case == "dpo" and name == "rewards/accuracies":
            continue  # before the first step margins are 0 up to rounding, whose sign it would be; they are compared
        got = {rank["metrics"][name] for rank in ranks}
        assert len(got) == 1 and got.pop() == pytest.approx(value, rel=max(1e-5, 10 * near), abs=1e-5), name


def test_hsdp_holds_two_copies_over_two_ranks_each(results: Results) -> None:
    whole, ranks = alone("grpo")["rows"], [result["grpo", HSDP]["rows"] for result in results[4]]
    assert ranks[0] == ranks[2] and ranks[1] == ranks[3]
    for name, shape in whole.items():
        if shape:
            assert ranks[0][name][0] + ranks[1][name][0] == shape[0], name
            assert sum(result["grpo", FSDP]["rows"][name][0] for result in results[4]) == shape[0]


def test_int8_states_are_shared_out_by_rows(results: Results) -> None:
    whole, ranks = alone("int8 states")["rows"], [result["int8 states", FSDP]["rows"] for result in results[2]]
    quantized = [name for name in whole if name.startswith("exp_avg_max.")]
    assert len(quantized) > 10
    for name in quantized:
        assert len(whole[name]) == 2 and sum(rank[name][0] for rank in ranks) == whole[name][0], name


def test_shard_size_must_divide_the_ranks() -> None:
    with pytest.raises(UsageError, match="3 ranks cannot hold copies of 2 each"):
        ShardMesh.over(DataParallelGroup(0, 3), 2)
    assert ShardMesh.over(DataParallelGroup(0, 1), 8).copies == 1  # resumed on fewer ranks
    mesh = ShardMesh.over(DataParallelGroup(5, 8), 4)
    assert (mesh.copies, mesh.rank, mesh.writes) == (2, 1, False)


@pytest.mark.parametrize("kind", [REPLICATED, FSDP])
def test_ranks_share_the_notes_that_each_wrote(kind: str, results: Results) -> None:
    notes = alone("ppo")["notes"]
    assert any("reference" in n for n in notes) and any("values" in n for n in notes)
    for result in results[2]:
        for mine, expected in zip(result["ppo", kind]["notes"], notes, strict=True):
            assert mine.keys() == expected.keys()
            for name, values in expected.items():
                torch.testing.assert_close(mine[name], values, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_rank_may_have_no_work(results: Results) -> None:
    assert sorted(result["one trace", FSDP]["share"] for result in results[2]) == [0, 1]
    assert sorted(result["grpo", FSDP]["share"] for result in results[2]) == [2, 3]


@pytest.mark.parametrize("size", CASES)
def test_group_gathers_numbers_and_bytes(size: int, results: Results) -> None:
    assert current_group() == SINGLE_PROCESS
    for rank, result in enumerate(results[size]):
        assert result["group"] == DataParallelGroup(rank, size)
        assert result["any"] == [size > 1, False, True]
        assert result["numbers"] == [size - 1, sum(r + 0.5 for r in range(size))]
        assert result["bytes"] == [b"x" * r for r in range(size)]
        assert result["broadcast"] == b"from 0"


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
    whole = alone("one trace")["gradient"]
    assert turned({n: g / 2 for n, g in whole.items()}, whole) == pytest.approx(0.5)
