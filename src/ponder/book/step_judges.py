"""Does a judge of steps choose better than a judge of answers? Where each step can be checked by code, and on word
problems or any task, where rollouts label the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    format_interval,
    lines_above_at_every_n,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.first_errors import (
    STEP_LENGTH,
    first_error_lines,
    has_processbench,
    measure_first_errors,
    score_by_length,
    score_solutions,
)
from ponder.book.judge_calibration import calibrate, calibration_lines
from ponder.book.rl_judges import policy_line, policy_of_rl
from ponder.book.score_answers import (
    ScoredAnswers,
    implicit_scores,
    reference_model,
    score_steps,
    score_stored_answers,
)
from ponder.book.shared_settings import GSM8K_START, TINY_START
from ponder.book.stage_costs import UNKNOWN_FLOPS, stage_cost, stage_cost_lines, stage_costs
from ponder.book.step_label_facts import STEPS, describe_labels, labels_line, rollout_cost
from ponder.book.word_problem_start import start_line, task_title, word_problem_start
from ponder.errors import UsageError
from ponder.measure import auroc_within_problems, selection_curve
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.nets.decoder_with_head import LogprobReading
from ponder.reason.operators.evaluate import Reduction, reduce_scores
from ponder.reason.operators.vote import stated_answers
from ponder.runs import read_traces
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.types import Trace

PUZZLES = {
    "sums": "sums of five numbers", "countdown": "countdown", "sudoku": "4 x 4 sudoku",
    "long-sums": "sums of ten numbers",
}  # fmt: skip
TINY_PUZZLES = ("sums", "countdown", "sudoku")  # without --task
LANGUAGE_MODEL_PUZZLES = ("countdown", "long-sums")  # which SmolLM2 imitates before it solves any
RECIPE = "step_judges"
TASK = "mawps"
# Of SmolLM2 after GRPO, as in rl-judges. Each training problem's answers are read about once.
ON_WORD_PROBLEMS: dict[str, Any] = {
    "more_tasks": ("svamp",), "problems": 1300, "samples": 16, "labels": "hard", "completions": 8, "batch_size": 16,
    "steps": 160, "warmup_steps": 10, "lr": 1e-4, "implicit_lr": 2e-5, "beta": 0.05, "limit": 128,
}  # fmt: skip
ON_PUZZLES: dict[str, Any] = {"lr": 1e-4, "implicit_lr": 5e-5, "beta": 0.05, "steps": 300}  # of SmolLM2
NEEDED = ("start", "outcomes", "steps", "prm", "implicit")  # stages that make the policy and what leads searches
SPLITS = ("validation", "test")
ORACLE_BEYOND = 1.7  # where it is so many times the best choice, the axis ends without it
CHOICE_N = 16  # how steps are reduced is chosen by best of so many on the validation split
SIZES = (1, 2, 4, 8, 16, 32, 64)
STEP_JUDGES = ("prm", "implicit-prm")
REDUCTIONS: tuple[Reduction, ...] = ("min", "product", "last")
# How implicit models read whole answers; at the last step, the one that learned from labels of steps reads the ratio.
IMPLICIT: dict[str, tuple[str, ...]] = {"implicit": ("ratio", "logprob"), "implicit-prm": ("logprob",)}
# By row the score that it chooses by, or whose weights its vote has; of the process model's, "chosen" is the reduction
# that is best on the validation split.
BEST = {
    "orm": "best by outcome reward model",
    "prm min": "best by process reward model, worst step",
    "prm product": "best by process reward model, product of steps",
    "prm last": "best by process reward model, last step",
    "implicit ratio": "best by implicit reward model of answers, by its ratio",
    "implicit logprob": "best by implicit reward model of answers, by log pi",
    "implicit-prm min": "best by implicit reward model of steps, worst step",
    "implicit-prm product": "best by implicit reward model of steps, product of steps",
    "implicit-prm last": "best by implicit reward model of steps, last step",
    "implicit-prm logprob": "best by implicit reward model of steps, by log pi",
    "logprob_sum": "best by the model's own log-probability",
}
WEIGHTED = {
    "orm": "vote weighted by outcome reward model",
    "prm chosen": "vote weighted by process reward model",
    "implicit ratio": "vote weighted by implicit reward model of answers",
    "implicit-prm chosen": "vote weighted by implicit reward model of steps",
}
VOTES = [name for name in BEST if not name.endswith("logprob") and name != "logprob_sum"]  # their scores are weights
DRAWN = {
    "best orm": 1, "best prm chosen": 0, "best implicit ratio": 2, "best implicit logprob": 2,
    "best implicit-prm chosen": 4, "best implicit-prm logprob": 4, "best logprob_sum": 5, "majority": 6,
    "weighted implicit-prm chosen": 3, "oracle": 7,
}  # fmt: skip
BY_LOG_PI = ("best implicit logprob", "best implicit-prm logprob")  # dashed, in the colour of the same model's ratio
STAGES = {  # that sample or train
    "rl": "GRPO, sampling and learning",
    "start": "the start", "start-accuracy": "the start's own accuracy", "outcomes": "answers to learn from",
    "labels": "rollouts that label steps",
    "orm": "outcome reward model", "prm": "process reward model",
    "implicit": "implicit reward model of answers", "implicit-prm": "implicit reward model of steps",
    "validation": "answers to validation problems", "test": "answers to held-out problems",
}  # fmt: skip
PROCESSBENCH_JUDGES: tuple[tuple[str, str, LogprobReading | None], ...] = (  # a title, the stage, the reading
    ("process reward model", "prm", None), ("implicit reward model of steps, by its ratio", "implicit-prm", "ratio"),
    ("implicit reward model of steps, by log pi per token", "implicit-prm", "likelihood"),
    ("implicit reward model of answers, by its ratio", "implicit", "ratio"),
)  # fmt: skip
COMPARED = (
    ("best orm", "majority"), ("best prm chosen", "majority"), ("best prm chosen", "best orm"),
    ("weighted prm chosen", "majority"), ("weighted prm chosen", "best orm"),
    ("weighted implicit-prm chosen", "best orm"),
    ("best implicit ratio", "majority"), ("best implicit logprob", "majority"),
    ("best implicit-prm logprob", "majority"), ("weighted implicit ratio", "majority"),
    ("weighted implicit ratio", "best implicit ratio"), ("best implicit-prm chosen", "majority"),
    ("best implicit-prm chosen", "best implicit ratio"), ("best implicit-prm logprob", "best implicit logprob"),
    ("best implicit-prm chosen", "best logprob_sum"),
    ("weighted prm chosen", "best prm chosen"), ("weighted implicit-prm chosen", "best implicit-prm chosen"),
    ("weighted implicit-prm chosen", "majority"), ("best prm product", "best prm min"),
    ("best prm last", "best prm min"), ("best implicit-prm last", "best implicit-prm min"),
)  # fmt: skip


class StepJudges:
    name = "step-judges"
    title = "Judges of steps against judges of answers"
    source = (
        "Lightman et al. 2023, arXiv:2305.20050 (a process reward model chooses better among N than an outcome one,"
        " more so with more N; product of the steps about as good as their minimum); Wang et al. 2024,"
        " arXiv:2312.08935 (a vote weighted by it is better still); Cobbe et al. 2021, arXiv:2110.14168 (best of N by"
        " an outcome model)"
    )
    claim = (
        "Best of N by an outcome reward model beats majority vote, a process reward model with labels of steps beats"
        " the outcome model, and a weighted vote beats both."
    )
    settings = (
        "How step scores are reduced to one is chosen on validation problems, as said below. Rates (1e-3), beta (0.2)"
        " and 400 steps of 8 problems had one value in the kept runs. Before them judges learned in 200 steps of larger"
        " batches, and countdown's answers were drawn differently; on which problems that was seen was not kept. A"
        " trial of one seed on validation problems came between, of countdown, sudokus and sums of six numbers; a rate"
        " of 3e-3 for the process model was worse there than 1e-3. Sums then had five numbers in place of six,"
        f" of which most right answers have a wrong line. {TINY_START}; by what the starts of countdown and sudokus,"
        " 600 and 400 steps, were chosen was not kept. SmolLM2's policy, rates, beta and steps are those of rl-judges;"
        f" labels, completions and samples had one value. {GSM8K_START}. Where it imitates countdown, its start of 150"
        " steps came after 60; of judges of 2,048 answers, one seed, validation problems, scalar heads then chose a"
        " little better and implicit models worse. Rates and beta came from trials of one seed on validation problems"
    )
    models = ("tiny", "smollm2", "any")

    def run(self, run: FigureRun) -> dict[str, Any]:
        if is_puzzle(run):
            found = {run.task: run_puzzle(run, run.task or "")}
            return {"model": run.model, "task": run.task, "seed": run.seed, "puzzles": found}
        if run.model != "tiny" or run.task is not None:
            return run_task(replace(run, task=run.task or TASK))
        if run.task_settings:
            raise UsageError("the tiny model's puzzles have one size each: leave out the settings of a task")
        found = {puzzle: run_puzzle(run, puzzle) for puzzle in TINY_PUZZLES}
        return {"model": run.model, "seed": run.seed, "puzzles": found}

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, puzzle in zip(panels, _puzzles(seeds), strict=True):
                n, highest = next(iter(seeds.values()))["puzzles"][puzzle]["test"]["n"], 0.0
                for name, colour in DRAWN.items():
                    curves = puzzle_curves(seeds, puzzle, name)
                    mean = [100 * over_seeds([c[k] for c in curves])[0] for k in range(len(n))]
                    highest = max(highest, *mean) if name != "oracle" else highest
                    paint_seeds(axes, n, [[100 * x for x in own] for own in curves], COLOURS[colour])
                    look = {"ls": "--", "mfc": "white"} if name in BY_LOG_PI else {}
                    title = _row_title(name)
                    axes.plot(n, mean, color=COLOURS[colour], marker=MARKERS[colour], ms=4, label=title, **look)
                    rows.extend({"panel": puzzle, "line": _row_title(name), "x": k, "right": m / 100}
                                for k, m in zip(n, mean, strict=True))  # fmt: skip
                axes.set_xscale("log", base=2)
                axes.set_xticks(n, [str(k) for k in n])
                axes.set_xlabel("answers to choose from, N")
                axes.set_ylabel("right, %")
                top = 100 * over_seeds([own[-1] for own in puzzle_curves(seeds, puzzle, "oracle")])[0]
                beyond = top > ORACLE_BEYOND * highest
                axes.set_ylim(0, 1.4 * highest if beyond else 101)
                leaves = f"; any right leaves the axis, {top:.1f} at N = {n[-1]}" if beyond else ""
                axes.set_title(f"{_title(seeds, puzzle)}{leaves}", fontsize=9)
            lines, labels = panels[0].get_legend_handles_labels()
            columns = min(3, len(panels))
            figure.legend(lines, labels, fontsize=7, ncols=columns, loc="outside lower center", frameon=False)

        return FigureWithData(make_panels(len(_puzzles(seeds)), paint, "", size=(4.4, 4.2)), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        out: list[str] = []
        first, uncounted = next(iter(seeds.values())), False
        for puzzle in _puzzles(seeds):
            n = first["puzzles"][puzzle]["test"]["n"]
            shown = [k for k in n if k in (1, 8, 16, 32, 64)]
            rows = []
            for name in _rows():
                curves = puzzle_curves(seeds, puzzle, name)
                cells = [format_interval([c[n.index(k)] for c in curves], bounds=SHARE) for k in shown]
                rows.append([_row_title(name), *cells])
            found = first["puzzles"][puzzle]
            kept = [data["puzzles"][puzzle] for data in seeds.values()]
            own = {seed: data["puzzles"][puzzle] for seed, data in seeds.items()}
            uncounted = uncounted or not all("costs" in d for d in kept)
            out += [
                f"### {_title(seeds, puzzle) if _of_own_task(seeds) else PUZZLES[puzzle].capitalize()}",
                "",
                f"{self._labels_line(first, found)} {found['test']['problems']} held-out problems,"
                f" {n[-1]} samples of each."
                " On validation problems the"
                f" process model is best by its {_described(seeds, puzzle, 'prm')}, the implicit model of steps by its"
                f" {_described(seeds, puzzle, 'implicit-prm')}: so they weigh votes, and are drawn. Log pi is a sum"
                " over an answer's tokens.",
                *markdown_table(["right, %", *(f"N = {k}" for k in shown)], rows),
                *self._auroc_lines(seeds, puzzle),
                *calibration_lines(own, {name: _judge_title(name) for name in BEST}),
                *(stage_cost_lines(kept, stage_title) if all("costs" in d for d in kept) else []),
                *lines_above_at_every_n(COMPARED, partial(puzzle_curves, seeds, puzzle), _row_title, n),
            ]
        out += first_error_lines(seeds)
        if uncounted:
            out += [f"Tokens and {UNKNOWN_FLOPS} by stage.", ""]
        missing = [PUZZLES[puzzle] for puzzle in TINY_PUZZLES if puzzle not in _puzzles(seeds)]
        if missing and "task" not in first:
            out += [
                f"Not made yet: {' and '.join(missing)}. The recipe has them (`ponder run step_judges --puzzle`), and"
                f" `ponder book {self.name} --out FOLDER` makes the figure with all puzzles in another folder.",
                "",
            ]
        return out

    def _labels_line(self, first: SeedData, found: Mapping[str, Any]) -> str:
        """What the judges learned from."""
        if found is not next(iter(first["puzzles"].values())) and "labels" in found:
            return "The same policy and judges."
        if "labels" in found:
            after_rl = (first["model"], first["task"]) == ("smollm2", TASK)
            start = policy_line(first) if after_rl else start_line(first["model"], first["task"])
            chosen = "" if after_rl else " No setting was chosen on this model and task."
            return f"{start.strip()} {labels_line(found)}{chosen}".strip()
        of_smollm2 = first.get("model") == "smollm2"
        imitates = "SmolLM2 first imitates worked attempts, as the tiny model does. " if of_smollm2 else ""
        return (
            f"{imitates}{found['answers learned from']:,} answers to learn from, of every line whether it is right"
            f" ({_ends_line(found)});"
        )

    def _auroc_lines(self, seeds: Mapping[int, SeedData], puzzle: str) -> list[str]:
        every = [data["puzzles"][puzzle]["test"]["auroc within problems"] for data in seeds.values()]
        rows = [[_judge_title(name), format_interval([x[name] for x in every], 1, 3, bounds=SHARE)] for name in BEST]
        return [
            "AUROC within problems, the chance that a right answer scores above a wrong one to the same problem:",
            *markdown_table(["judge", "AUROC"], rows),
        ]


def is_puzzle(run: FigureRun) -> bool:
    """Whether the task is a puzzle whose lines code checks: the tiny model's own, or one that SmolLM2 imitates."""
    known = {"tiny": tuple(PUZZLES), "smollm2": LANGUAGE_MODEL_PUZZLES}.get(run.model, ())
    if run.task not in known:
        return False
    if run.task_settings:
        raise UsageError(f"the puzzle {run.task} has one size for each model: leave out --task's settings")
    return True


