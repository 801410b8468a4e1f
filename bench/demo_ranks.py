"""The demos with several ranks and sampler processes beside one process: do they learn the same?

`run` trains the GRPO stage of `ponder run countdown` (or `ponder run addition`, with --recipe addition) once, in the
ranks that torchrun started, and rank 0 writes one JSON file: how often each held-out problem is then solved, and how
old the oldest token was. `start` fine-tunes the model that countdown's stage begins with. `table` compares files with
those of one process, problem by problem over all seeds, as JSON. Settings are tried on other held-out problems than
those that are reported (`--first 300`), in runs with a `--name`; `trials` compares them with the one named s0.

    python bench/demo_ranks.py start --seed 0 --runs runs
    python bench/demo_ranks.py run --seed 0 --runs runs --out kept
    torchrun --standalone --nproc-per-node 2 bench/demo_ranks.py run --replicas 2 --staleness 1 --runs runs --out kept
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
from ponder.measure.statistics.clustered_means import clustered_mean
from ponder.measure.statistics.intervals import bootstrap_mean
from ponder.models.replicas.ledger import read_ledger
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Chain, Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.rollout_correction import ROLLOUT_CORRECTIONS
from ponder.types import Sampling

CURVES = (
    "reward", "grad_norm", "time/sample", "step_time", "cluster/batches_ahead", "staleness/mean",
    "rollout_correction/ess", "rollout_correction/changed",
)  # fmt: skip
LATE = {
    "mean_age": "staleness/mean", "ess": "rollout_correction/ess", "changed": "rollout_correction/changed"
}  # of the steps after the first ten, by seed  # fmt: skip
TRIED = ("staleness", "batches_ahead", "correction", "cap", "lr_factor", "warmup_steps")  # what the trials differ in


def make_job(args: Any) -> tuple[RL, Any]:
    """The job, and the strategy that its model is evaluated with."""
    recipe = load_recipe(find_recipe(args.recipe))
    if args.recipe == "addition":
        greedy = Chain(Sampling(temperature=0, max_tokens=10))
        return recipe(seed=args.seed, device=args.device, steps=args.steps), greedy
    stages = {stage.name: stage.job for stage in recipe(seed=args.seed, rl_steps=args.steps).stages}
    job = replace(stages["rl"], model=str(start_folder(args)), device=args.device, dtype="float32")
    return job, Samples(n=8, sampling=job.sampling)


def start_folder(args: Any) -> Path:
    return args.runs / f"start-seed{args.seed if args.start_seed is None else args.start_seed}"


def fine_tune(args: Any) -> None:
    stages = {
        stage.name: stage.job
        for stage in load_recipe(find_recipe(args.recipe))(seed=args.seed, sft_steps=args.sft_steps).stages
    }
    replace(stages["sft"], device=args.device, dtype="float32")(start_folder(args))


def train_once(args: Any) -> None:
    ranks, rank = rank_env.world_size(), rank_env.rank()
    job, strategy = make_job(args)
    if args.problems_per_step is not None:
        job = replace(job, problems_per_step=args.problems_per_step)
    settings = {} if args.cap is None else {"cap": args.cap}
    correction = None if args.correction is None else ROLLOUT_CORRECTIONS[args.correction](**settings)
    job = replace(
        job,
        staleness=args.staleness,
        replicas=args.replicas,
        batches_ahead=args.batches_ahead,
        rollout_correction=correction,
        optimizer=replace(job.optimizer, lr=args.lr_factor * job.optimizer.lr, warmup_steps=args.warmup_steps),
    )
    name = f"{args.name}ranks{ranks}-replicas{args.replicas}-staleness{args.staleness}-seed{args.seed}"
    run = args.runs / f"{args.recipe}-{name}"  # one folder for all ranks
    began = time.perf_counter()
    job(run)
    seconds = time.perf_counter() - began
    if rank:
        return
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(variable, None)  # an evaluation runs in one process
    shows_start = args.recipe == "countdown" and ranks == 1  # once for each seed
    before = mean_scores(args, job, str(job.model), strategy) if shows_start else None
    after = mean_scores(args, job, str(run), strategy)
    rows = read_metrics(run)
    ledgers = [read_ledger(path) for path in sorted((run / REPLICAS_FOLDER).rglob("ledger.jsonl"))]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps({
        "recipe": args.recipe, "ranks": ranks, "replicas": args.replicas, "staleness": args.staleness,
        "seed": args.seed, "steps": args.steps, "first": args.first, "batches_ahead": args.batches_ahead,
        "correction": args.correction, "cap": args.cap, "start_seed": args.start_seed, "lr_factor": args.lr_factor,
        "warmup_steps": args.warmup_steps,
        "before": None if before is None else float(np.mean(list(before.values()))),
        "accuracy": float(np.mean(list(after.values()))), "right": after, "seconds": seconds,
        "oldest": max((r.get("staleness/max", 0.0) for r in rows), default=0.0),
        "step_seconds": float(np.median([r["step_time"] for r in rows[args.steps // 8 :]])),
        "lost_or_doubled": sum(c.open + c.doubled for c in ledgers if c is not None),
        "curves": {key: [r.get(key) for r in rows] for key in CURVES if key in rows[0]},
        "hardware": hardware(args.device), "versions": versions(), "commit": commit(),
    }) + "\n")  # fmt: skip


def mean_scores(args: Any, job: RL, model: str, strategy: Any) -> dict[str, float]:
    """How often each held-out problem is solved."""
    with tempfile.TemporaryDirectory() as folder:
        generated: Any = job.task
        task = replace(generated, test_size=max(generated.test_size, args.first + args.limit))
        check = Evaluate(
            task, model, job.template, strategy, limit=args.first + args.limit, seed=args.seed, device=args.device,
            dtype="float32",
        )  # fmt: skip
        check(Path(folder) / "eval")
        order = {problem.id: i for i, problem in enumerate(task.test)}
        traces = [t for _, t in read_traces(Path(folder) / "eval") if order[t.problem.id] >= args.first]
    name = job.task.verifier.name
    return {t.problem.id: float(np.mean([(t.score(i, name) or 0) >= 1 for i in t.answers()])) for t in traces}


def compare_runs(folder: Path) -> dict[str, Any]:
    """One row for each way to run, all seeds together, against one process; docs/cluster_page.py shows them."""
    ways: dict[tuple[int, int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("ranks*.json")):
        row = json.loads(path.read_text())
        ways[row["ranks"], row["replicas"], row["staleness"]][row["seed"]] = row
    alone = ways.get((1, 0, 0), {})
    rows = []
    for (ranks, replicas, staleness), by_seed in sorted(ways.items()):
        seeds = sorted(by_seed.keys() & alone.keys())
        gaps = [[by_seed[s]["right"][p] - x for p, x in sorted(alone[s]["right"].items())] for s in seeds]
        gap = bootstrap_mean([x for group in gaps for x in group]) if gaps and by_seed is not alone else None
        over_seeds = clustered_mean(gaps) if gap is not None and len(seeds) > 1 else None
        curves = [by_seed[s].get("curves", {}) for s in sorted(by_seed)]
        late = {name: [late_mean([curve], key) for curve in curves] for name, key in LATE.items()}
        rows.append({
            "ranks": ranks, "replicas": replicas, "staleness": staleness, "seeds": sorted(by_seed),
            "before": [by_seed[s]["before"] for s in sorted(by_seed)],
            "accuracy": [by_seed[s]["accuracy"] for s in sorted(by_seed)],
            "difference": None if gap is None else [gap.mean, gap.low, gap.high],
            "difference_over_seeds": None if over_seeds is None else [over_seeds.low, over_seeds.high],
            **{name: None if None in values else values for name, values in late.items()},
            "commit": ", ".join(dict.fromkeys(by_seed[s]["commit"] for s in sorted(by_seed))),
            "oldest": max(r["oldest"] for r in by_seed.values()),
            "lost_or_doubled": sum(r["lost_or_doubled"] for r in by_seed.values()),
        })  # fmt: skip
    some = next(iter(next(iter(ways.values())).values()))
    shared = {name: some[name] for name in ("recipe", "steps", "hardware", "versions", "commit")}
    return {"rows": rows, "problems": len(some["right"]), **shared}


def compare_trials(folder: Path, first: int, limit: int) -> dict[str, Any]:
    """One row for each setting that was tried, against the runs in turn with the same first weights, on the held-out
    problems from `first` on: intervals over problems and seeds together, and over seeds (Student's)."""
    by_name: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("*-ranks*.json")):
        row = json.loads(path.read_text())
        row["right"] = {p: x for p, x in row["right"].items() if first <= int(p.rpartition("/")[2]) < first + limit}
        start = row["seed"] if row.get("start_seed") is None else row["start_seed"]
        by_name[path.name.partition("-ranks")[0]][start] = row
    base = by_name["s0"]
    rows = []
    for name, runs in by_name.items():
        seeds = sorted(runs.keys() & base.keys())
        gaps = [[runs[s]["right"][p] - x for p, x in base[s]["right"].items()] for s in seeds]
        curves = [runs[s]["curves"] for s in seeds]
        pooled = bootstrap_mean([gap for group in gaps for gap in group]) if name != "s0" else None
        over_seeds = clustered_mean(gaps) if name != "s0" and len(seeds) > 1 else None
        some = runs[seeds[0]]
        rows.append({
            "name": name, "seeds": seeds, "accuracy": [float(np.mean(list(runs[s]["right"].values()))) for s in seeds],
            "difference": None if pooled is None else [pooled.mean, pooled.low, pooled.high],
            "difference_over_seeds": None if over_seeds is None else [over_seeds.low, over_seeds.high],
            "age": late_mean(curves, "staleness/mean"), "ess": late_mean(curves, "rollout_correction/ess"),
            **{key: some.get(key) for key in TRIED},
        })  # fmt: skip
    some = next(iter(base.values()))
    shared = {name: some[name] for name in ("recipe", "steps", "hardware", "versions", "commit")}
    return {"rows": rows, "first": first, "problems": len(some["right"]), **shared}


