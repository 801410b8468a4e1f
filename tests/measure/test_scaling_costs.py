"""FLOPs against a hand count of three models, prices by hand, frontiers against all pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UnknownName, UsageError
from ponder.measure import (
    ModelShape,
    gpu_seconds,
    group_flops,
    pareto_frontier,
    pareto_frontier_with_intervals,
    trace_flops,
)
from ponder.reason.price import Price, read_prices
from ponder.types import Cost, Problem, Step, Trace, ids, user_messages

# Each as its matrices, rows x columns, per layer and once; published sizes beside them.
GPT2 = ModelShape.from_decoder_config(layers=12, width=768, hidden=3072, heads=12, vocab=50257, gated=False)  # 124 M
LLAMA3 = ModelShape.from_decoder_config(
    layers=32, width=4096, hidden=14336, heads=32, kv_heads=8, vocab=128256
)  # 8.03 B
QWEN3 = ModelShape.from_decoder_config(
    layers=28, width=1024, hidden=3072, heads=16, kv_heads=8, head_dim=128, vocab=151936
)  # 0.6 B
HAND = [
    (GPT2, 12, [(768, 2304), (768, 768), (768, 3072), (3072, 768)], (768, 50257), 12 * 64),
    (LLAMA3, 32, [*[(4096, 4096)] * 2, *[(4096, 1024)] * 2, *[(4096, 14336)] * 3], (4096, 128256), 32 * 128),
    (QWEN3, 28, [*[(1024, 2048)] * 2, *[(1024, 1024)] * 2, *[(1024, 3072)] * 3], (1024, 151936), 16 * 128),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "layers", "matrices", "head", "attention"), HAND, ids=["gpt2", "llama3", "qwen3"])
def test_flops_by_hand(
    shape: ModelShape, layers: int, matrices: list[tuple[int, int]], head: tuple[int, int], attention: int
) -> None:
    """Token by token: each entry of a matrix multiplies and adds; queries meet keys, weights meet values."""
    total = 0
    for context in range(1, 301):
        for rows, columns in matrices:
            total += layers * 2 * rows * columns
        total += 2 * head[0] * head[1]
        total += layers * (2 * attention * context + 2 * attention * context)
    assert shape.flops(300) == pytest.approx(total, rel=1e-12)
    assert shape.flops(100) + shape.flops(200, before=100) == pytest.approx(total, rel=1e-12)


def test_published_sizes() -> None:
    assert GPT2.parameters == pytest.approx(124.4e6 - 1024 * 768, rel=0.002)  # positions are looked up
    assert LLAMA3.parameters == pytest.approx(8.03e9 - 128256 * 4096, rel=0.001)  # and so is its embedding
    assert QWEN3.parameters == pytest.approx(0.596e9, rel=0.001)  # tied


def test_groups_and_trees_share_prefixes() -> None:
    shape = LLAMA3
    shared = group_flops(shape, 500, [100, 50])
    assert shared == pytest.approx(shape.flops(500) + shape.flops(100, 500) + shape.flops(50, 500))
    assert group_flops(shape, 500, [100, 50], shared=False) == pytest.approx(shared + shape.flops(500))

    def step(parent: int | None, tokens: int) -> Step:
        written = None if parent is None else np.zeros(tokens, np.float32)
        return Step(parent, "", ids(range(tokens)), written)

    flat = Trace(Problem("p", user_messages("?")), [step(None, 500), step(0, 100), step(0, 50)])
    assert trace_flops(shape, flat) == pytest.approx(shared)
    assert trace_flops(shape, flat, shared=False) == pytest.approx(group_flops(shape, 500, [100, 50], shared=False))
    tree = Trace(
        Problem("p", user_messages("?")),
        [step(None, 10), step(0, 4), step(1, 3), step(1, 5), step(0, 2), step(None, 7)],
    )
    by_hand = [(10, 0), (4, 10), (3, 14), (5, 14), (2, 10), (7, 0)]
    assert trace_flops(shape, tree) == pytest.approx(sum(shape.flops(n, before) for n, before in by_hand))
    again = [14, 17, 19, 12, 7]  # each step that was written reads its whole way
    assert trace_flops(shape, tree, shared=False) == pytest.approx(sum(map(shape.flops, again)))
    with pytest.raises(UsageError):
        shape.flops(-1)
    with pytest.raises(UsageError, match="no shape"):
        ModelShape(0, 1, 1)


def test_prices(tmp_path: Path) -> None:
    price = Price(prompt=2.0, cached=0.5, generated=8.0, gpu_hour=3.0, gpus=2)
    cost = Cost(
        prompt_tokens=1_000_000, cached_tokens=2_000_000, generated_tokens=300_000, wasted_tokens=200_000, seconds=600
    )
    assert price.dollars(cost) == pytest.approx(2 + 1 + 4 + 1)
    assert gpu_seconds(4e15, 1e15, 0.5, 2) == pytest.approx(4)
    table = tmp_path / "prices.json"
    table.write_text(json.dumps({"small": {"generated": 0.6}, "rented": {"gpu_hour": 2.5}}))
    assert read_prices(table) == {"small": Price(generated=0.6), "rented": Price(gpu_hour=2.5)}
    table.write_text(json.dumps({"small": {"generatd": 0.6}}))
    with pytest.raises(UnknownName, match="generated"):
        read_prices(table)
    table.write_text("[1]")
    with pytest.raises(UsageError, match="must be an object"):
        read_prices(table)
    with pytest.raises(UsageError, match="cannot be read"):
        read_prices(tmp_path / "none.json")
    with pytest.raises(UsageError, match="dollars"):
        Price(prompt=-1.0)
    with pytest.raises(UsageError):
        gpu_seconds(1, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_frontier_by_all_pairs(points: list[tuple[int, int]]) -> None:
    def beaten(cost: int, quality: int) -> bool:
        return any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)

    result = pareto_frontier([c for c, _ in points], [q for _, q in points])
    assert result.tolist() == [not beaten(c, q) for c, q in points]


def test_frontier_with_intervals() -> None:
    rng = np.random.default_rng(0)
    right = (rng.random((3, 400)) < np.array([[0.5], [0.52], [0.9]])).astype(float)
    cost = np.array([[1.0], [5.0], [2.0]]) * rng.gamma(4, 0.25, size=(3, 400))
    cheap, beaten, good = pareto_frontier_with_intervals(["cheap", "beaten", "good"], cost.tolist(), right.tolist())
    assert cheap.on_frontier and good.on_frontier and not beaten.on_frontier
    assert cheap.frontier_probability == good.frontier_probability == 1.0 and beaten.frontier_probability == 0.0
    assert good.quality_interval[0] < good.quality < good.quality_interval[1]
    assert good.cost_interval[0] < good.cost < good.cost_interval[1]
    close = pareto_frontier_with_intervals(["a", "b"], [[1.0] * 50, [2.0] * 50], [[1.0, 0.0] * 25, [0.0, 1.0] * 25])
    assert close[1].on_frontier is False and 0.3 < close[1].frontier_probability < 0.7
    with pytest.raises(UsageError, match="not free"):
        pareto_frontier([1.0, np.nan], [0.5, 0.6])
    with pytest.raises(UsageError, match="same problems"):
        pareto_frontier_with_intervals(["a", "b"], [[1.0, 2.0], [1.0]], [[0.5, 0.6], [0.5]])
    with pytest.raises(UsageError, match="same problems"):
        pareto_frontier_with_intervals(["a"], [[1.0]], [[0.5, 0.6]])