def run_puzzle(run: FigureRun, puzzle: str) -> dict[str, Any]:
    """The numbers of one puzzle and seed."""
    job = puzzle_job(run, puzzle)
    return measure_run(run, job, run.run_job(job, puzzle_folder(run, puzzle)))


def puzzle_job(run: FigureRun, puzzle: str) -> Any:
    settings = {} if run.model == "tiny" else ON_PUZZLES
    return run.build_recipe(RECIPE, model=run.model, puzzle=puzzle, seed=run.seed, **settings)


def run_task(run: FigureRun) -> dict[str, Any]:
    """The numbers of a language model, by task, and how steps got their labels. SmolLM2 is the policy that learned
    word problems by RL, and its judges of steps read ProcessBench's solutions, too."""
    policy = policy_of_rl(run)
    job = run.recipe_job(
        RECIPE, **(word_problem_start(run) if policy is None else ON_WORD_PROBLEMS | {"start": policy})
    )
    folder = run.run_job(job, run.folder / RECIPE)
    labels, rollouts = describe_labels(job, folder), rollout_cost(job, folder)
    suffixes = [stage.name.removeprefix("test") for stage in job.stages if stage.name.startswith("test")]
    found = {_stage_job(job, f"test{suffix}").task.name: measure_run(run, job, folder, suffix) for suffix in suffixes}
    first, *others = found.values()
    for own in others:  # judges and their data are the same
        own["costs"] = {name: cost for name, cost in own["costs"].items() if name in SPLITS}
    learned = {"rl": stage_cost(Path(policy))} if policy else {}
    first["costs"] = {k: x for k, x in (learned | {"labels": rollouts} | first["costs"]).items() if x is not None}
    out: dict[str, Any] = {"model": run.model, "task": run.task, "seed": run.seed}
    out["puzzles"] = {name: own | {"labels": labels} for name, own in found.items()}
    if policy and has_processbench():
        out["processbench"] = {
            title: measure_first_errors(score_solutions(str(folder / judge), reading, run.device, run.dtype))
            for title, judge, reading in PROCESSBENCH_JUDGES
        } | {STEP_LENGTH: measure_first_errors(score_by_length())}
    return out


