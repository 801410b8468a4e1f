"""What the recipes gave: three seeds of each, run, kept as one line of JSON a run, and told as docs/results.md.

    python docs/results.py                                          show what is kept
    python docs/results.py --render                                 and write docs/results.md from it
    python docs/results.py --on tiny --jobs 2                       run what is not kept yet (two CPU cores)
    python docs/results.py --on smollm2 --jobs 6 --minutes 8        the same on one GPU, ending by itself
    python docs/results.py --on tiny --tried                        the settings that the recipes' own were chosen among

All recipes of a seed start from one model, which `recipes/cold_start.py` makes first. A run that is done is added at
once to docs/results/ON.jsonl, and its folder is removed.
"""

import argparse
import gc
import importlib
import json
import math
import multiprocessing
import os
import platform
import queue
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.cli import recipes
from ponder.cli.flags import call
from ponder.measure import paired_means, selection_curve
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rl import RL
from ponder.pipelines.stages import Stages, settled
from ponder.protocols import Silent
from ponder.runs import read_metrics, read_traces
from ponder.types import Cost, Trace

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results"
START = "cold_start"
RUNS = (  # each a command line: a recipe, and its flags where they are not its own
    START, "star", "rejection", "dpo_rounds", "grpo", "ppo", "distillation", "expert_iteration",
    "expert_iteration --by sampling", "verifiers", "r1", "tree_grpo", "rlhf",
)  # fmt: skip
ALONE = "dpo_rounds --nll 0 --beta 1 --lr 0.0001"  # as the paper has it; with the least harm of what was tried
MORE = {"tiny": (ALONE,), "smollm2": ()}
REHEARSAL = 100  # the seed that settings are chosen with, by accuracy on training problems
TRIED = {
    "tiny": (
        *(f"grpo --lr {lr}" for lr in (3e-5, 1e-4, 3e-4)),
        *(f"rejection --lr {lr}" for lr in (3e-4, 1e-3, 3e-3)),
        *(f"dpo_rounds --beta {b} --nll {nll} --lr {lr}" for b in (0.5, 1) for nll in (0, 1) for lr in (1e-4, 5e-4)),
        *(f"ppo --lr {lr}" for lr in (3e-5, 1e-4, 3e-4)),
        *(f"verifiers --lr {lr}" for lr in (3e-4, 1e-3, 3e-3)),
        *(f"star --lr {lr}" for lr in (1e-3, 3e-3)),
        *(f"expert_iteration --lr {lr}" for lr in (1e-3, 3e-3)),
        *(f"distillation --lr {lr}" for lr in (1e-3, 3e-3)),
    ),
    "smollm2": (
        *(f"{START} --steps {steps}" for steps in (15, 60)),
        *(f"grpo --lr {lr}" for lr in (1e-5, 3e-5, 6e-5)),
        *(f"dpo_rounds --beta {b} --nll {nll} --lr {lr}" for b in (0.1, 0.5) for nll in (0, 1) for lr in (1e-5, 3e-5)),
        *(f"rejection --lr {lr}" for lr in (1e-5, 2e-5, 5e-5)),
        *(f"ppo --lr {lr}" for lr in (1e-5, 3e-5)),
        *(f"verifiers --lr {lr}" for lr in (2e-5, 5e-5)),
        *(f"star --lr {lr}" for lr in (2e-5, 5e-5)),
        *(f"expert_iteration --lr {lr}" for lr in (2e-5,)),
        *(f"distillation --lr {lr}" for lr in (2e-5, 5e-5)),
    ),
}
N = (1, 2, 4, 8, 16, 32, 64)


# Run.


def run(name: str, on: str, model: str, seed: int, start: str, folder: Path) -> dict[str, Any]:
    """One run to its end, and what it gave."""
    began = time.time()
    title, *flags = name.split()
    recipe = recipes.load(recipes.shipped()[title])
    if seed == REHEARSAL:
        sys.modules["_bases"].rehearse()
    if title not in (START, "distillation"):
        flags += ["--start", start]
    job = call(recipe, [*flags, "--on", model, "--seed", str(seed)], "results")
    job(folder, Lean(job, folder))
    told = {
        "run": name, "on": on, "seed": seed, "command": command(name, on, seed), "seconds": round(time.time() - began),
        "machine": machine(), "stages": [*stages(job, folder)],
    }  # fmt: skip
    if "--start" in flags:  # made on this machine: another would have rounded otherwise
        told["start"] = outcomes(job.stages[-1].job, Path(start).with_name("start-accuracy"))
    if title == "verifiers":
        told["curves"] = curves(job, folder)
    return told


