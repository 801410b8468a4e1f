"""docs/results.md, written from the runs that results.py keeps: each number is worked out from its lines of JSON."""

import importlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from results_agents import ABOUT_AGENTS, ABOUT_CALCULATOR, AGENT_ROWS, CALCULATOR

from ponder.book.figure import SHARE, format_interval
from ponder.cli import recipe_files
from ponder.measure import paired_means

KEPT = Path(__file__).resolve().parent / "results"
START = "cold_start"
ALONE = "dpo_rounds --nll 0 --beta 1 --lr 0.0001"  # as the paper has it; with the least harm of what was tried
SUPERVISED = "trace_supervision --problems 384 --limit 100"  # its texts are long
REHEARSAL = 100  # from this seed on settings are chosen, by accuracy on training problems
N = (1, 2, 4, 8, 16, 32, 64)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def brief(row: dict[str, Any]) -> list[str]:
    return [f"{s['stage']} {100 * share(s):.1f} %" for s in row["stages"] if "right" in s]


def command(name: str, on: str, seed: int) -> str:
    recipe, *more = name.split()
    return " ".join(["ponder run", recipe, f"--model {on}", *more, f"--seed {seed}"])


def share(stage: dict[str, Any]) -> float:
    return sum(stage["right"]) / len(stage["right"]) / stage["samples"]


Rows = dict[tuple[str, int], dict[str, Any]]  # by run and seed
Cells = list[list[str]]
BASES = {
    "tiny": "A transformer from scratch, on a CPU",
    "smollm2": "SmolLM2-135M-Instruct, on one GPU",
}
IMPLICIT_RLHF, IMPLICIT_R1 = "rlhf --judge implicit", "r1 --judge implicit"
LONGER_R1 = f"{IMPLICIT_R1} --all-rl-steps 64"  # as many as of reasoning RL
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
    ("RLHF with InstructGPT's KL (0.02)", "rlhf --kl 0.02", "accuracy", ""),
    ("RLHF on an implicit reward model", IMPLICIT_RLHF, "accuracy", ""),
    ("trace-based supervision (operators)", SUPERVISED, "accuracy", "start-accuracy"),
    ("right chains of the same searches", SUPERVISED, "chains-accuracy", "start-accuracy"),
    ("distillation by traces", "distillation", "by-traces-accuracy", "student-accuracy"),
    ("distillation by logits", "distillation", "by-logits-accuracy", "student-accuracy"),
)
R1 = (
    ("reasoning RL", "reasoning-rl-accuracy", ""),
    ("SFT from the start on verified and plain answers", "sft-accuracy", ""),
    ("RL for all scenarios", "all-rl-accuracy", "sft-accuracy"),
    ("student, by answers", "student-accuracy", "small-accuracy"),
    ("student, by logits", "student-by-logits-accuracy", "small-accuracy"),
)
SAMPLED, BY_SEARCH = "expert_iteration --by sampling", "expert_iteration"
BY_VALUE = "expert_iteration --by value"


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
    rose = "every seed" if len(each) > 1 else "in its one seed"
    holds = "yes" if min(low, 100 * same.low) > 0 else rose if min(each) > 0 else "**no**"
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
    aside |= {"tune"} if upto.startswith("chains") else set()
    aside |= {"student"} if upto.startswith("student-by-logits") else set()
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
    kinds = ("search (MCTS)", BY_SEARCH), ("search, its value model for rollouts", BY_VALUE), ("sampling", SAMPLED)
    for title, name in kinds:
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


def r1(rows: Rows, name: str = "r1") -> list[str]:
    if not (seeds := seeds_of(rows, START, name)):
        return []
    start = [found(rows, name, "", s) for s in seeds]
    cells = [["cold start", "", accuracy(start), "", "", "", "", "", ""]]
    stages = set.intersection(*({s["stage"] for s in rows[name, seed]["stages"]} for seed in seeds))
    for title, stage, before in R1:
        if stage not in stages:  # of some runs only what comes before the students
            continue
        after = [found(rows, name, stage, s) for s in seeds]
        first = [found(rows, name, before, s) for s in seeds] if before else start
        spent_on = [tokens(rows, name, stage, seeds, what) for what in ("sampled", "trained")]
        cells.append([title, accuracy(first), accuracy(after), *change(after, first), *spent_on])
    head = ["stage", "before", "after", "change, points", "95 % over seeds", "95 % over problems", "better?"]
    return table([*head, "sampled so far", "trained so far"], cells)