def measure_run(run: FigureRun, job: Any, folder: Path, suffix: str = "") -> dict[str, Any]:
    """The numbers of a finished run of the recipe, on the first task or on that of the stages with this suffix."""
    task = _stage_job(job, f"test{suffix}").task
    judges = {name: folder / name for name in ("orm", "implicit", *STEP_JUDGES)}
    beta = _stage_job(job, "implicit").algorithm.beta
    scored = {}
    for split in SPLITS:
        run.progress.phase(f"scoring the {split} answers")
        scored[split] = score_answers_and_steps(folder / f"{split}{suffix}", task, judges, beta, run.device, run.dtype)
    out: dict[str, Any] = {split: measure_choices(scored[split]) for split in SPLITS}
    calibrated = calibrate(scored["validation"], scored["test"], out["test"]["n"])
    out["test"]["calibrated"] = {name: {k: x for k, x in calibrated[name].items() if k != "vote"} for name in BEST}
    labelled = [stage.name for stage in job.stages if stage.name.startswith(STEPS)]
    traces = [trace for name in labelled for _, trace in read_traces(folder / name)]
    out["answers learned from"] = sum(len(trace.answers()) for trace in traces)
    out["right ends"] = count_right_ends(traces, task.verifier.name)
    shared = [s.name for s in job.stages if s.name not in labelled and not s.name.startswith(SPLITS)]
    costs = stage_costs(folder, [*shared, *(f"{split}{suffix}" for split in SPLITS)])
    out["costs"] = {name.removesuffix(suffix) if name.startswith(SPLITS) else name: x for name, x in costs.items()}
    return out