class Lean(Silent):
    """Keeps the weights of a stage that is done, but not what it would train on from: that is six times as much.

    And gives a GPU's memory back that nobody uses any more: there are others on it.
    """

    def __init__(self, job: Stages, folder: Path) -> None:
        self.names, self.folder = [s.name for s in job.stages], folder

    def phase(self, name: str) -> None:
        if name not in self.names:
            return
        release()
        for done in self.names[: self.names.index(name)]:
            for path in (self.folder / done).glob("checkpoints/*/learner.safetensors"):
                path.unlink()


def stages(job: Stages, folder: Path) -> Iterator[dict[str, Any]]:
    """What each stage cost and gave."""
    for stage in job.stages:
        at = folder / stage.name
        told: dict[str, Any] = {"stage": stage.name, "job": type(stage.job).__name__}
        if isinstance(stage.job, Collect | Label | RL | Evaluate):
            cost = spent(at)
            if isinstance(stage.job, Label):  # the answers that were labelled are on the bill of their own stage
                cost -= sum(spent(Path(place)) for place in settled(stage.job, folder).data)
            told["sampled"] = cost
        if (at / "checkpoints").is_dir():
            rows = read_metrics(at)
            told["trained"] = round(sum(row.get("num_trained_tokens", 0.0) for row in rows))
            told |= {
                k: round(v, 4) for k, v in rows[-1].items() if k in ("loss", "reward", "test/auroc", "test/accuracy")
            }
        if isinstance(stage.job, Evaluate):
            told |= outcomes(stage.job, at)
        yield told


def spent(folder: Path) -> int:
    """Tokens that were written."""
    return sum((trace.cost for _, trace in read_traces(folder)), Cost()).generated_tokens


def outcomes(job: Evaluate, folder: Path) -> dict[str, Any]:
    """Of each held-out problem how many samples are right; where the strategy chose one, whether that is."""
    name = job.task.verifier.name
    traces = sorted((trace for _, trace in read_traces(folder)), key=lambda t: t.problem.id)
    if any(trace.chosen is not None for trace in traces):
        return {"samples": 1, "right": [int(t.chosen is not None and t.score(t.chosen, name) == 1) for t in traces]}
    right = [[t.score(i, name) for i in t.answers()] for t in traces]
    if any(None in group for group in right) or len({len(group) for group in right}) > 1:
        raise SystemExit(f"{folder}: samples were lost or undecided, so that shares of right ones mislead")
    return {"samples": len(right[0]), "right": [int(sum(group)) for group in right]}


def curves(job: Stages, folder: Path) -> dict[str, list[float]]:
    """What each way to choose among N answers is worth, exactly, from the largest number of them."""
    by = {s.name.removeprefix("best-by-"): s.job for s in job.stages if s.name.startswith("best-by-")}
    told: dict[str, list[float]] = {}
    for guide, best in by.items():
        verifier, traces = best.task.verifier, [t for _, t in read_traces(folder / f"best-by-{guide}")]
        right = [every(t, verifier.name) for t in traces]
        said = [[verifier.read(t.text(i)) for i in t.answers()] for t in traces]
        k = [n for n in N if n <= len(right[0])]
        scores = [every(t, guide) for t in traces]
        own = [[*map(str, range(len(r)))] for r in right]  # the best one is chosen itself, whatever others say
        told[guide] = worth(selection_curve("best", own, right, k, scores, how="exact").mean)
        if guide == "orm":  # the same samples tell what needs no model
            told["majority"] = worth(selection_curve("majority", said, right, k, how="exact").mean)
            told["oracle"] = worth(selection_curve("best", own, right, k, right, how="exact").mean)
    return told


def every(trace: Trace, scorer: str) -> list[float | None]:
    return [trace.score(i, scorer) for i in trace.answers()]


def worth(mean: Any) -> list[float]:
    return [round(float(x), 5) for x in mean]


def command(name: str, on: str, seed: int) -> str:
    recipe, *more = name.split()
    return " ".join(["ponder run", recipe, f"--on {on}", *more, f"--seed {seed}"])


def machine() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = next((line.partition(":")[2].strip() for line in about if line.startswith("model name")), "")
    return f"one core, {named or platform.machine()}"


