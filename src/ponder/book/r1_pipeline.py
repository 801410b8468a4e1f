"""R1's pipeline on word problems, measured after each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    format_over_problems,
    held_above,
    held_over_problems,
    markdown_table,
    over_seeds,
)
from ponder.book.pruned_model import pruned_line, pruned_model
from ponder.book.shared_settings import GSM8K_START, PRUNED
from ponder.book.stage_costs import UNKNOWN_FLOPS, stage_cost
from ponder.book.word_problem_start import STEPS, WORD_PROBLEMS, task_title, word_problem_start
from ponder.errors import NoGoldAnswer, UsageError
from ponder.measure import bootstrap_mean
from ponder.measure.figures.canvas import FigureWithData, format_amount, make_panels
from ponder.measure.figures.theme import COLOURS
from ponder.runs import read_traces
from ponder.types import Cost

TASK = "mawps"
SETTINGS: dict[str, Any] = {
    "judge": "implicit", "rl_steps": 24, "all_rl_steps": 48, "problems_per_step": 32, "problems": 384, "sft_steps": 48,
    "sft_lr": 1e-4, "limit": 192,
}  # fmt: skip
STAGES = {  # a stage that measures: what it is of, and the stage before it
    "small-accuracy": ("the model as it is", None),
    "start-accuracy": ("cold start", "small-accuracy"),
    "reasoning-rl-accuracy": ("reasoning RL", "start-accuracy"),
    "sft-accuracy": ("SFT on verified answers", "start-accuracy"),
    "all-rl-accuracy": ("RL for all scenarios", "sft-accuracy"),
    "student-accuracy": ("student by answers", "small-accuracy"),
    "student-by-logits-accuracy": ("student by logits", "small-accuracy"),
    "smaller-accuracy": ("the smaller model as it is", None),
    "smaller-start-accuracy": ("smaller, cold start", "smaller-accuracy"),
    "smaller-rl-accuracy": ("smaller, RL on itself", "smaller-start-accuracy"),
    "smaller-student-accuracy": ("smaller student by answers", "smaller-accuracy"),
    "smaller-start-student-accuracy": ("smaller student after its cold start", "smaller-start-accuracy"),
}
COLD_START = "start"  # on the task's own worked answers; SmolLM2's on word problems is no stage
READ_GOLD = 100  # worked answers that tell whether they have any working
OWN_RL = "smaller-rl"  # which needs no answers of the other stages
COMPARED = (
    ("start-accuracy", "small-accuracy"), ("reasoning-rl-accuracy", "start-accuracy"),
    ("sft-accuracy", "start-accuracy"), ("sft-accuracy", "reasoning-rl-accuracy"),
    ("all-rl-accuracy", "sft-accuracy"), ("student-accuracy", "small-accuracy"),
    ("student-accuracy", "reasoning-rl-accuracy"), ("student-by-logits-accuracy", "small-accuracy"),
    ("student-by-logits-accuracy", "student-accuracy"), ("smaller-rl-accuracy", "smaller-start-accuracy"),
    ("smaller-student-accuracy", "smaller-rl-accuracy"), ("smaller-start-student-accuracy", "smaller-rl-accuracy"),
    ("smaller-student-accuracy", "student-accuracy"),
)  # fmt: skip


def flops_line(stages: Sequence[str]) -> str:
    """What the FLOPs of the table are of."""
    pruned = " and of the pruned model" if "smaller-accuracy" in stages else ""
    return (
        "FLOPs are those of sampling and learning, by the one meter, up to the stage; those of the cold start"
        f"{pruned} are not among them."
    )


class R1Pipeline:
    name = "r1-pipeline"
    title = "R1 stage by stage"
    source = "DeepSeek-AI 2025, arXiv:2501.12948 (DeepSeek-R1)"
    claim = (
        "After a cold start, RL on a verifier's reward solves more problems; the model as it is, fine-tuned on that"
        " policy's verified answers, keeps most of it; RL for all scenarios, with a judge for plain questions, does not"
        " lose it; a student that imitates the result gains without RL; and a smaller student gains more from it than"
        " from RL on itself."
    )
    settings = (
        "Steps, problems and rates are those of the first kept run, of one seed, and no other is kept, but for RL for"
        " all scenarios: it had 6 steps, with one problem in 78 of MAWPS, and lost points in three seeds. 48 are"
        " as many of the task's own problems as reasoning RL has, and were the only other number tried. The rate of"
        f" RL is that of all recipes, the first that was tried with SmolLM2. {GSM8K_START}. {PRUNED}"
    )
    models = ("smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "tiny":
            raise UsageError("this figure is of word problems: give --on smollm2 or another language model")
        run = replace(run, task=run.task or TASK)
        start = word_problem_start(run)
        pruned = pruned_model(run) if start else None
        smaller = (
            {} if pruned is None else {"smaller": pruned, "smaller_start": word_problem_start(run, pruned)["start"]}
        )
        job = self._recipe_job(run, start | smaller)
        if start:
            first = replace(next(s for s in job.stages if s.name == "sft-accuracy"), name="start-accuracy")
            job = replace(job, stages=(replace(first, job=replace(first.job, model=start["start"])), *job.stages))
        folder = run.run_job(job, run.folder / "r1")
        return self.measure(run, job, folder) | describe_cold_start(job, folder)

    def _recipe_job(self, run: FigureRun, models: Mapping[str, Any]) -> Any:
        try:
            return run.recipe_job("r1", **SETTINGS, **models)
        except UsageError as why:
            if not isinstance(why.__context__, NoGoldAnswer):
                raise
            raise UsageError(
                f"the figure {self.name} starts from worked answers: {why.__context__}. Give a task that has some, or"
                " run the pipeline from a model that has read others: `ponder run r1 --task TASK --start MODEL`"
            ) from None

    def measure(self, run: FigureRun, job: Any, folder: Path) -> dict[str, Any]:
        """The numbers of a run of the recipe."""
        out: dict[str, Any] = {
            "model": run.model,
            "task": run.task,
            "seed": run.seed,
            "settings": SETTINGS,
            "stages": {},
        }
        sampled, spent = 0, 0.0
        own = {"smaller-start-accuracy": (0, 0.0)}
        for stage in job.stages:
            traces = [t for _, t in read_traces(folder / stage.name)] if hasattr(stage.job, "task") else []
            tokens = sum((t.cost for t in traces), Cost()).generated_tokens
            if stage.name == COLD_START:  # told by itself
                continue
            cost = None if stage.name in STAGES else stage_cost(folder / stage.name)
            flops = cost["flops"] if cost else 0.0
            if stage.name == OWN_RL:
                own[f"{OWN_RL}-accuracy"] = (tokens, flops)
            elif stage.name in STAGES:
                score = stage.job.task.verifier.name
                right = [
                    [float(t.score(i, score) or 0.0) for i in t.answers()]
                    for t in sorted(traces, key=lambda t: t.problem.id)
                ]
                out["stages"][stage.name] = {
                    "samples": len(right[0]), "right by problem": [round(sum(group)) for group in right],
                    **dict(zip(("sampled so far", "flops so far"), own.get(stage.name, (sampled, spent)), strict=True)),
                }  # fmt: skip
            else:
                sampled += tokens
                spent += flops
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []
        names = [name for name in STAGES if name in next(iter(seeds.values()))["stages"]]

        def paint(figure: Any, panels: list[Any]) -> None:
            (axes,) = panels
            for i, name in enumerate(names):
                mean, low, high = (100 * x for x in _interval(seeds, name))
                two = len(seeds) == 2  # whose interval would reach over the picture: the seeds themselves
                error = None if two else [[max(0.0, mean - low)], [max(0.0, high - mean)]]
                colour = COLOURS[int(name.startswith("smaller"))]
                axes.bar(i, mean, 0.7, yerr=error, color=colour, error_kw={"lw": 0.8})
                for data in seeds.values() if two else ():
                    axes.plot(i, 100 * float(np.mean(_shares(data, name))), ".", color="black", ms=5)
                rows.append({"stage": STAGES[name][0], "right": mean / 100})
            axes.set_xticks(range(len(names)), [STAGES[name][0] for name in names], rotation=30, ha="right", fontsize=7)
            axes.set_ylabel("right, %")

        return FigureWithData(make_panels(1, paint, "", size=(6.4, 4.2)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        first = next(iter(seeds.values()))
        names = [name for name in STAGES if name in first["stages"]]
        cells, counted = [], all("flops so far" in data["stages"][name] for data in seeds.values() for name in names)
        for name in names:
            title, before = STAGES[name]
            gap = _gap(seeds, name, before) if before in first["stages"] else ""
            tokens = format_amount(first["stages"][name]["sampled so far"]) if before else ""
            row = [title, STAGES[before][0] if gap and before else "", _right(seeds, name), gap, tokens]
            if counted:
                flops = float(np.mean([data["stages"][name]["flops so far"] for data in seeds.values()]))
                row.append(format_amount(flops) if before else "")
            cells.append(row)
        held = [
            f"- {STAGES[one][0]} less {STAGES[other][0]}: {_gap(seeds, one, other)} points, above 0:"
            f" **{_held(seeds, one, other)}**"
            for one, other in COMPARED
            if one in names and other in names
        ]
        measured, settings, task = first["stages"][names[0]], first["settings"], task_title(first["task"])
        over = (
            f"Over seeds with a 95 % interval{'; dots are the seeds' if len(seeds) == 2 else ''}."
            if len(seeds) > 1
            else "One seed: 95 % intervals over problems, by bootstrap; changes are paired by problem."
        )
        smaller = (
            f"{pruned_line()} RL on it takes the same steps as reasoning RL, and its tokens are its own alone."
            if "smaller-accuracy" in names
            else " A smaller one of its family was not tried here."
        )
        return [
            f"{len(measured['right by problem'])} held-out problems of {task}, {measured['samples']} samples"
            f" of each at temperature 1. {over}{_cold_start_line(first)} Reasoning RL takes"
            f" {settings['rl_steps']} steps of {settings['problems_per_step']} problems with 8 answers each, RL for"
            f" all scenarios {settings['all_rl_steps']}; half of its problems are plain questions, additions of"
            " two-digit numbers, judged by an implicit reward model. SFT starts from the model as it is, and so does"
            f" the student.{smaller} Tokens are those sampled to learn from, up to the stage. SFT and the students read"
            f" verified answers to training problems of {task}: which part of their gain comes from the task's own"
            " form, and which from RL before them, is not separated.",
            *markdown_table(["stage", "against", "right, %", "change, points", "tokens", *["FLOPs"] * counted], cells),
            flops_line(names) if counted else f"{UNKNOWN_FLOPS} up to each stage.",
            "",
            "**Held?**",
            "",
            *held,
            "",
        ]


def describe_cold_start(job: Any, folder: Path) -> dict[str, Any]:
    """Of a cold start on the task's own worked answers, its settings and cost, and how long those answers are."""
    fine_tune = next((stage.job for stage in job.stages if stage.name == COLD_START), None)
    if fine_tune is None:
        return {}
    task = fine_tune.data
    texts = [task.gold(problem) for problem in task.train[:READ_GOLD]]
    return {"cold start": {
        "steps": fine_tune.steps, "batch": fine_tune.batch_size, "lr": fine_tune.optimizer.lr,
        "lines": round(float(np.mean([len(text.strip().splitlines()) for text in texts])), 1),
        "words": round(float(np.mean([len(text.split()) for text in texts])), 1),
        **(stage_cost(folder / COLD_START) or {}),
    }}  # fmt: skip