def _stage_job(job: Any, name: str) -> Any:
    return next(stage.job for stage in job.stages if stage.name == name)


def puzzle_folder(run: FigureRun, puzzle: str) -> Path:
    """Where the stages of a puzzle lie, whichever figure runs them."""
    task = "" if run.model == "tiny" and puzzle in TINY_PUZZLES else f"-{puzzle}"
    return run.folder.parents[1] / f"{FIGURE.name}-{run.model}{task}" / run.folder.name / puzzle


def puzzle_judges(run: FigureRun, puzzle: str) -> Path:
    """The folder of the stages that make a puzzle's policy and the judges that lead searches, run once for this figure
    and others."""
    folder = puzzle_folder(run, puzzle)
    job = puzzle_job(run, puzzle)
    needed = [stage for stage in job.stages if stage.name in NEEDED or (folder / stage.name).exists()]
    return run.run_job(replace(job, stages=tuple(needed)), folder)


def count_right_ends(traces: Iterable[Trace], verifier: str) -> dict[str, int]:
    """Of the right answers learned from, how many have only right lines, and how many a wrong one."""
    ends = [(trace, i) for trace in traces for i in trace.answers() if trace.score(i, verifier) == 1.0]
    whole = sum(trace.score(i, LABEL_SCORE) == 1.0 for trace, i in ends)
    return {"only right lines": whole, "a wrong line": len(ends) - whole}


