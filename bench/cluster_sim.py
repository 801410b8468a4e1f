"""RL on 8 to 1,024 GPUs by simulation, fed with figures of one H200, and checked against a real run and other projects.

The peer is this machine: `--part overlap` runs `sampling_ahead.py`'s sampler and learner, which only wait, and the
simulator with the same two times. `--part fit` looks for the two numbers that nobody published (the spread of lengths,
and what a pass of a deployed engine takes beside what was measured) which fit all published speed-ups best, and says
what they predict for a source that was left out. `published`, `scaling`, `staleness` and `networks` are the tables of
docs/scaling-simulated.md, which docs/scaling_simulated.py writes from the kept result.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cluster_cases import PUBLISHED, R1_DISTILL_MEAN, VERL_MEAN, Setup
from cluster_costs import GPUS, MODELS, Sharding, measured_rates, publish_share, verify_seconds
from cluster_events import Cluster, Outcome, Simulation, Workload
from harness import RESULTS, hardware, make_parser, report

SPREADS = (0.7, 1.0, 1.3)
OVERHEADS = (0.0, 0.005, 0.010, 0.015)  # seconds
SWEEP_MODELS = {"1.5B": 1, "7B": 1, "32B": 2, "70B": 4}  # GPUs of a replica
SWEEP_GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
SWEEP_STALENESS = (0, 1, 4)
BATCH, MEAN, CAP = 4096, 4000, 16384  # 256 problems x 16 answers
STATE_BYTES = 16  # of each weight that learns: master weight, moments, gradient
MEMORY_SHARE = 0.85  # of a GPU, for weights and states; the rest is for activations


class WaitingSampler:
    """A batch takes so long, whatever its size: what `sampling_ahead.WaitingPolicy` does."""

    slope, cache_tokens = 0.0, math.inf

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def parts(self, rows: int) -> tuple[float, float, float]:
        return self.seconds, 0.0, 0.0

    def prefill_seconds(self, tokens: float) -> float:
        return 0.0


def waiting_step(seconds: float, staleness: int, steps: int = 20) -> float:
    cluster = Cluster(1, WaitingSampler(seconds), lambda lengths: seconds, staleness=staleness, max_rows=10**6)
    return Simulation(cluster, Workload(10, lambda rng, n: np.ones(n, int))).run(steps).step


def measure_overlap(seconds: float = 1.0, steps: int = 10) -> dict[str, Any]:
    """Seconds of a step by staleness: measured here, and simulated."""
    from sampling_ahead import simulated_step_seconds

    rows = {}
    for staleness in (0, 1, 2, 4):
        measured = asyncio.run(simulated_step_seconds(seconds, steps, staleness))
        rows[str(staleness)] = {"measured": measured, "simulated": waiting_step(seconds, staleness)}
    return {"seconds": seconds, "steps": steps, "by_staleness": rows}


def simulate_published(overhead: float, spread: float) -> list[dict[str, Any]]:
    rows, known = [], dict[Setup, Outcome]()
    for case in PUBLISHED:
        before, after = (replace(s, pass_overhead=overhead, spread=spread) for s in (case.before, case.after))
        for setup in (before, after):
            if setup not in known:
                known[setup] = setup.run(2)
        steps = known[before].step, known[after].step
        rows.append({
            "name": case.name, "source": case.source, "published": case.figure, "simulated": steps[0] / steps[1],
            "published_steps": case.steps, "simulated_steps": steps,
        })  # fmt: skip
        print(f"  {case.name}: published {case.figure:.2f}, simulated {rows[-1]['simulated']:.2f}", flush=True)
    return rows


def log_errors(rows: Sequence[dict[str, Any]], only: str = "", but: str = "-") -> list[float]:
    """Of the rows of one source, or of all but one."""
    kept = [r for r in rows if r["name"].startswith(only) and not r["name"].startswith(but)]
    return [math.log(r["simulated"] / r["published"]) for r in kept]


def rms_factor(errors: Sequence[float]) -> float:
    """The typical factor between simulated and published: the root mean square of logarithms."""
    return math.exp(math.sqrt(statistics.fmean(e * e for e in errors)))


def fit() -> dict[str, Any]:
    """All published speed-ups for each pair of the two free numbers; and each source predicted from the others."""
    grid = []
    for overhead in OVERHEADS:
        for spread in SPREADS:
            print(f"overhead {overhead:g} s, spread {spread:g}", flush=True)
            rows = simulate_published(overhead, spread)
            grid.append({"overhead": overhead, "spread": spread, "rms": rms_factor(log_errors(rows)), "rows": rows})
    return summarise_fit(grid)


def summarise_fit(grid: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(grid, key=lambda g: g["rms"])
    left_out = {}
    for source in sorted({r["name"].split(",")[0] for r in best["rows"]}):
        errors = [rms_factor(log_errors(g["rows"], but=source)) for g in grid]
        others = grid[errors.index(min(errors))]
        left_out[source] = {
            "overhead": others["overhead"], "spread": others["spread"],
            "rms": rms_factor(log_errors(others["rows"], only=source)),
        }  # fmt: skip
    return {
        "overhead": best["overhead"], "spread": best["spread"], "rms": best["rms"], "rows": best["rows"],
        "unfitted": next(g for g in grid if g["overhead"] == 0.0 and g["spread"] == best["spread"])["rows"],
        "assumed": {"verl": VERL_MEAN, "AReaL": R1_DISTILL_MEAN},
        "grid": [{k: g[k] for k in ("overhead", "spread", "rms")} for g in grid], "left_out": left_out,
    }  # fmt: skip


def sweep_setup(model: str, gpus: int, staleness: int, spread: float, **more: Any) -> Setup | None:
    """Ponder's rules with the best split of GPUs and the best sharding, both by formula; None: it does not fit."""
    base = Setup(
        model, "H200", gpus, 0, MEAN, CAP, BATCH, staleness=staleness, tensor_parallel=SWEEP_MODELS[model],
        software="ponder", spread=spread, **more,
    )  # fmt: skip
    lengths = base.workload().lengths(np.random.default_rng(1), BATCH)
    choices = []
    for learners in [0] if staleness == 0 else sorted({max(1, gpus * k // 8) for k in range(1, 8)}):
        for shard in (0, *(n for n in (8, 16, 32, 64) if n < (learners or gpus))):
            setup = replace(base, learner_gpus=learners, sharding=Sharding(shard=shard))
            if fits(setup):
                both = setup.learner().update_seconds(lengths), sampling_seconds(setup, lengths)
                choices.append((max(both), sum(both), setup))
    return min(choices, key=lambda c: c[:2])[2] if choices else None


def fits(setup: Setup) -> bool:
    memory, n = GPUS[setup.gpu].memory * MEMORY_SHARE, MODELS[setup.model].parameters
    states = STATE_BYTES * n / min(setup.ranks, setup.sharding.shard or setup.ranks)
    sampled = 2 * n / setup.tensor_parallel
    if setup.replicas < 1 or setup.replicas * setup.tensor_parallel != setup.gpus - setup.learner_gpus:
        return False
    return states + sampled <= memory if not setup.learner_gpus else states <= memory and sampled <= memory


def sampling_seconds(setup: Setup, lengths: Sequence[int]) -> float:
    """Of a batch where replicas are always as full as they may be. A sequence that is found in a replica is a long one:
    its length is E[L^2] / E[L] in the mean, and half of it is written."""
    cost, tokens = setup.sampler(), np.asarray(lengths, float)
    found = float((tokens**2).sum() / tokens.sum())
    rows = min(256, cost.cache_tokens / (setup.prompt + found), (setup.staleness + 1) * setup.batch / setup.replicas)
    if rows < 1:
        return math.inf
    fixed, flat, floor = cost.parts(int(rows))
    seconds = fixed + max(flat, floor + int(rows) * (setup.prompt + found / 2) * cost.slope)
    return float(tokens.sum()) / setup.replicas / int(rows) * seconds


def describe(setup: Setup, outcome: Outcome) -> dict[str, Any]:
    lengths = setup.workload().lengths(np.random.default_rng(1), setup.batch)
    learner = setup.learner().parts(lengths)
    fixed, flat, floor = setup.sampler().parts(1)
    tail = setup.cap * (fixed + max(flat, floor + setup.cap / 2 * setup.sampler().slope)) / (setup.staleness + 1)
    shares = {**{k: v / outcome.step for k, v in learner.items()}, "publish": setup.publish() / outcome.step}
    row = {
        "model": setup.model, "gpus": setup.gpus, "staleness": setup.staleness, "learner_gpus": setup.learner_gpus,
        "shard": setup.learner().shard, "step": outcome.step,
        "tokens_per_second": outcome.tokens / sum(outcome.step_seconds),
        "learner_busy": outcome.learner_busy, "sampler_busy": outcome.sampler_busy, "rows": outcome.mean_rows,
        "background": setup.background, "shares": shares, "tail_share": tail / outcome.step,
        "mean_age": statistics.fmean(outcome.ages), "max_age": max(outcome.ages),
    }  # fmt: skip
    return {**row, "bottleneck": bottleneck(row)}


def bottleneck(row: dict[str, Any]) -> str:
    """What a step waits for most."""
    shares = row["shares"]
    if row["background"] and shares["publish"] > 0.9:
        return "publishing"
    waited = {k: v for k, v in shares.items() if k != "publish" or not row["background"]}
    if sum(waited.values()) < 0.75:
        return "longest answers" if row["tail_share"] > 0.5 else "sampling"
    name = max(waited, key=lambda k: waited[k])
    return {"compute": "learning", "imbalance": "uneven lengths", "wires": "wires", "publish": "publishing"}[name]


def run_setup(setup: Setup | None, steps: int = 6) -> dict[str, Any] | None:
    if setup is None:
        return None
    row = describe(setup, setup.run(steps))
    print(
        f"  {row['model']} on {row['gpus']} GPUs ({row['learner_gpus']} learn), S={row['staleness']}: "
        f"{row['step']:.1f} s, {row['tokens_per_second']:,.0f} tokens/s, {row['bottleneck']}", flush=True,
    )  # fmt: skip
    return row


def simulate_scaling(spread: float) -> list[dict[str, Any]]:
    setups = [sweep_setup(m, g, s, spread) for m in SWEEP_MODELS for g in SWEEP_GPUS for s in SWEEP_STALENESS]
    return [row for row in map(run_setup, setups) if row]


def simulate_staleness(spread: float) -> list[dict[str, Any]]:
    return [
        row
        for gpus in (64, 512)
        for staleness in (0, 1, 2, 4, 8)
        if (row := run_setup(sweep_setup("7B", gpus, staleness, spread)))
    ]


def simulate_networks(spread: float) -> list[dict[str, Any]]:
    """The learner's ranks over InfiniBand and Ethernet; and samplers that get their weights over the internet."""
    rows = []
    for learner, publish in (
        ("InfiniBand", ""),
        ("Ethernet", ""),
        ("InfiniBand", "Ethernet"),
        ("InfiniBand", "internet"),
    ):
        for model in ("7B", "70B"):
            for staleness in (1, 4):
                setup = sweep_setup(
                    model, 128, staleness, spread, network=learner, publish_network=publish, background=bool(publish)
                )
                if row := run_setup(setup):
                    rows.append({**row, "network": learner, "publish_network": publish or learner})
    return rows


def main() -> None:
    flags = make_parser(__doc__)
    parts = ("overlap", "fit", "scaling", "staleness", "networks")
    flags.add_argument("--part", choices=["all", *parts], default="all")
    args = flags.parse_args()
    path = RESULTS / f"cluster_sim-{hardware()}.json"
    details: dict[str, Any] = json.loads(path.read_text())["details"] if path.exists() else {}
    for part in parts if args.part == "all" else [args.part]:
        spread = details.get("fit", {}).get("spread", SPREADS[-1])
        details[part] = {
            "overlap": measure_overlap, "fit": fit, "scaling": lambda s=spread: simulate_scaling(s),
            "staleness": lambda s=spread: simulate_staleness(s), "networks": lambda s=spread: simulate_networks(s),
        }[part]()  # fmt: skip
    keep(details)


def keep(details: dict[str, Any]) -> None:
    """As the bench's result; what is compared is the one thing that was measured here, too."""
    details["rates"] = {who: asdict(measured_rates(who)) for who in ("ponder", "peers")}
    details["rates"] |= {"publish_share": publish_share(), "verify_seconds": verify_seconds()}
    ahead = details["overlap"]["by_staleness"]["1"]
    report(
        "cluster_sim",
        f"a sampler and a learner that take {details['overlap']['seconds']:g} s each, staleness 1: simulated step",
        ahead["simulated"],
        {"measured": ahead["measured"]},
        unit="s",
        better="lower",
        packages=["numpy"],
        details=details,
    )


if __name__ == "__main__":
    main()