def verifiers(rows: Rows) -> list[str]:
    if not (seeds := seeds_of(rows, "verifiers")):
        return []
    ways = [w for w in ("majority", "orm", "prm", *LIKELIEST, "oracle") if all(w in c for c in _curves(rows, seeds))]
    curve = {way: np.array([own[way] for own in _curves(rows, seeds)]) for way in ways}
    compared = [pair for pair in COMPARED_JUDGES if {*pair} <= curve.keys()]
    cells = []
    for i, n in enumerate(N[: curve["orm"].shape[1]]):
        row = [str(n)]
        for way in curve.values():
            row.append(f"{100 * way[:, i].mean():.1f} ({', '.join(f'{100 * x:.1f}' for x in way[:, i])})")
        for one, other in compared:
            gap = 100 * (curve[one] - curve[other])[:, i]
            row.append(f"{gap.mean():+.1f} {within(*over_seeds([*gap]))}")
        cells.append(row)
    made = [tokens_of(rows, seeds, "outcomes"), tokens_of(rows, seeds, "sample", "label")]
    note = f"Tokens sampled to learn from: the outcome model {made[0]}, the process model {made[1]}."
    if curve["orm"][:, -1].mean() < curve["orm"][:, 0].mean():
        note += " With more answers to choose from, these judges do worse than one sample."
    head = [
        "N",
        *(JUDGE_TITLES[way] for way in ways),
        *(f"{SHORT[one]} less {SHORT[other]}" for one, other in compared),
    ]
    return [*table(head, cells), note, *auroc_of_judges(rows, seeds)]


def auroc_of_judges(rows: Rows, seeds: Sequence[int]) -> list[str]:
    """How well each judge tells right answers from wrong ones, where it was measured."""
    areas = [rows["verifiers", seed].get("auroc", {}) for seed in seeds]
    if not all(areas):
        return [
            "",
            "These runs are from before the best by log-probability and the AUROC within problems were measured, so"
            " both are missing here. The book has both of other runs ([judges](book/judges.md)).",
        ]
    cells = []
    for judge in (way for way in SHORT if way in areas[0]):
        each = ([own[judge][kind] for own in areas] for kind in ("pooled", "within problems"))
        row = [SHORT[judge], *(format_interval(values, 1, 3, bounds=SHARE) for values in each)]
        cells.append(row)
    about = (
        "AUROC: the chance that a right answer scores above a wrong one, over all answers and within problems, with its"
        " 95 % interval over seeds (Student's, of arcsin sqrt). Best of N chooses within a problem. The book"
        " ([which judge picks best of N](book/judges.md)) has further judges, implicit reward models among them."
    )
    return ["", about, *table(["judge", "pooled", "within problems"], cells)]


def _curves(rows: Rows, seeds: Sequence[int]) -> list[dict[str, list[float]]]:
    return [rows["verifiers", seed]["curves"] for seed in seeds]


def tokens_of(rows: Rows, seeds: Sequence[int], *stages: str) -> str:
    total = sum(found(rows, "verifiers", stage, seed)["sampled"] for stage in stages for seed in seeds)
    return f"{total / len(seeds) / 1000:.0f} k"


def guided(rows: Rows) -> list[str]:
    if not (seeds := seeds_of(rows, BY_SEARCH)):
        return []
    each = [[found(rows, BY_SEARCH, f"search-accuracy-{k}", s) for s in seeds] for k in (1, 2)]
    text = "; ".join(f"after round {k} {accuracy(stage)}" for k, stage in enumerate(each, 1))
    return [f"With search at test time too, guided by the value model, on {len(each[0][0]['right'])} problems: {text}."]


def agents(rows: Rows) -> list[str]:
    """What acting in an environment gained over its cold start, and a tool over none."""
    cells, tools = [], []
    kept = [
        (run, name, title if name == run else f"{title} (`{name.removeprefix(run).strip()}`)", after, before)
        for run, title, after, before in AGENT_ROWS
        for name in dict.fromkeys(name for name, _ in rows if name == run or name.startswith(f"{run} "))
    ]
    for run, name, title, after, before in kept:
        if not (seeds := seeds_of(rows, name)):
            continue
        later, first = ([found(rows, name, stage, s) for s in seeds] for stage in (after, before))
        row = [title, accuracy(first), accuracy(later), *change(later, first)]
        if run == CALCULATOR:
            tools.append([*row, answer_tokens(first), answer_tokens(later)])
        else:
            cells.append([*row, *(tokens(rows, name, after, seeds, what) for what in ("sampled", "trained"))])
    head = ["start (each seed)", "after", "change, points", "95 % over seeds", "95 % over problems", "better?"]
    first_table = table(["environment", *head, "tokens sampled", "trained"], cells)
    second = table(["arithmetic", "this, first", "with that", *head[2:], "tokens of an answer, first", "that"], tools)
    return [ABOUT_AGENTS, *first_table, *([ABOUT_CALCULATOR, *second] if second else [])] if cells or tools else []


