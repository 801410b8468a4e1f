"""Micro-batches padded to the size of a CUDA graph: the same gradient. Graphs are stood in for by calls here."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import trace_group
from ponder.engine.graph_capture import free_lent_memory
from ponder.nets import tree_attention
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder, init_decoder
from ponder.nets.varlen_attention import UnbranchedRuns, VarlenTreeAttention
from ponder.train import microbatch_graphs
from ponder.train.learner import Learner
from ponder.train.microbatch_graphs import GraphSizes, MicrobatchGraphs
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO, GSPO
from ponder.types import Trace

CONFIG = DecoderConfig("llama", 64, 32, 2, 4, 2, 8, mlp_width=48, context=256, eos=(2,))


def forest(seed: int, segments: int = 20, shared: bool = True) -> UnbranchedRuns:
    draw = np.random.default_rng(seed)
    lengths, parents, root = [], [], 0
    for s in range(segments):
        fresh = s == 0 or not shared or draw.random() < 0.2
        root = s if fresh else root
        parents.append(-1 if fresh else int(draw.integers(root, s)))
        lengths.append(int(draw.integers(1, 150)))
    return UnbranchedRuns(lengths, parents)


def dense_varlen(attend: VarlenTreeAttention, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scale: float) -> Tensor:
    """Flash attention's definition: each run's queries see its keys, the last query all of them. Rows of no run are
    NaN, as uninitialised memory may be."""
    if attend.index_G is not None:
        k_TKD, v_TKD = k_TKD[attend.index_G], v_TKD[attend.index_G]
    groups = q_THD.shape[1] // k_TKD.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k_TKD, v_TKD))
    parts = []
    for (a, b), (c, d) in zip(*(itertools.pairwise(e.tolist()) for e in (attend.ends_q, attend.ends_k)), strict=True):
        assert b - a <= attend.most_q and d - c <= attend.most_k
        if b > a:
            seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
            scores = torch.einsum("qhd,khd->hqk", q_THD[a:b], k[c:d]) * scale
            parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v[c:d]))
    rest = q_THD.new_full((len(q_THD) - sum(map(len, parts)), *q_THD.shape[1:]), torch.nan)
    return torch.cat([*parts, rest])


def buffers(sizes: GraphSizes, runs: UnbranchedRuns) -> VarlenTreeAttention:
    positions, ends_q, ends_k, index = (None if x is None else torch.from_numpy(x) for x in sizes.pad(runs))
    assert positions is not None and ends_q is not None and ends_k is not None
    return VarlenTreeAttention.of_buffers(positions, ends_q, ends_k, sizes.most_q, sizes.most_k, index)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_padding_fills_the_sizes_and_belongs_to_runs_of_its_own(seed: int, shared: bool) -> None:
    runs = forest(seed, shared=shared)
    total, readings = len(runs.positions_T), len(runs.positions_T) // 2
    sizes = GraphSizes.holding(runs, readings)
    positions, ends_q, ends_k, index = sizes.pad(runs)
    assert total < sizes.tokens <= 1.0625 * total + 192 and readings <= sizes.readings <= sizes.tokens
    assert len(positions) == sizes.tokens == ends_q[-1] and len(ends_q) == len(ends_k) == sizes.runs + 1
    assert (index is not None) == (sizes.keys > 0) == (runs.gathered_keys > total)
    assert ends_k[-1] == (sizes.tokens if index is None else sizes.keys)
    real = len(runs.sizes)
    assert np.diff(ends_q)[:real].tolist() == runs.sizes and np.diff(ends_k)[:real].tolist() == runs.path_lengths
    assert positions[:total].tolist() == runs.positions_T.tolist()
    if index is not None:
        assert index[: runs.gathered_keys].tolist() == runs.index_G().tolist()
        assert index[runs.gathered_keys :].min() >= total, "only padding sees what padding sees"
        for q, k, below in zip(ends_q[real + 1 :], ends_k[real + 1 :], ends_q[real:], strict=False):
            assert index[k - (q - below) : k].tolist() == list(range(below, q)), "the last keys are the queries' own"


@pytest.mark.parametrize("seed", range(4))
def test_padding_changes_neither_attention_nor_its_gradient(seed: int) -> None:
    runs = forest(seed, segments=9)
    sizes, total = GraphSizes.holding(runs, 1), len(runs.positions_T)
    torch.manual_seed(seed)
    q, k, v, grad = (torch.randn(sizes.tokens, heads, 4, dtype=torch.float64) for heads in (4, 2, 2, 4))
    grad[total:] = 0  # nothing reads padding
    results = []
    for attend, count in (
        (VarlenTreeAttention(runs, torch.device("cpu")), total),
        (buffers(sizes, runs), sizes.tokens),
    ):
        leaves = own_q, own_k, own_v = tuple(x[:count].clone().requires_grad_() for x in (q, k, v))
        out = dense_varlen(attend, own_q, own_k, own_v, 0.3)
        assert out.isfinite().all(), "every token is a query of some run"
        results.append((out, *torch.autograd.grad(out, leaves, grad[:count])))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found[:total], expected, rtol=1e-12, atol=1e-12)
    assert all(not found[total:].any() for found in results[1][1:])


def test_larger_sizes_hold_smaller_micro_batches() -> None:
    held = 0
    for seed in range(100):
        large, small = forest(2 * seed, 24), forest(2 * seed + 1, 22)
        sizes, least = (GraphSizes.holding(r, len(r.positions_T) // 2) for r in (large, small))
        if sizes.hold(small, least):
            held += 1
            _, ends_q, ends_k, _ = sizes.pad(small)
            assert ends_q[-1] == sizes.tokens and ends_k[-1] == sizes.keys
            assert np.diff(ends_q).max() <= sizes.most_q and np.diff(ends_k).max() <= sizes.most_k
            assert least.tokens <= sizes.tokens <= 1.125 * least.tokens
    assert held > 3


class CallGraph:
    """What a graph would do, as a call."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay, self.replays = self._count, 0
        self._work = work

    def _count(self) -> None:
        self.replays += 1
        with torch.enable_grad():
            self._work()


