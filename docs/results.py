"""What the recipes gave: three seeds of each, run, kept as one line of JSON a run, and told as docs/results.md.

    python docs/results.py                                          show what is kept
    python docs/results.py --render                                 and write docs/results.md from it
    python docs/results.py --on tiny --jobs 2                       run what is not kept yet (two CPU cores)
    python docs/results.py --on smollm2 --jobs 6 --minutes 8        the same on one GPU, ending by itself
    python docs/results.py --on tiny --tried                        the settings that the recipes' own were chosen among
    python docs/results.py --on tiny --agents --tried               likewise, of agents alone; without --tried, the best

All recipes of a seed start from one model, which `recipes/cold_start.py` makes first. A run that is done is added at
once to docs/results/ON.jsonl, and its folder is removed.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import platform
import queue
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from results_agents import AGENT_RUNS, AGENTS_TRIED, best_tried
from results_page import (
    ALONE,
    BASES,
    IMPLICIT_R1,
    IMPLICIT_RLHF,
    KEPT,
    LONGER_R1,
    REHEARSAL,
    START,
    SUPERVISED,
    N,
    brief,
    command,
    page,
    read,
    share,
)

from ponder.cli import recipe_files
from ponder.cli.flags import run_command
from ponder.measure import auroc, auroc_within_problems, selection_curve
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.rl import RL
from ponder.pipelines.stages import Stages, resolve_stage_references
from ponder.protocols import NoProgress
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.reason.operators.vote import stated_answers
from ponder.runs import read_metrics, read_traces
from ponder.types import Cost, Trace

RUNS = (  # each a command line: a recipe, and its flags where they are not its own
    START, "star", "rejection", "dpo_rounds", "grpo", "ppo", "distillation", "expert_iteration",
    "expert_iteration --by sampling", "expert_iteration --by value", "verifiers", "r1", "tree_grpo", "rlhf",
    "rlhf --kl 0.02", IMPLICIT_RLHF, IMPLICIT_R1, LONGER_R1, SUPERVISED,
)  # fmt: skip
KEPT_METRICS = ("loss", "reward", "frac_reward_zero_std", "test/auroc", "test/auroc_within", "test/accuracy")
OWN_START = (START, "distillation", "trace_supervision", "agent", "calculator")  # these make their own start
MORE = {"tiny": (ALONE, *AGENT_RUNS["tiny"]), "smollm2": AGENT_RUNS["smollm2"]}
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
        *(f"rlhf --kl {kl}" for kl in (0.3, 1)),
        *AGENTS_TRIED["tiny"],
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
        *AGENTS_TRIED["smollm2"],
    ),
}


def run(name: str, on: str, model: str, seed: int, start: str, folder: Path) -> dict[str, Any]:
    """One run to its end, and what it gave."""
    began = time.time()
    title, *flags = name.split()
    recipe = recipe_files.load_recipe(recipe_files.shipped_recipes()[title])
    if seed >= REHEARSAL:
        sys.modules["_bases"].measure_on_training_problems()
    if title not in OWN_START:
        flags += ["--start", start]
    job = run_command(recipe, [*flags, "--model", model, "--seed", str(seed)], "results")
    job(folder, Released(job))
    output = {
        "run": name, "on": on, "seed": seed, "command": command(name, on, seed), "seconds": round(time.time() - began),
        "machine": machine(), "stages": [*stages(job, folder)],
    }  # fmt: skip
    if "--start" in flags:  # made on this machine: another would have rounded otherwise
        output["start"] = outcomes(job.stages[-1].job, Path(start).with_name("start-accuracy"))
    if title == "verifiers":
        output |= judged(job, folder)
    return output


class Released(NoProgress):
    """Gives a GPU's memory back that nobody uses any more before each stage: there are others on it."""

    def __init__(self, job: Stages) -> None:
        self.names = [s.name for s in job.stages]

    def phase(self, name: str) -> None:
        if name in self.names:
            release()


def stages(job: Stages, folder: Path) -> Iterator[dict[str, Any]]:
    """What each stage cost and gave."""
    for stage in job.stages:
        at = folder / stage.name
        output: dict[str, Any] = {"stage": stage.name, "job": type(stage.job).__name__}
        if isinstance(stage.job, Collect | Label | RL | Evaluate):
            cost = spent(at)
            if isinstance(stage.job, Label):  # the answers that were labelled are on the bill of their own stage
                cost -= sum(spent(Path(place)) for place in resolve_stage_references(stage.job, folder).data)
            output["sampled"] = cost
        if (at / "checkpoints").is_dir():
            rows = read_metrics(at)
            output["trained"] = round(sum(row.get("num_trained_tokens", 0.0) for row in rows))
            output |= {k: round(v, 4) for k, v in rows[-1].items() if k in KEPT_METRICS}
        if isinstance(stage.job, Evaluate):
            output |= outcomes(stage.job, at)
        yield output


def spent(folder: Path) -> int:
    """Tokens that were written."""
    return sum((trace.cost for _, trace in read_traces(folder)), Cost()).generated_tokens