def _own_cold_start_line(data: SeedData) -> str:
    x = data["cold start"]
    short = (
        " These state a result with hardly any working, so that this start teaches their form, and no reasoning."
        if x["lines"] < 2 and x["words"] < 10
        else ""
    )
    cost = f" ({format_amount(x['tokens'])} tokens, {format_amount(x['flops'])} FLOPs)" if "flops" in x else ""
    return (
        f" The cold start reads the task's own worked training answers, {x['batch']} in each of {x['steps']} steps at"
        f" {x['lr']:g}{cost}; they have {x['lines']:g} lines and {x['words']:g} words in the mean.{short} All"
        " other settings are those of SmolLM2 on MAWPS."
    )


def _cold_start_line(data: SeedData) -> str:
    if "cold start" in data:
        return _own_cold_start_line(data)
    if data.get("model") != "smollm2" or data["task"] not in WORD_PROBLEMS:
        return ""
    other = "" if data["task"] == "gsm8k" else f", none of {task_title(data['task'])}"
    return f" The cold start reads GSM8K's worked training solutions, 64 in each of {STEPS} steps{other}."


def _shares(data: SeedData, name: str) -> list[float]:
    cell = data["stages"][name]
    return [count / cell["samples"] for count in cell["right by problem"]]


def _interval(seeds: Mapping[int, SeedData], name: str) -> tuple[float, float, float]:
    """The mean and its interval, over seeds or over the problems of one."""
    each = [_shares(data, name) for data in seeds.values()]
    if len(each) > 1:
        return over_seeds([float(np.mean(x)) for x in each], SHARE)
    found = bootstrap_mean(each[0])
    return found.mean, found.low, found.high


def _right(seeds: Mapping[int, SeedData], name: str) -> str:
    each = [_shares(data, name) for data in seeds.values()]
    if len(each) == 1:
        return format_over_problems(each[0])
    return format_interval([float(np.mean(x)) for x in each], bounds=SHARE)


def _changes(seeds: Mapping[int, SeedData], name: str, before: str) -> list[list[float]]:
    """Of each seed, each problem's change."""
    return [[x - y for x, y in zip(_shares(data, name), _shares(data, before), strict=True)] for data in seeds.values()]


def _gap(seeds: Mapping[int, SeedData], name: str, before: str | None) -> str:
    each = _changes(seeds, name, str(before))
    if len(each) == 1:
        return format_over_problems(each[0], sign=True)
    return format_interval([float(np.mean(x)) for x in each], sign=True)


def _held(seeds: Mapping[int, SeedData], name: str, before: str) -> str:
    each: Sequence[list[float]] = _changes(seeds, name, before)
    return held_over_problems(each[0]) if len(each) == 1 else held_above([float(np.mean(x)) for x in each])


FIGURE = R1Pipeline()