def late_mean(curves: list[dict[str, list[float | None]]], key: str) -> float | None:
    """Over the steps after the first ten of all runs."""
    values = [x for curve in curves for x in curve.get(key, [])[10:] if x is not None]
    return float(np.mean(values)) if values else None


def parse_flags(given: list[str] | None = None) -> Any:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("part", choices=["start", "run", "table", "trials"])
    flags.add_argument("--recipe", choices=["countdown", "addition"], default="countdown")
    flags.add_argument("--out", type=Path, default=Path("kept"), help="folder of the JSON files")
    flags.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run directories, which all ranks see")
    flags.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--staleness", type=int, default=0)
    flags.add_argument("--replicas", type=int, default=0)
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--sft-steps", type=int, default=180, help="of `start`")
    flags.add_argument("--problems-per-step", type=int)
    flags.add_argument("--limit", type=int, default=300, help="held-out problems")
    flags.add_argument("--first", type=int, default=0, help="held-out problems before it are not counted")
    flags.add_argument("--batches-ahead", type=int, help="default: as few as keep the learner busy")
    flags.add_argument("--correction", choices=sorted(ROLLOUT_CORRECTIONS), help="default: that of the staleness")
    flags.add_argument("--cap", type=float, help="of the correction tis")
    flags.add_argument("--start-seed", type=int, help="of the first weights; default: the seed")
    flags.add_argument("--lr-factor", type=float, default=1.0, help="of the recipe's learning rate")
    flags.add_argument("--warmup-steps", type=int, default=0)
    flags.add_argument("--name", default="", help="how the names of the files begin, of settings that are tried")
    return flags.parse_args(given)


def main() -> None:
    args = parse_flags()
    if args.part == "table":
        print(json.dumps(compare_runs(args.out), indent=1))
    elif args.part == "trials":
        print(json.dumps(compare_trials(args.out, args.first, args.limit), indent=1))
    elif args.part == "start":
        fine_tune(args)
    else:
        train_once(args)


if __name__ == "__main__":
    main()