def outcomes(job: Evaluate, folder: Path) -> dict[str, Any]:
    """Of each held-out problem how many samples are right, or the sum of their rewards; where the strategy chose one,
    whether that is right."""
    name = job.task.verifier.name
    traces = sorted((trace for _, trace in read_traces(folder)), key=lambda t: t.problem.id)
    if any(trace.chosen is not None for trace in traces):
        return {"samples": 1, "right": [int(t.chosen is not None and t.score(t.chosen, name) == 1) for t in traces]}
    right = [[t.score(i, name) for i in t.answers()] for t in traces]
    if any(None in group for group in right) or len({len(group) for group in right}) > 1:
        raise SystemExit(f"{folder}: samples were lost or undecided, so that shares of right ones mislead")
    sums = [round(sum(group), 4) for group in right]
    return {"samples": len(right[0]), "right": [int(x) if x == int(x) else x for x in sums]}


def judged(job: Stages, folder: Path) -> dict[str, Any]:
    """What each way to choose among N answers is worth, exactly, from the largest number of them; and how well each
    score tells right answers from wrong ones, over all answers and within problems."""
    worths: dict[str, list[float]] = {}
    areas: dict[str, dict[str, float]] = {}
    for stage in job.stages:
        guide = stage.name.removeprefix("best-by-")
        if guide == stage.name:
            continue
        verifier, traces = stage.job.task.verifier, [t for _, t in read_traces(folder / stage.name)]
        right = [every(t, verifier.name) for t in traces]
        text = [[verifier.extract_answer(t.text(i)) for i in t.answers()] for t in traces]
        k = [n for n in N if n <= len(right[0])]
        own = [chosen_among(t) for t in text]  # the best one is chosen itself, whatever others say
        scores = {guide: [every(t, guide) for t in traces]}
        if guide == "orm":  # the same samples tell what needs no model
            for name, measure in (("logprob_sum", sum_logprob), ("logprob", mean_logprob)):
                scores[name] = [[measure(t, i) for i in t.answers()] for t in traces]
            worths["majority"] = worth(selection_curve("majority", text, right, k, how="exact").mean)
            worths["oracle"] = worth(selection_curve("best", own, right, k, right, how="exact").mean)
        for name, score in scores.items():
            worths[name] = worth(selection_curve("best", own, right, k, score, how="exact").mean)
            areas[name] = tells_apart(score, right)
    return {"curves": worths, "auroc": areas}


def tells_apart(scores: Sequence[Sequence[float | None]], right: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """The chance that a right answer scores above a wrong one, of any two, and of two to one problem."""
    flat_scores, flat_right = ([x for group in groups for x in group] for groups in (scores, right))
    problems = [p for p, group in enumerate(right) for _ in group]
    within = auroc_within_problems(flat_scores, flat_right, problems, resamples=2).area  # the area alone is kept
    return {"pooled": round(auroc(flat_scores, flat_right).area, 4), "within problems": round(within, 4)}


def chosen_among(answers: Sequence[str | None]) -> list[str | None]:
    """Each answer by its place; one that states nothing is not chosen."""
    able = set(stated_answers(answers))
    return [str(i) if i in able else None for i in range(len(answers))]


def every(trace: Trace, scorer: str) -> list[float | None]:
    return [trace.score(i, scorer) for i in trace.answers()]


def worth(mean: Any) -> list[float]:
    return [round(float(x), 5) for x in mean]


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

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.95 / jobs)
    while (task := tasks.get()) is not None:
        try:
            done.put((task, run(*task), ""))
        except BaseException:
            done.put((task, None, traceback.format_exc()))
        release()


def end_with(parent: int) -> None:
    """Nobody hears of what goes on after it was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


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
        others = [n for n in names if n != START]  # they begin with what it makes
        wanted = START in names or any(name.split()[0] not in OWN_START for name in others)
        for part in ([START] if wanted else [], others):
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


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=[*BASES], help="run the recipes on this model")
    parser.add_argument("--model", help="a folder with the model, where it is not found by name")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", choices=[*RUNS, *dict.fromkeys(sum(MORE.values(), ()))], help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then what is done has to do")
    parser.add_argument("--out", type=Path, default=KEPT, help="where what is done is kept")
    parser.add_argument("--work", type=Path, help="where runs lie while they last; a fast disk, or memory")
    parser.add_argument("--tried", action="store_true", help="run the settings to choose among, not the three seeds")
    parser.add_argument("--agents", action="store_true", help="only agents, with the best of the settings tried")
    parser.add_argument("--render", action="store_true", help="write docs/results.md")
    given = parser.parse_args(argv)
    if given.on:
        given.out.mkdir(parents=True, exist_ok=True)
        seeds, names, file = given.seeds, given.runs or (*RUNS, *MORE[given.on]), given.out / f"{given.on}.jsonl"
        tried = given.out / f"{given.on}-tried.jsonl"
        if given.tried:
            names = AGENTS_TRIED[given.on] if given.agents else TRIED[given.on]
            seeds, file = [seed for seed in seeds if seed >= REHEARSAL] or [REHEARSAL], tried
        elif max(seeds) >= REHEARSAL:
            parser.error(f"seeds from {REHEARSAL} on are for choosing settings (--tried)")
        elif given.agents:
            names = best_tried(read(tried), given.runs or AGENT_RUNS[given.on], share)
        with tempfile.TemporaryDirectory(dir=given.work) as work:
            until = time.time() + 60 * given.minutes
            run_all(given.on, given.model or given.on, seeds, names, file, Path(work), given.jobs, until)
    text = page()
    if given.render:
        KEPT.with_suffix(".md").write_text(text)
    elif not given.on:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