def score_answers_and_steps(
    folder: Path, task: Any, judges: Mapping[str, Path], beta: float, device: str = "auto", dtype: str = "auto"
) -> ScoredAnswers:
    """The answers of a run directory, scored by outcome, process and implicit reward models: the runs that trained
    them, by name: orm, and where they are known prm, implicit and implicit-prm."""
    orm, readers = {"orm": f"reward:{judges['orm']}"}, {name: str(judges[name]) for name in IMPLICIT if name in judges}
    references = {"reference": reference_model(judges["implicit"])} if "implicit" in judges else {}
    scored, sums = score_stored_answers(folder, task, orm, readers | references, device, dtype)
    for name in readers:
        found = implicit_scores(sums[name], sums["reference"], scored.lengths, beta)
        scored.scores.update({f"{name} {reading}": found[reading] for reading in IMPLICIT[name]})
    for name in (name for name in STEP_JUDGES if name in judges):
        steps = score_steps(f"reward+last:{judges[name]}", folder, device, dtype)
        read = prefix_scores if name == "implicit-prm" else list
        for how in REDUCTIONS:
            scored.scores[f"{name} {how}"] = [[reduce_scores(read(x), how) for x in group] for group in steps]
    return scored


def prefix_scores(steps: Sequence[float]) -> list[float]:
    """The scores of an answer up to each step, from those of the steps' own tokens: their logits add up."""
    logits = [math.log(x) - math.log1p(-x) for x in np.clip(steps, 1e-15, 1 - 1e-15).tolist()]
    return [1 / (1 + math.exp(-z)) for z in np.clip(np.cumsum(logits), -700, 700).tolist()]