@pytest.fixture
def graphs_as_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(self: microbatch_graphs._Passes, grads: list[Tensor], pool: object) -> object:
        found: list[tuple[Tensor, Tensor]] = []

        def forward() -> None:
            found[:] = [self.compute()]
            self.read_2N.copy_(torch.stack([x.detach() for x in found[0]]))

        def backward() -> None:
            new = torch.autograd.grad(found[0], self.params, tuple(g.to(found[0][0].dtype) for g in self.grads_N))
            torch._foreach_copy_(grads, new)

        self._graphs = CallGraph(forward), CallGraph(backward)  # type: ignore[assignment]
        return pool or "pool"

    def attend(
        self: VarlenTreeAttention, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        return dense_varlen(self, q, k, v, scale)

    monkeypatch.setattr(microbatch_graphs._Passes, "capture", capture)
    monkeypatch.setattr(VarlenTreeAttention, "__call__", attend)
    monkeypatch.setattr(tree_attention, "takes_varlen_attention", lambda *_: True)
    monkeypatch.setattr(Learner, "_can_use_graphs", lambda self: self.uses_graphs)


def net() -> Decoder:
    return init_decoder(CONFIG, 0).double()


def groups(seed: int, completions: int = 5) -> list[Trace]:
    draw = np.random.default_rng(seed)
    traces = [
        trace_group(
            draw.integers(3, 64, int(draw.integers(3, 9))),
            [[*draw.integers(3, 64, int(draw.integers(2, 12))), 2] for _ in range(completions)],
            draw.random(completions).tolist(),
        )
        for _ in range(4)
    ]
    GRPO(kl=None).credit(traces, "wanted", {})
    return traces


def learner(objective: GRPO | GSPO, graphs: bool, tokens: int = 0) -> Learner:
    made = Learner(net(), objective, AdamW(lr=1e-3), max_tokens_per_microbatch=tokens)
    made.uses_graphs = graphs
    return made


def replays(made: Learner) -> int:
    assert made.graphs is not None
    return sum(p._graphs[0].replays for p in made.graphs._passes.values() if p._graphs is not None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "objective", [GRPO(kl=None), GRPO(kl=None, entropy_coef=0.1), GSPO(clip=0.2, clip_high=0.3)], ids=str
)
@pytest.mark.usefixtures("graphs_as_calls")
def test_gradient_and_metrics_are_those_without_graphs(objective: GRPO | GSPO) -> None:
    plain, graphed = (learner(objective, g, tokens=100) for g in (False, True))
    for seed in range(4):
        expected, found = (made.gradient(groups(seed)) for made in (plain, graphed))
        assert found.keys() == expected.keys()
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-7)
        rows = [made.step(groups(seed)) for made in (plain, graphed)]
        assert rows[1] == pytest.approx(rows[0], rel=1e-4, abs=1e-7)
        assert plain.flops == graphed.flops
    assert plain.graphs is None and replays(graphed) >= 8


@pytest.mark.usefixtures("graphs_as_calls")
def test_graphs_are_captured_again_where_weights_lie_elsewhere() -> None:
    made = learner(GRPO(kl=None), True)
    for _ in range(4):
        made.step(groups(0))
    assert made.graphs is not None and replays(made) == 2
    weight = made.net.get_parameter("layers.0.mlp.up_proj.weight")
    weight.data = weight.data.clone()
    made.step(groups(0))
    assert not any(passes.captured for passes in made.graphs._passes.values())


@pytest.mark.usefixtures("graphs_as_calls")
def test_memory_of_graphs_is_freed_on_demand_unless_they_are_in_use() -> None:
    made = learner(GRPO(kl=None), True)
    for _ in range(3):
        made.step(groups(0))
    assert made.graphs is not None and replays(made) == 1
    with made.graphs.in_use:
        free_lent_memory()
    assert replays(made) == 1
    free_lent_memory()
    assert not made.graphs._passes
    made.step(groups(0))
    assert replays(made) == 0


@pytest.mark.usefixtures("graphs_as_calls")
def test_what_cannot_be_captured_runs_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(microbatch_graphs._Passes, "capture", fail)
    made = learner(GRPO(kl=None), True)
    made.step(groups(0))
    made.step(groups(0))
    with pytest.warns(UserWarning, match=r"graphs cannot be captured \(operation not permitted when stream is"):
        made.step(groups(0))
    assert made.step(groups(0))["grad_norm"] > 0 and made.graphs is not None and not made.graphs.enabled


def test_only_small_work_has_graphs() -> None:
    graphs = MicrobatchGraphs(net(), {}, 1.0)
    sizes = GraphSizes(1024, 1024, 1024, 16, 128, 128)
    assert graphs.fits(sizes)
    most = int(microbatch_graphs.MAX_LAYER_WORK / CONFIG.layer_parameter_count)
    assert not graphs.fits(GraphSizes(most + 1, 1024, 1024, 16, 128, 128))


def test_graphs_are_for_a_gpu() -> None:
    made = Learner(net(), GRPO(kl=None))
    made.step(groups(0))
    assert made.graphs is None
