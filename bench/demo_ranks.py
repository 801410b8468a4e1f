"""The demo recipe with several ranks and sampler processes beside one process: does it learn the same?

`run` trains `ponder run addition` once, in the ranks that torchrun started, and rank 0 writes one JSON file: which of
the held-out problems are then solved greedily, and how old the oldest token was. `table` compares such files with those
of one process, problem by problem over all seeds.

    torchrun --standalone --nproc-per-node 2 bench/demo_ranks.py run --replicas 2 --staleness 1 --seed 0 --out kept
    python bench/demo_ranks.py run --seed 0 --out kept
    python bench/demo_ranks.py table --out kept
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import commit, hardware, versions
from ponder import rank_env
from ponder.cli.recipe_files import find_recipe, load_recipe
from ponder.measure.statistics.intervals import paired_difference
from ponder.models.replicas.ledger import read_ledger
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Chain
from ponder.runs import read_metrics, read_traces
from ponder.types import Sampling


def train_once(args: Any) -> None:
    ranks, rank = rank_env.world_size(), rank_env.rank()
    recipe = load_recipe(find_recipe("addition"))
    settings = {} if args.problems_per_step is None else {"problems_per_step": args.problems_per_step}
    job: RL = replace(
        recipe(seed=args.seed, device=args.device, steps=args.steps, **settings),
        staleness=args.staleness, replicas=args.replicas,
    )  # fmt: skip
    name = f"ranks{ranks}-replicas{args.replicas}-staleness{args.staleness}-seed{args.seed}"
    with tempfile.TemporaryDirectory() as scratch:
        run = (args.runs or Path(scratch)) / name  # one folder for all ranks
        began = time.perf_counter()
        job(run)
        seconds = time.perf_counter() - began
        if rank:
            return
        for name_of in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name_of, None)  # an evaluation runs in one process
        greedy = Chain(Sampling(temperature=0, max_tokens=10))
        check = Evaluate(
            job.task, str(run), job.template, greedy, limit=args.limit, device=args.device, dtype="float32"
        )
        check(Path(scratch) / "eval")
        traces = [t for _, t in read_traces(Path(scratch) / "eval")]
        right = {t.problem.id: (t.score(t.answers()[-1], job.task.verifier.name) or 0) >= 1 for t in traces}
        rows = read_metrics(run)
        ledgers = [read_ledger(path) for path in sorted((run / REPLICAS_FOLDER).rglob("ledger.jsonl"))]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps({
        "ranks": ranks, "replicas": args.replicas, "staleness": args.staleness, "seed": args.seed, "steps": args.steps,
        "accuracy": float(np.mean(list(right.values()))), "right": right, "seconds": seconds,
        "oldest": max((r.get("staleness/max", 0.0) for r in rows), default=0.0),
        "step_seconds": float(np.median([r["step_time"] for r in rows[args.steps // 8 :]])),
        "lost_or_doubled": sum(c.open + c.doubled for c in ledgers if c is not None),
        "hardware": hardware(args.device), "versions": versions(), "commit": commit(),
    }) + "\n")  # fmt: skip


def compare_runs(folder: Path) -> list[dict[str, Any]]:
    """One row for each way to run, all seeds together, against one process."""
    ways: dict[tuple[int, int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("ranks*.json")):
        row = json.loads(path.read_text())
        ways[row["ranks"], row["replicas"], row["staleness"]][row["seed"]] = row
    alone = ways.get((1, 0, 0), {})
    rows = []
    for (ranks, replicas, staleness), by_seed in sorted(ways.items()):
        seeds = sorted(by_seed.keys() & alone.keys())
        pairs = [(by_seed[s]["right"][p], alone[s]["right"][p]) for s in seeds for p in sorted(alone[s]["right"])]
        gap = paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None
        rows.append({
            "ranks": ranks, "replicas": replicas, "staleness": staleness, "seeds": sorted(by_seed),
            "accuracy": [round(by_seed[s]["accuracy"], 4) for s in sorted(by_seed)],
            "difference": None if gap is None else [gap.mean, gap.low, gap.high],
            "oldest": max(r["oldest"] for r in by_seed.values()),
            "lost_or_doubled": sum(r["lost_or_doubled"] for r in by_seed.values()),
        })  # fmt: skip
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| ranks | replicas | staleness | accuracy, by seed | against one process | oldest token |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        accuracy = ", ".join(f"{100 * a:.1f}" for a in row["accuracy"])
        gap = (
            "–"
            if row["difference"] is None
            else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in row["difference"]))
        )
        print(f"| {row['ranks']} | {row['replicas']} | {row['staleness']} | {accuracy} % | {gap} | {row['oldest']:g} |")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("part", choices=["run", "table"])
    flags.add_argument("--out", type=Path, required=True, help="folder of the JSON files")
    flags.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--staleness", type=int, default=0)
    flags.add_argument("--replicas", type=int, default=0)
    flags.add_argument("--steps", type=int, default=24)
    flags.add_argument("--problems-per-step", type=int)
    flags.add_argument("--limit", type=int, default=300, help="held-out problems")
    flags.add_argument("--runs", type=Path, help="folder for the run directory; several ranks need one that all see")
    args = flags.parse_args()
    if args.part == "table":
        print_table(compare_runs(args.out))
        return
    if rank_env.world_size() > 1 and args.runs is None:
        raise SystemExit("several ranks need one run directory: give --runs FOLDER")
    train_once(args)


if __name__ == "__main__":
    main()