def measure_choices(scored: ScoredAnswers, votes: Sequence[str] = VOTES) -> dict[str, Any]:
    """Curves over N of every judge's choice and of these judges' weighted votes, and AUROC within problems."""
    sizes = [k for k in SIZES if k <= min(map(len, scored.right))]
    right = scored.right
    places: list[list[int | None]] = []
    for answers in scored.answers:  # an attempt is chosen, not an answer; one that states nothing is not
        able = set(stated_answers(answers))
        places.append([i if i in able else None for i in range(len(answers))])
    out: dict[str, Any] = {"problems": len(right), "n": sizes, "best": {}, "weighted": {}, "auroc within problems": {}}
    for name, scores in scored.scores.items():
        out["best"][name] = _means(selection_curve("best", places, right, sizes, scores, "exact", missing="abstain"))
        if name in votes:
            curve = selection_curve("weighted", scored.answers, right, sizes, scores, "subsets", 100, "abstain")
            out["weighted"][name] = _means(curve)
        known = [
            (x, y, p)
            for p, (group, outcomes) in enumerate(zip(scores, right, strict=True))
            for x, y in zip(group, outcomes, strict=True)
            if x is not None
        ]
        z, y, problems = ([row[i] for row in known] for i in range(3))
        out["auroc within problems"][name] = round(auroc_within_problems(z, y, problems, resamples=2).area, 4)
    out["majority"] = _means(selection_curve("majority", scored.answers, right, sizes, how="exact"))
    out["oracle"] = _means(selection_curve("best", places, right, sizes, right, "exact"))
    return out


