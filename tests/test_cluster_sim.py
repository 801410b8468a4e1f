"""The cluster simulator against closed forms, brute force, ponder's own code and kept measurements."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cluster_cases import PUBLISHED, capped_mean, long_tailed
from cluster_costs import (
    GPUS,
    GPUS_PER_NODE,
    MODELS,
    NETWORKS,
    LearnerCost,
    PassCost,
    Sharding,
    balance,
    measured_rates,
    publish_seconds,
    publish_share,
    read_result,
)
from cluster_events import Clock, Cluster, Replica, Sample, Servers, Simulation, Workload
from cluster_sim import WaitingSampler, bottleneck, rms_factor, summarise_fit, sweep_setup, waiting_step
from harness import RESULTS
from ponder.train.distributed import DataParallelGroup

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import scaling_simulated  # noqa: E402


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    (path,) = RESULTS.glob("cluster_sim-*.json")
    details: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["details"]
    return details


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_step_is_the_sum_in_turn_and_the_longer_one_ahead(staleness: int) -> None:
    assert waiting_step(10.0, staleness) == pytest.approx(20.0 if staleness == 0 else 10.0)
    sampler, learner = 3.0, 5.0
    cluster = Cluster(
        1, WaitingSampler(sampler), lambda lengths: learner, publish=0.5, staleness=staleness, max_rows=99
    )
    step = Simulation(cluster, Workload(8, lambda rng, n: np.ones(n, int))).run(10).step
    assert step == pytest.approx(sampler + learner + 0.5 if staleness == 0 else learner + 0.5)


@pytest.mark.parametrize(("staleness", "expected"), [(0, 12.0), (1, 6.0), (2, 5.0), (3, 5.0)])
def test_weights_on_the_wire_delay_only_the_batches_that_wait_for_them(staleness: int, expected: float) -> None:
    """Learn 5, publish 4, sample 3: a cycle of 12 s is shared by S + 1 batches, and no step is shorter than 5 s."""
    cluster = Cluster(1, WaitingSampler(3.0), lambda lengths: 5.0, 4.0, staleness, background=True, max_rows=99)
    outcome = Simulation(cluster, Workload(8, lambda rng, n: np.ones(n, int))).run(12)
    assert outcome.step == pytest.approx(expected) and max(outcome.ages) <= staleness


def test_queue_of_verifiers_is_m_d_1() -> None:
    """Pollaczek and Khinchine: rho / (2 (1 - rho)) service times of waiting."""
    clock, rng, service = Clock(), np.random.default_rng(0), 1.0
    servers, served = Servers(clock, 1), []
    arrivals = np.cumsum(rng.exponential(2.0, 60_000))  # rho = 0.5

    def arrive(i: int) -> None:
        servers.serve(service, lambda: served.append(i))
        if i + 1 < len(arrivals):
            clock.after(arrivals[i + 1] - clock.now, lambda: arrive(i + 1))

    clock.after(arrivals[0], lambda: arrive(0))
    clock.run(lambda: len(served) == len(arrivals))
    assert servers.waited / len(arrivals) == pytest.approx(0.5, rel=0.05)
    assert served == sorted(served)


def test_many_servers_take_the_first_in_the_queue() -> None:
    clock, done = Clock(), list[float]()
    servers = Servers(clock, 3)
    for _ in range(7):
        servers.serve(2.0, lambda: done.append(clock.now))
    clock.run(lambda: len(done) == 7)
    assert done == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 6.0] and servers.waited == 3 * 2 + 4


class SmallSampler:
    """Reading overtakes multiplying while the cache grows."""

    slope, cache_tokens = 0.01, 120.0

    def parts(self, rows: int) -> tuple[float, float, float]:
        return 0.1 + 0.01 * rows, 0.25 * rows, 0.3

    def prefill_seconds(self, tokens: float) -> float:
        return 0.0


def naive_end_times(lengths: list[int], prompt: int, max_rows: int, cost: SmallSampler) -> dict[int, float]:
    """Pass by pass. All samples are there from the begin."""
    waiting, active, ends, now = list(enumerate(lengths)), dict[int, int](), dict[int, float](), 0.0
    while waiting or active:
        while waiting and len(active) < max_rows:
            held = sum(prompt + lengths[i] for i in active)
            if active and held + prompt + waiting[0][1] > cost.cache_tokens:
                break
            i, _ = waiting.pop(0)
            active[i] = 0
        fixed, flat, floor = cost.parts(len(active))
        keys = sum(prompt + n for n in active.values()) + 0.5 * len(active)  # the middle of the pass
        now += fixed + max(flat, floor + keys * cost.slope)
        for i in list(active):
            active[i] += 1
            if active[i] == lengths[i]:
                ends[i] = now
                del active[i]
    return ends


def end_times(lengths: list[int], prompt: int, max_rows: int, cost: Any) -> dict[int, float]:
    clock, ends = Clock(), dict[int, float]()
    replica = Replica(clock, cost, prompt, max_rows, lambda s: ends.update({s.number: clock.now}))
    replica.submit([Sample(i, 0, n) for i, n in enumerate(lengths)], 0)
    clock.run(lambda: len(ends) == len(lengths))
    return ends


def test_replica_ends_sequences_when_a_loop_over_passes_does() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        lengths = [int(x) for x in rng.integers(1, 30, 12)]
        ends = end_times(lengths, 4, 5, SmallSampler())
        # a loop takes the larger of both for a whole pass, the formula for the parts of it
        assert ends == pytest.approx(naive_end_times(lengths, 4, 5, SmallSampler()), rel=2e-3)


def test_interruptions_only_delay() -> None:
    """Split by stalls at odd times, the passes are the same, and each stall adds its length."""

    def last_end(stalls: list[float]) -> float:
        clock, ends = Clock(), list[float]()
        replica = Replica(clock, SmallSampler(), 2, 4, lambda s: ends.append(clock.now))
        replica.submit([Sample(i, 0, n) for i, n in enumerate((7, 19, 26))], 0)
        for at in stalls:
            clock.after(at, lambda: replica.stall(0.75))
        clock.run(lambda: len(ends) == 3)
        return ends[-1]

    assert last_end([0.37, 3.3, 8.01]) == pytest.approx(last_end([]) + 3 * 0.75)


@pytest.mark.parametrize("rule", ["batch", "first"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_every_sample_is_trained_once_and_none_is_too_old(rule: Any, staleness: int) -> None:
    cluster = Cluster(
        3, SmallSampler(), lambda lengths: 0.02 * sum(lengths), 0.3, staleness, rule, max_rows=6, verifiers=2,
        verify=0.2, fetches=1 if rule == "batch" else 4, recompute_cache=True,
    )  # fmt: skip
    simulation = Simulation(cluster, Workload(32, long_tailed(8, 60, 1.0), prompt=3))
    outcome = simulation.run(30)
    numbers = [s.number for s in outcome.samples]
    steps = max(s.trained for s in outcome.samples)
    assert len(set(numbers)) == len(numbers)
    for step in range(steps):
        assert sum(s.trained == step for s in outcome.samples) == 32
    assert all(s.trained >= s.version >= 0 for s in outcome.samples)
    assert simulation._begun == (simulation.version + 1 + staleness) * 32
    if rule == "batch":
        assert all(s.trained == s.batch for s in outcome.samples)
        assert sorted(n for n in numbers if n < steps * 32) == list(range(steps * 32))
        assert max(outcome.ages) == staleness


def test_lengths_have_the_mean_after_the_cap() -> None:
    draws = np.minimum(np.random.default_rng(0).lognormal(6.5, 0.9, 400_000), 2000)
    assert capped_mean(6.5, 0.9, 2000) == pytest.approx(draws.mean(), rel=5e-3)
    lengths = long_tailed(900, 2000, 0.8)(np.random.default_rng(1), 100_000)
    assert lengths.mean() == pytest.approx(900, rel=0.01) and lengths.max() == 2000
    with pytest.raises(ValueError, match="below the cap"):
        long_tailed(3000, 2000, 0.8)


def test_work_is_dealt_as_the_learner_deals_it() -> None:
    tokens = np.random.default_rng(2).integers(10, 4000, 50).astype(float)
    work: list[Any] = [SimpleNamespace(tokens=lambda n=n: int(n)) for n in tokens]
    expected = [sum(w.tokens() for w in DataParallelGroup(rank, 7).shard(work)) for rank in range(7)]
    load, share = balance(tokens, tokens, 7)
    assert sorted(load) == sorted(expected) and np.array_equal(load, share)


@pytest.mark.parametrize("who", ["ponder", "peers"])
def test_engine_formula_gives_the_kept_rates(who: str) -> None:
    rates = measured_rates(who)
    assert min(rates.layer_seconds, rates.row_seconds) > 0 and rates.read_factor >= 1
    run = read_result("engine_groups_qwen2_5_1_5b_256-nvidia-h200")
    cost = PassCost(MODELS["1.5B"], GPUS["H200"], rates)
    seconds = max(end_times([256] * 256, 40, 256, cost).values())
    kept = run["ours"] if who == "ponder" else run["peers"]["vLLM"]
    assert 256 * 256 / seconds == pytest.approx(kept, rel=0.15)


def test_learner_formula_gives_the_kept_rate() -> None:
    kept = read_result("trainer_rate_qwen2_5_1_5b_4k-nvidia-h200")["details"]["tokens_per_second"]
    learner = LearnerCost(MODELS["1.5B"], GPUS["H200"], NETWORKS["InfiniBand"], measured_rates("ponder"), 1)
    parts = learner.parts([4096] * 8)
    assert 8 * 4096 / sum(parts.values()) == pytest.approx(kept, rel=0.1)
    assert parts["imbalance"] == parts["wires"] == 0


def test_fsdp_moves_eight_bytes_a_weight_and_hsdp_less_between_nodes() -> None:
    net, rates = NETWORKS["Ethernet"], measured_rates("ponder")
    model, gpu = MODELS["7B"], GPUS["H200"]

    def wires(ranks: int, shard: int) -> float:
        return LearnerCost(model, gpu, net, rates, ranks, Sharding(shard)).parts([1] * ranks)["wires"]

    one_node = wires(GPUS_PER_NODE, 0)
    moved = (2 + 2 + 4) * model.parameters * 7 / 8 / (gpu.nvlink * 0.8)
    assert one_node == pytest.approx(moved, rel=0.05)
    between = (2 + 2 + 4) * model.parameters * 3 / 4 / (net.nic * 0.8)
    assert wires(32, 0) == pytest.approx(between, rel=0.05)
    # the gradients of an eighth of the weights, out and back, over an eighth of the node's NIC
    across = 2 * 4 * model.parameters / 8 * 3 / 4 / (net.nic / 8 * 0.8)
    assert wires(32, 8) == pytest.approx(one_node + across, rel=0.05)


def test_publish_goes_at_the_rate_that_others_published() -> None:
    assert 0.2 < publish_share() < 1.6
    assert publish_seconds(MODELS["70B"], NETWORKS["InfiniBand"]) == pytest.approx(
        141.2e9 / (50e9 * publish_share()), rel=1e-3
    )


def test_published_figures_are_those_of_the_sources() -> None:
    figures = {p.name: round(p.figure, 2) for p in PUBLISHED}
    assert figures["AReaL, 1.5B, 128 H800"] == 2.77
    assert [figures[f"verl, 7B, {n} H20"] for n in (32, 64, 128)] == [2.68, 1.93, 2.37]
    assert figures["NeMo, 235B-A22B, 128 to 256 H100"] / 2 == pytest.approx(0.63, abs=0.01)
    assert figures["NeMo, DeepSeek-V3, 256 to 512 H100"] / 2 == pytest.approx(0.6, abs=0.01)


def test_fit_leaves_sources_out() -> None:
    def rows(a: float, b: float) -> list[dict[str, Any]]:
        return [
            {"name": f"{source}, x", "published": 2.0, "simulated": 2.0 * factor}
            for source, factor in (("A", a), ("B", b))
        ]  # fmt: skip

    grid = [
        {"overhead": o, "spread": 1.0, "rows": r, "rms": rms_factor([math.log(x["simulated"] / 2) for x in r])}
        for o, r in ((0.0, rows(1.0, 1.5)), (0.1, rows(1.4, 1.0)))
    ]
    fitted = summarise_fit(grid)
    assert fitted["overhead"] == 0.1
    assert fitted["left_out"]["A"]["rms"] == pytest.approx(1.4)  # B alone would take 0.1
    assert fitted["left_out"]["B"]["rms"] == pytest.approx(1.5)


def test_sweep_refuses_what_does_not_fit() -> None:
    assert sweep_setup("70B", 8, 0, 1.0) is None
    setup = sweep_setup("7B", 64, 1, 1.0)
    assert setup is not None and 0 < setup.learner_gpus < 64


def test_bottleneck_is_the_largest_share() -> None:
    shares = {"compute": 0.5, "imbalance": 0.1, "wires": 0.2, "publish": 0.1}
    row = {"shares": shares, "tail_share": 0.1, "background": False}
    assert bottleneck(row) == "learning"
    assert bottleneck({**row, "shares": {**shares, "compute": 0.1}}) == "sampling"
    assert bottleneck({**row, "shares": dict.fromkeys(shares, 0.0), "tail_share": 0.9}) == "longest answers"
    assert bottleneck({**row, "shares": {**shares, "publish": 0.6}}) == "publishing"
    assert bottleneck({**row, "shares": {**shares, "publish": 0.6}, "background": True}) == "learning"


def test_simulated_overlap_is_the_measured_one(kept: dict[str, Any]) -> None:
    overlap = kept["overlap"]
    for staleness, times in overlap["by_staleness"].items():
        assert times["simulated"] == pytest.approx(waiting_step(overlap["seconds"], int(staleness)))
        assert times["measured"] == pytest.approx(times["simulated"], rel=0.1)


def test_page_is_that_of_the_kept_result(kept: dict[str, Any]) -> None:
    page = (DOCS / "scaling-simulated.md").read_text(encoding="utf-8")
    assert page == scaling_simulated.page(kept), "run: python docs/scaling_simulated.py"
    assert all((DOCS / "figures" / f"{name}.png").exists() for name in scaling_simulated.figures(kept))


def test_kept_result_is_what_the_simulator_gives_now(kept: dict[str, Any]) -> None:
    """The measured rates, and of the simulated rows those that are quick."""
    for who in ("ponder", "peers"):
        assert kept["rates"][who] == pytest.approx(asdict(measured_rates(who)))
    fit = kept["fit"]
    (case,) = [p for p in PUBLISHED if p.name == "NeMo, 235B-A22B, 128 to 256 H100"]
    (row,) = [r for r in fit["rows"] if r["name"] == case.name]
    steps = [
        replace(s, pass_overhead=fit["overhead"], spread=fit["spread"]).run(2).step for s in (case.before, case.after)
    ]
    assert steps == pytest.approx(row["simulated_steps"]), "run: python bench/cluster_sim.py"
    (row,) = [r for r in kept["scaling"] if (r["model"], r["gpus"], r["staleness"]) == ("70B", 16, 0)]
    setup = sweep_setup("70B", 16, 0, fit["spread"])
    assert setup is not None
    assert (setup.learner_gpus, setup.learner().shard) == (row["learner_gpus"], row["shard"])