def release() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def worker(tasks: Any, done: Any, jobs: int) -> None:
    """Runs until there is nothing more; an error is told, and the next run begins."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.95 / jobs)
    while (task := tasks.get()) is not None:
        try:
            done.put((task, run(*task), ""))
        except BaseException:
            done.put((task, None, traceback.format_exc()))
        release()


def run_all(on: str, model: str, seeds: Sequence[int], names: Sequence[str], file: Path, runs: Path, jobs: int,
            until: float) -> None:  # fmt: skip
    """All that is not kept yet, the starts first, so many at once. What is done when time is up stays."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    os.environ.setdefault("PONDER_CACHE_GIB", "2")  # of its own, an engine takes a quarter of a GPU that is shared here
    kept = {(row["run"], row["seed"]) for row in read(file)}
    context = multiprocessing.get_context("spawn")
    tasks, done = context.Queue(), context.Queue()
    workers = [context.Process(target=worker, args=(tasks, done, jobs), daemon=True) for _ in range(jobs)]
    for process in workers:
        process.start()
    try:
        for part in ([START], [n for n in names if n != START]):  # the others begin with what it makes
            left = []
            for name in part:
                for seed in seeds:
                    folder, start = runs / f"{name.replace(' ', '_')}-{seed}", runs / f"{START}-{seed}" / "start"
                    if (name, seed) not in kept or (name == START and not start.is_dir()):
                        shutil.rmtree(folder, ignore_errors=True)
                        left.append((name, on, model, seed, str(start), folder))
            for task in left:
                tasks.put(task)
            for _ in left:
                task, row, why = next_of(done, workers, until)
                say = f"{time.strftime('%H:%M:%S')} {task[0]} seed {task[3]}"
                if row is None:
                    print(f"{say}: FAILED\n{why}", flush=True)
                    continue
                print(f"{say}: {row['seconds']} s; {'; '.join(brief(row))}", flush=True)
                if (row["run"], row["seed"]) not in kept:
                    with file.open("a") as kept_rows:
                        kept_rows.write(json.dumps(row, separators=(",", ":")) + "\n")
                if task[0] != START:
                    shutil.rmtree(task[5], ignore_errors=True)
    except TimeoutError as why_now:
        print(f"{why_now}: the same command runs what is left", flush=True)
    finally:
        for process in workers:
            process.terminate()


def next_of(done: Any, workers: Sequence[Any], until: float) -> Any:
    """The next run that ends, unless time does before, or a process that had one."""
    while True:
        try:
            return done.get(timeout=2)
        except queue.Empty:
            if time.time() > until:
                raise TimeoutError("time is up") from None
            if not all(process.is_alive() for process in workers):
                raise TimeoutError("a process died") from None


def brief(row: dict[str, Any]) -> list[str]:
    return [f"{s['stage']} {100 * share(s):.1f} %" for s in row["stages"] if "right" in s]


# Tell.


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def share(stage: dict[str, Any]) -> float:
    return sum(stage["right"]) / len(stage["right"]) / stage["samples"]


Rows = dict[tuple[str, int], dict[str, Any]]  # by run and seed
Cells = list[list[str]]
BASES = {
    "tiny": "A transformer from scratch, on a CPU",
    "smollm2": "SmolLM2-135M-Instruct, on one GPU",
}
METHODS = (  # a row: what it is called, its run, the stage it is measured at, and what it is to improve on
    ("STaR, round 1", "star", "accuracy-1", ""),
    ("STaR, round 2", "star", "accuracy-2", ""),
    ("rejection sampling (RFT)", "rejection", "accuracy", ""),
    ("DPO, round 1", "dpo_rounds", "accuracy-1", ""),
    ("DPO, round 2", "dpo_rounds", "accuracy-2", ""),
    ("DPO without imitation, round 1", ALONE, "accuracy-1", ""),
    ("DPO without imitation, round 2", ALONE, "accuracy-2", ""),
    ("GRPO", "grpo", "accuracy", ""),
    ("GRPO on trees", "tree_grpo", "accuracy", ""),
    ("PPO", "ppo", "accuracy", ""),
    ("RLHF (PPO on a learned reward)", "rlhf", "accuracy", ""),
    ("distillation by traces", "distillation", "by-traces-accuracy", "student-accuracy"),
    ("distillation by logits", "distillation", "by-logits-accuracy", "student-accuracy"),
)
R1 = (
    ("reasoning RL", "reasoning-rl-accuracy", ""),
    ("SFT from the start on verified and plain answers", "sft-accuracy", ""),
    ("RL for all scenarios", "all-rl-accuracy", "sft-accuracy"),
    ("student, after distillation", "student-accuracy", "small-accuracy"),
)
SAMPLED, BY_SEARCH = "expert_iteration --by sampling", "expert_iteration"