def _puzzles(seeds: Mapping[int, SeedData]) -> list[str]:
    """The puzzles that every seed has, or the task of the user's."""
    names = next(iter(seeds.values()))["puzzles"] if _of_own_task(seeds) else PUZZLES
    return [puzzle for puzzle in names if all(puzzle in data["puzzles"] for data in seeds.values())]


def _of_own_task(seeds: Mapping[int, SeedData]) -> bool:
    return any("labels" in found for data in seeds.values() for found in data["puzzles"].values())


def _title(seeds: Mapping[int, SeedData], puzzle: str) -> str:
    """A task of the user's may have a puzzle's name."""
    return task_title(puzzle) if _of_own_task(seeds) else PUZZLES[puzzle]


def chosen_reduction(seeds: Mapping[int, SeedData], puzzle: str, judge: str) -> str:
    """The reduction of step scores that chooses best on the validation split, over all seeds."""

    def worth(how: str) -> float:
        splits = [data["puzzles"][puzzle]["validation"] for data in seeds.values()]
        return float(np.mean([s["best"][f"{judge} {how}"][s["n"].index(min(CHOICE_N, max(s["n"])))] for s in splits]))

    return max(REDUCTIONS, key=worth)


def puzzle_curves(seeds: Mapping[int, SeedData], puzzle: str, row: str) -> list[list[float]]:
    """Of each seed the accuracy over N of a row: majority, oracle, or best or weighted and a score's name."""
    tests = [data["puzzles"][puzzle]["test"] for data in seeds.values()]
    kind, _, name = row.partition(" ")
    if not name:
        return [test[kind] for test in tests]
    judge, _, how = name.partition(" ")
    if how == "chosen":
        name = f"{judge} {chosen_reduction(seeds, puzzle, judge)}"
    return [test[kind][name] for test in tests]


def stage_title(name: str) -> str:
    """A stage of the recipe, in words."""
    kind, _, task = name.partition("-")
    return STAGES[name] if name in STAGES else f"{STAGES[kind]}, {task_title(task)}"


def _ends_line(found: Mapping[str, Any]) -> str:
    whole, other = (found["right ends"][name] for name in ("only right lines", "a wrong line"))
    return f"{whole + other:,} are right, {other:,} of them with a wrong line, in the first seed"


def _described(seeds: Mapping[int, SeedData], puzzle: str, judge: str) -> str:
    return {"min": "worst step", "product": "product", "last": "last step"}[chosen_reduction(seeds, puzzle, judge)]


def _rows() -> list[str]:
    return [*(f"best {name}" for name in BEST), "majority", *(f"weighted {name}" for name in WEIGHTED), "oracle"]


def _judge_title(name: str) -> str:
    return BEST[name].removeprefix("best by ")


def _row_title(row: str) -> str:
    kind, _, name = row.partition(" ")
    if not name:
        return "any right (oracle)" if kind == "oracle" else kind
    if kind == "best" and name.endswith(" chosen"):
        return BEST[name.replace("chosen", "min")].partition(",")[0]
    return {"best": BEST, "weighted": WEIGHTED}[kind][name]


def _means(curve: Any) -> list[float]:
    return [round(float(x), 5) for x in curve.mean]


FIGURE = StepJudges()