def answer_tokens(stages: Sequence[dict[str, Any]]) -> str:
    """Sampled for one answer; of a vote, for all that vote."""
    return f"{np.mean([s['sampled'] / len(s['right']) / s['samples'] for s in stages]):.0f}"


# What needs no judge: runs that were kept before these were measured do not have them.
LIKELIEST = ("logprob_sum", "logprob")
JUDGE_TITLES = {
    "majority": "majority, % (each seed)", "orm": "best by ORM", "prm": "best by PRM",
    "logprob_sum": "best by log-probability, sum", "logprob": "best by log-probability, mean", "oracle": "oracle",
}  # fmt: skip
SHORT = {
    "majority": "majority", "orm": "ORM", "prm": "PRM", "logprob_sum": "log-probability, sum",
    "logprob": "log-probability, mean",
}  # fmt: skip
COMPARED_JUDGES = (
    ("orm", "majority"), ("prm", "majority"), ("prm", "orm"), ("logprob_sum", "majority"), ("orm", "logprob_sum"),
)  # fmt: skip
PARTS: tuple[tuple[str, Callable[[Rows], list[str]]], ...] = (
    ("Each method against its start", methods),
    ("Expert iteration: the second round against the first, and search against sampling", iteration),
    ("", guided),
    ("The R1 pipeline, stage by stage", r1),
    ("The R1 pipeline, its plain questions judged by an implicit reward model", partial(r1, name=IMPLICIT_R1)),
    ("The same, with 64 steps of RL for all scenarios", partial(r1, name=LONGER_R1)),
    ("Which judge picks best of N", verifiers),
    ("Acting in environments", agents),
)


def tried(on: str) -> list[str]:
    """What settings were chosen among."""
    cells = []
    for row in read(KEPT / f"{on}-tried.jsonl"):
        curve = row.get("curves", {})
        text = [f"{way} of {N[len(c) - 1]}: {100 * c[-1]:.1f}" for way, c in curve.items()] if curve else brief(row)
        seed = f", seed {row['seed']}" if row["seed"] > REHEARSAL else ""
        cells.append([f"`{row['run']}`{seed}", "; ".join(text).replace(" %", "")])
    return table(["settings", "right answers, %"], cells)


ABOUT = """\
# Results

Written by `python docs/results.py --render` from the runs kept in [results](results); no number of a
result is typed by hand.

Each model adds numbers line by line, and on one machine each recipe of a seed starts from the same model: a short
imitation of worked answers, broken off early ([cold_start.py](../recipes/cold_start.py)). **Accuracy** is the share of
right answers at temperature 1 on held-out problems; in brackets each seed. **Over seeds**: Student's 95 % interval of
the mean change; three seeds make it wide. **Over problems**: the same for other problems of this kind, paired, with the
seeds as they are. **Better**: "yes" where both lie above 0, "every seed" where only each seed's own change does.

**Equal compute**: each method may sample the same number of answers to learn from (distillation as many of the
teacher's; an expert that searches has about as many tokens). Tokens sampled and trained are means over seeds, without
the start and without measuring."""


CHOSEN = f"""\
With seed {REHEARSAL} where no other is named, on training problems where nothing else is said; of some only the
accuracy was copied from a log. From these the defaults of the recipes were chosen. DPO and R1 were changed after seeds
had been seen on held-out problems: those runs are here, and the seeds above were then run once with what was chosen."""


def about(on: str, rows: Rows) -> str:
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    base = importlib.import_module("_bases").find_base(on)
    first = next(s for row in rows.values() for s in row["stages"] if "right" in s)
    asked = base.task.test[0]
    question, worked = (repr(text).strip("'") for text in (asked.bare_question, base.task.gold(asked)))
    output = (
        f"`{question}` is to be answered by `{worked}`. Measured on {len(first['right'])} problems, {first['samples']}"
    )
    return f"{output} samples of each; {base.answer_budget:,} answers to learn from."


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
        for part, message in PARTS:
            lines = message(rows)
            out += ["", f"### {part}"] if part and lines else []
            out += lines
        names = dict.fromkeys(name for name, _ in rows)
        out += ["", "### Commands", "", "Of the first seed of each run; likewise with the others. All at once:", ""]
        first = {name: min(seed for run, seed in rows if run == name) for name in names}
        out += ["```", f"python docs/results.py --on {on}", *(command(name, on, first[name]) for name in names), "```"]
        if settings := tried(on):
            agents_tried = sum("`agent " in line for line in settings)
            out += ["", "### Settings that were tried", "", f"{CHOSEN} {agents_tried} are of agents.", *settings]
    notes = KEPT / "notes.md"
    own = notes.read_text().strip().replace("](../", "](") if notes.exists() else ""  # the page lies one folder above
    return "\n".join([*out, *(["", own] if own else [])]) + "\n"