def found(rows: Rows, name: str, stage: str, seed: int) -> dict[str, Any]:
    """A stage of a run; without a name, what the run started from."""
    if not stage:
        return rows[name, seed].get("start") or found(rows, START, "start-accuracy", seed)
    return next(s for s in rows[name, seed]["stages"] if s["stage"] == stage)


def seeds_of(rows: Rows, *names: str) -> list[int]:
    """The seeds that all of these runs have."""
    every_seed = sorted({seed for _, seed in rows})
    return [seed for seed in every_seed if all((name, seed) in rows for name in names)]


def accuracy(stages: Sequence[dict[str, Any]]) -> str:
    """Of several seeds: the mean, with each."""
    each = [100 * share(s) for s in stages]
    return f"{np.mean(each):.1f} % ({', '.join(f'{x:.1f}' for x in each)})"


def change(after: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> list[str]:
    """In points, with an interval over seeds and one over problems, and whether both are above 0."""
    each = [100 * (share(a) - share(b)) for a, b in zip(after, before, strict=True)]
    low, high = over_seeds(each)
    same = paired_means(per_problem(after), per_problem(before))
    holds = "yes" if min(low, 100 * same.low) > 0 else "every seed" if min(each) > 0 else "**no**"
    return [
        f"{np.mean(each):+.1f} ({', '.join(f'{x:+.1f}' for x in each)})", within(low, high),
        within(100 * same.low, 100 * same.high), holds,
    ]  # fmt: skip


def within(low: float, high: float) -> str:
    return f"[{low:+.1f}, {high:+.1f}]" if math.isfinite(low) else "one seed"


def per_problem(stages: Sequence[dict[str, Any]]) -> list[list[float | None]]:
    return [[right / s["samples"] for right, s in zip(group, stages, strict=True)]
            for group in zip(*(s["right"] for s in stages), strict=True)]  # fmt: skip


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval: with three seeds it is 2.5 standard deviations wide on each side."""
    if len(values) < 2:
        return -math.inf, math.inf
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def tokens(rows: Rows, name: str, upto: str, seeds: Sequence[int], what: str) -> str:
    """Sampled to learn from, or trained on, until a stage: without what it began with, and what only measures.

    Mean over seeds.
    """
    aside = {"start", "teacher", "small"} | ({"student"} if name == "distillation" else set())
    aside |= {"by-traces"} if upto.startswith("by-logits") else set()
    totals = []
    for seed in seeds:
        names = [stage["stage"] for stage in rows[name, seed]["stages"]]
        past = rows[name, seed]["stages"][: names.index(upto)]
        used = [s for s in past if s["job"] != "Evaluate" and s["stage"] not in aside and "value" not in s["stage"]]
        totals.append(sum(stage.get(what, 0) for stage in used))
    return f"{np.mean(totals) / 1000:.0f} k"


def table(head: Sequence[str], cells: Cells) -> list[str]:
    return (
        [] if not cells else ["", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *cells]), ""]
    )


def methods(rows: Rows) -> list[str]:
    cells = []
    for title, name, stage, before in METHODS:
        if seeds := seeds_of(rows, START, name):
            after = [found(rows, name, stage, seed) for seed in seeds]
            first = [found(rows, name, before, s) for s in seeds]
            spent_on = [tokens(rows, name, stage, seeds, what) for what in ("sampled", "trained")]
            cells.append([title, accuracy(first), accuracy(after), *change(after, first), *spent_on])
    head = [
        "method",
        "start (each seed)",
        "after",
        "change, points",
        "95 % over seeds",
        "95 % over problems",
        "better?",
    ]
    return table([*head, "tokens sampled", "trained"], cells)


def iteration(rows: Rows) -> list[str]:
    cells = []
    for title, name in (("search (MCTS)", BY_SEARCH), ("sampling", SAMPLED)):
        if seeds := seeds_of(rows, START, name):
            past = [found(rows, name, "", s) for s in seeds]
            for k in (1, 2):
                after = [found(rows, name, f"accuracy-{k}", s) for s in seeds]
                spent_on = [tokens(rows, name, f"accuracy-{k}", seeds, what) for what in ("sampled", "trained")]
                cells.append([f"{title}, round {k}", accuracy(past), accuracy(after), *change(after, past), *spent_on])
                past = after
    if seeds := seeds_of(rows, BY_SEARCH, SAMPLED):
        for k in (1, 2):
            after, other = ([found(rows, n, f"accuracy-{k}", s) for s in seeds] for n in (BY_SEARCH, SAMPLED))
            cells.append(
                [f"search less sampling, round {k}", accuracy(other), accuracy(after), *change(after, other), "", ""]
            )
    head = ["expert", "before", "after", "change, points", "95 % over seeds", "95 % over problems", "better?"]
    return table([*head, "tokens sampled", "trained"], cells)


def r1(rows: Rows) -> list[str]:
    if not (seeds := seeds_of(rows, START, "r1")):
        return []
    start = [found(rows, "r1", "", s) for s in seeds]
    cells = [["cold start", "", accuracy(start), "", "", "", "", "", ""]]
    for title, stage, before in R1:
        after = [found(rows, "r1", stage, s) for s in seeds]
        first = [found(rows, "r1", before, s) for s in seeds] if before else start
        spent_on = [tokens(rows, "r1", stage, seeds, what) for what in ("sampled", "trained")]
        cells.append([title, accuracy(first), accuracy(after), *change(after, first), *spent_on])
    head = ["stage", "before", "after", "change, points", "95 % over seeds", "95 % over problems", "better?"]
    return table([*head, "sampled so far", "trained so far"], cells)


def verifiers(rows: Rows) -> list[str]:
    if not (seeds := seeds_of(rows, "verifiers")):
        return []
    curve = {
        way: np.array([rows["verifiers", s]["curves"][way] for s in seeds])
        for way in ("majority", "orm", "prm", "oracle")
    }
    cells = []
    for i, n in enumerate(N[: curve["orm"].shape[1]]):
        row = [str(n)]
        for way in curve.values():
            row.append(f"{100 * way[:, i].mean():.1f} ({', '.join(f'{100 * x:.1f}' for x in way[:, i])})")
        for one, other in (("orm", "majority"), ("prm", "majority"), ("prm", "orm")):
            gap = 100 * (curve[one] - curve[other])[:, i]
            row.append(f"{gap.mean():+.1f} {within(*over_seeds([*gap]))}")
        cells.append(row)
    made = [tokens_of(rows, seeds, "outcomes"), tokens_of(rows, seeds, "sample", "label")]
    note = f"Tokens sampled to learn from: the outcome model {made[0]}, the process model {made[1]}."
    if curve["orm"][:, -1].mean() < curve["orm"][:, 0].mean():
        note += (
            " With more answers to choose from, a judge does worse than one sample: it is over-optimised. On the tiny"
            " model its favourites share a final answer that is often right, whatever the sum (looked at by hand, one"
            " seed): at this size it learns which answers are likely, not to check them."
        )
    head = ["N", "majority, % (each seed)", "best by ORM", "best by PRM", "oracle"]
    return [*table([*head, "ORM less majority", "PRM less majority", "PRM less ORM"], cells), note]


def tokens_of(rows: Rows, seeds: Sequence[int], *stages: str) -> str:
    total = sum(found(rows, "verifiers", stage, seed)["sampled"] for stage in stages for seed in seeds)
    return f"{total / len(seeds) / 1000:.0f} k"


def guided(rows: Rows) -> list[str]:
    if not (seeds := seeds_of(rows, BY_SEARCH)):
        return []
    each = [[found(rows, BY_SEARCH, f"search-accuracy-{k}", s) for s in seeds] for k in (1, 2)]
    said = "; ".join(f"after round {k} {accuracy(stage)}" for k, stage in enumerate(each, 1))
    return [f"With search at test time too, guided by the value model, on {len(each[0][0]['right'])} problems: {said}."]


PARTS: tuple[tuple[str, Callable[[Rows], list[str]]], ...] = (
    ("Each method against its start", methods),
    ("Expert iteration: the second round against the first, and search against sampling", iteration),
    ("", guided),
    ("The R1 pipeline, stage by stage", r1),
    ("Which judge picks best of N", verifiers),
)


def tried(on: str) -> list[str]:
    """What settings were chosen among."""
    cells = []
    for row in read(KEPT / f"{on}-tried.jsonl"):
        curve = row.get("curves", {})
        said = [f"{way} of {N[len(c) - 1]}: {100 * c[-1]:.1f}" for way, c in curve.items()] if curve else brief(row)
        cells.append([f"`{row['run']}`", "; ".join(said).replace(" %", "")])
    return table(["settings", "right answers, %"], cells)


ABOUT = """\
# Results

Written by `python docs/results.py --render` from the runs kept in [results](results); no number here is typed by hand.

Each model adds numbers line by line, and each recipe of a seed starts from the same model: a short imitation of worked
answers, broken off early ([cold_start.py](../recipes/cold_start.py)). **Accuracy** is the share of right answers at
temperature 1 on held-out problems; in brackets each seed. **Over seeds**: Student's 95 % interval of the mean change;
three seeds make it wide. **Over problems**: the same for other problems of this kind, paired, with the seeds as they
are. **Better**: "yes" where both lie above 0, "every seed" where only each seed's own change does.

**Equal compute**: each method may sample the same number of answers to learn from (distillation as many of the
teacher's; an expert that searches has about as many tokens). Tokens sampled and trained are means over seeds, without
the start and without measuring."""


CHOSEN = f"""\
Each once, with seed {REHEARSAL}, measured on training problems where nothing else is said. From these the defaults of
the recipes were chosen; the seeds above were then run once with them, and no run was left out."""


def about(on: str, rows: Rows) -> str:
    recipes.reach(recipes.folders())
    base = importlib.import_module("_bases").base(on)
    first = next(s for row in rows.values() for s in row["stages"] if "right" in s)
    asked = base.task.test[0]
    question, worked = (repr(text).strip("'") for text in (asked.question, base.task.gold(asked)))
    told = (
        f"`{question}` is to be answered by `{worked}`. Measured on {len(first['right'])} problems, {first['samples']}"
    )
    return f"{told} samples of each; {base.answers:,} answers to learn from."


def page() -> str:
    out = [ABOUT]
    for on, title in BASES.items():
        rows = {(row["run"], row["seed"]): row for row in read(KEPT / f"{on}.jsonl")}
        if not rows:
            continue
        took = sum(row["seconds"] for row in rows.values()) / 60
        machines = "; ".join(dict.fromkeys(row["machine"] for row in rows.values()))
        seeds = ", ".join(map(str, sorted({seed for _, seed in rows})))
        out += [
            "",
            f"## {title}",
            "",
            f"{about(on, rows)} Seeds {seeds}, on {machines}; {took:.0f} minutes in all.",
        ]
        for part, told in PARTS:
            lines = told(rows)
            out += ["", f"### {part}"] if part and lines else []
            out += lines
        names = dict.fromkeys(name for name, _ in rows)
        out += ["", "### Commands", "", "Of seed 0; likewise with `--seed 1` and `--seed 2`. All at once:", ""]
        out += ["```", f"python docs/results.py --on {on}", *(command(name, on, 0) for name in names), "```"]
        if settings := tried(on):
            out += ["", "### Settings that were tried", "", CHOSEN, *settings]
    notes = KEPT / "notes.md"
    return "\n".join([*out, *(["", notes.read_text().strip()] if notes.exists() else [])]) + "\n"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=[*BASES], help="run the recipes on this model")
    parser.add_argument("--model", help="a folder with the model, where it is not found by name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", choices=[*RUNS, ALONE], help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then what is done has to do")
    parser.add_argument("--out", type=Path, default=KEPT, help="where what is done is kept")
    parser.add_argument("--work", type=Path, help="where runs lie while they last; a fast disk, or memory")
    parser.add_argument("--tried", action="store_true", help="run the settings to choose among, not the three seeds")
    parser.add_argument("--render", action="store_true", help="write docs/results.md")
    given = parser.parse_args(argv)
    if given.on:
        given.out.mkdir(parents=True, exist_ok=True)
        seeds, names, file = given.seeds, given.runs or (*RUNS, *MORE[given.on]), given.out / f"{given.on}.jsonl"
        if given.tried:
            seeds, names, file = [REHEARSAL], TRIED[given.on], given.out / f"{given.on}-tried.jsonl"
        elif REHEARSAL in seeds:
            parser.error(f"seed {REHEARSAL} is for choosing settings (--tried)")
        with tempfile.TemporaryDirectory(dir=given.work) as work:
            until = time.time() + 60 * given.minutes
            run_all(given.on, given.model or given.on, seeds, names, file, Path(work), given.jobs, until)
    text = page()
    if given.render:
        (HERE / "results.md").write_text(text)
    elif not given.on:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
