"""What are ten times the problems worth to a judge? Judges from all of a policy's answers to training problems, and
from those to a tenth of the problems, each once or for as many steps, choose among the very same samples: SmolLM2's on
two sets of word problems, the tiny model's on sums, and any model's on one task of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ponder.book.figure import (
    SHARE,
    FigureRun,
    SeedData,
    cells_line,
    format_interval,
    lines_above_at_every_n,
    markdown_table,
    over_seeds,
    paint_seeds,
)
from ponder.book.judges import LOG_PI_WORDS, READ_LOG_PI, RECIPE, measure_answers
from ponder.book.score_answers import ScoredAnswers, implicit_scores, reference_model, score_stored_sets
from ponder.book.shared_settings import GSM8K_START, TINY_START
from ponder.book.word_problem_start import start_line, task_title, word_problem_start
from ponder.measure.figures.canvas import FigureWithData, make_panels
from ponder.measure.figures.theme import COLOURS, MARKERS
from ponder.runs import read_traces
from ponder.types import Cost

TASKS = ("mawps", "gsm8k")  # whose held-out problems a language model solves
TINY_TASKS: tuple[str, ...] = ("sums",)
SPLITS = ("validation", "test")
BETA = 0.05
CHOICE_N = 16  # how log pi is read is chosen by best of so many on the validation split
READINGS = ("ratio", "logprob", "likelihood")
FEW = "tenth-"  # before the name of a judge from a tenth of the problems, each once
LONG = "long-tenth-"  # of one from a tenth, for as many steps as from all
MANY = "many-"  # of one from all problems, and from many more answers to each
SIZES = {"": "all", FEW: "a tenth", LONG: "a tenth for as many steps"}  # of the problems
PREFIXES = (FEW, LONG, "", MANY)  # in the order of a page
SETTINGS: dict[str, Any] = {
    "rl_steps": 60, "more_tasks": ("svamp", "gsm8k"), "rl_tasks": ("svamp",), "test_tasks": ("gsm8k",),
    "problems": 4000, "samples": 8, "batch_size": 32, "steps": 160, "tuned_steps": 80, "warmup_steps": 10, "lr": 1e-4,
    "implicit_lr": 2e-5, "betas": (BETA,), "token_orm": True, "lm_weight": 0.1, "keep_best": True, "tenth": True,
    "long_tenth": True, "limit": 128, "n": 64, "validation_n": CHOICE_N,
}  # fmt: skip
# Half a million answers of the tiny model: 64 to each draw of a training problem, of some 2,550 that there are.
# Judges read each once, 8 draws a step, at the base's learning rate.
ON_TINY: dict[str, Any] = {
    "problems": 7900, "samples": 64, "batch_size": 8, "steps": 880, "betas": (0.2,), "tenth": True, "tuned": False,
    "limit": 128, "n": 64, "validation_n": CHOICE_N,
}  # fmt: skip
# On one task of the user's nothing comes before the judges, and each of the problems is read about once.
ON_ONE_TASK: dict[str, Any] = {
    "samples": 8, "batch_size": 32, "tuned_steps": 80, "warmup_steps": 10, "lr": 1e-4, "implicit_lr": 2e-5,
    "betas": (BETA,), "keep_best": True, "tenth": True, "long_tenth": True, "limit": 128, "n": 64,
    "validation_n": CHOICE_N,
}  # fmt: skip
MAX_PROBLEMS = 4000  # of it
CONFOUNDED = "Judges from all and from a tenth of the problems, each read once, differ in problems and in steps."
CONTROLLED = f"{CONFOUNDED} Beside one from a tenth for as many steps, one from all differs in problems alone."
# By row the kind of choice, and the judge; "log pi" is the reading that is best on the validation split.
JUDGES = {
    "best orm": "best by outcome reward model",
    "best ratio": "best by implicit reward model, by its ratio",
    "best log pi": "best by implicit reward model, by log pi",
    "weighted orm": "vote weighted by outcome reward model",
    "weighted ratio": "vote weighted by implicit reward model",
}
JUDGE_STAGES = (
    *(f"{prefix}{judge}" for prefix in ("", FEW, LONG) for judge in ("orm", f"implicit-{BETA:g}")),
    "token-orm", "tuned",
)  # fmt: skip
ONE_TASK_JUDGES = tuple(name for name in JUDGE_STAGES if name != "token-orm")
TINY_JUDGES = tuple(
    f"{prefix}{judge}" for prefix in (FEW, "") for judge in ("orm", f"implicit-{ON_TINY['betas'][0]:g}")
)
OTHERS = {
    "best token-orm": "best by outcome reward model at every token, from all",
    "weighted token-orm": "vote weighted by outcome reward model at every token, from all",
    "tuned": "best by log pi of the model tuned on right answers",
    "logprob_sum": "best by the policy's own log-probability, sum",
    "majority": "majority",
    "oracle": "any right (oracle)",
}
COMPARED = (
    ("best orm", "majority"), ("best token-orm", "majority"), ("best token-orm", "best orm"),
    ("weighted orm", "majority"), ("best ratio", "majority"), ("best log pi", "majority"),
    ("weighted ratio", "majority"), ("tuned", "majority"), ("best log pi", "best orm"), ("best log pi", "logprob_sum"),
    ("best orm", f"{FEW}best orm"), ("weighted orm", f"{FEW}weighted orm"), ("best ratio", f"{FEW}best ratio"),
    ("best log pi", f"{FEW}best log pi"), ("weighted ratio", f"{FEW}weighted ratio"),
    ("best orm", f"{LONG}best orm"), ("weighted orm", f"{LONG}weighted orm"), (f"{LONG}best orm", f"{FEW}best orm"),
    ("best ratio", f"{LONG}best ratio"), ("best log pi", f"{LONG}best log pi"),
    ("weighted ratio", f"{LONG}weighted ratio"), (f"{LONG}best log pi", f"{FEW}best log pi"),
    (f"{MANY}best orm", "majority"), (f"{MANY}best ratio", "majority"), (f"{MANY}best log pi", "majority"),
    (f"{MANY}weighted orm", "majority"), (f"{MANY}weighted ratio", "majority"),
    (f"{MANY}best log pi", "logprob_sum"), (f"{MANY}best orm", "best orm"), (f"{MANY}best ratio", "best ratio"),
    (f"{MANY}best log pi", "best log pi"), (f"{MANY}weighted orm", "weighted orm"),
    (f"{MANY}weighted ratio", "weighted ratio"),
)  # fmt: skip
DRAWN = {
    "best orm": 1, "best token-orm": 2, "best log pi": 0, "weighted ratio": 3, "tuned": 4, "majority": 6, "oracle": 7,
}  # fmt: skip
ORACLE_BEYOND = 3.0  # where it is so many times the best choice, the axis ends without it
STYLES = {FEW: "--", LONG: ":", MANY: "-."}


class JudgeScale:
    name = "judge-scale"
    title = "What ten times the problems are worth to a judge"
    source = (
        "Cobbe et al. 2021, arXiv:2110.14168 (a verifier beats fine-tuning alone where it has enough data, and gains"
        " more from further data; a value at every token, a language-model loss beside it, dropout);"
        " Yuan et al. 2024, arXiv:2412.01981 (an implicit reward model judges better, and needs less data)"
    )
    claim = (
        "A judge that learned from ten times as many problems chooses better, and then best of N by an outcome reward"
        " model beats majority vote."
    )
    settings = (
        "Rates, beta, batch and steps had one value in the kept runs, and how log pi is read is chosen on the"
        " validation split. On word problems a trial came before, of one seed and measured on held-out training"
        " questions: among outcome models at the end of the answer and at every token, the latter with a language-model"
        " loss of weight 1, with dropout and without. Afterwards that weight was 0.1 and dropout was left out; by what"
        " 0.1 was chosen, and why GRPO, problems and rate were changed between the trial and the kept runs, was not"
        " kept. Two runs with these settings ended before they had scored test answers. With the tiny model nothing was"
        f" tried: rate and beta are the recipes' own, and the steps read each answer once. {TINY_START}. {GSM8K_START}"
    )
    models: tuple[str, ...] = ("tiny", "smollm2", "any")
    sizes: Mapping[str, str] = SIZES

    def run(self, run: FigureRun) -> dict[str, Any]:
        tasks, judges, settings = TINY_TASKS, TINY_JUDGES, ON_TINY
        if run.task is not None:
            settings = one_task_settings(run)
            name = run.recipe_job(RECIPE, **settings).stages[-1].job.task.name
            tasks, judges = (name,), ONE_TASK_JUDGES
        elif run.model != "tiny":
            run = replace(run, task=TASKS[0])
            tasks, judges, settings = TASKS, JUDGE_STAGES, SETTINGS | word_problem_start(run)
        job = run.recipe_job(RECIPE, **settings)
        folder = run.run_job(job, run.folder / RECIPE)
        measured = measure_judges(folder, job, run.device, run.dtype, judges, tasks)
        return {
            "model": run.model, "seed": run.seed, "tasks": measured,
            "learned from": self._learned_from(folder, job, tasks[0]),
            **({} if run.task is None else {"one task": one_task_facts(run, settings)}),
        }  # fmt: skip

    def _learned_from(self, folder: Path, job: Any, first: str, stages: str = "outcomes*") -> dict[str, Any]:
        """What the judges had to learn from, by task; `first` is the one whose stage has no name of a task."""
        out: dict[str, Any] = {}
        for path in sorted(folder.glob(stages)):
            verifier = next(stage.job.task.verifier.name for stage in job.stages if stage.name == path.name)
            traces = [trace for _, trace in read_traces(path)]
            ends = [(trace, i) for trace in traces for i in trace.answers()]
            texts = {(trace.problem.question, trace.token_ids(i).tobytes()) for trace, i in ends}
            out[path.name.partition("outcomes")[2].removeprefix("-") or first] = {
                "problems": len(traces), "different problems": len({trace.problem.question for trace in traces}),
                "answers": len(ends), "different answers": len(texts),
                "right": sum(trace.score(i, verifier) == 1.0 for trace, i in ends),
                "tokens": sum((trace.cost for trace in traces), Cost()).generated_tokens,
            }  # fmt: skip
        return out

    def draw(self, seeds: Mapping[int, SeedData]) -> FigureWithData:
        rows: list[dict[str, Any]] = []
        tasks = measured_tasks(seeds)

        def paint(figure: Any, panels: list[Any]) -> None:
            for axes, task in zip(panels, tasks, strict=True):
                n, highest = sample_sizes(seeds, task), 0.0
                for name, colour in DRAWN.items():
                    for prefix in self.sizes if name in JUDGES else ("",):
                        if not has_row(seeds, task, f"{prefix}{name}"):
                            continue
                        curves = row_curves(seeds, task, f"{prefix}{name}")
                        mean = [100 * over_seeds([c[k] for c in curves])[0] for k in range(len(n))]
                        look = {"ls": STYLES[prefix], "lw": 1.0, "mfc": "white"} if prefix else {}
                        label = self._row_title(f"{prefix}{name}")
                        highest = max(highest, *mean) if name != "oracle" else highest
                        if not prefix:
                            paint_seeds(axes, n, [[100 * x for x in own] for own in curves], COLOURS[colour])
                        axes.plot(n, mean, color=COLOURS[colour], marker=MARKERS[colour], ms=4, label=label, **look)
                        rows.extend(
                            {"panel": task, "line": label, "x": k, "right": m / 100}
                            for k, m in zip(n, mean, strict=True)
                        )
                axes.set_xscale("log", base=2)
                axes.set_xticks(n, [str(k) for k in n])
                axes.set_xlabel("answers to choose from, N")
                axes.set_ylabel("right, %")
                top = 100 * over_seeds([own[-1] for own in row_curves(seeds, task, "oracle")])[0]
                beyond = top > ORACLE_BEYOND * highest
                axes.set_ylim(0, 1.4 * highest if beyond else None)
                leaves = f"; the oracle leaves the axis, {top:.1f} at N = {n[-1]}" if beyond else ""
                axes.set_title(f"{task_title(task)}{leaves}", fontsize=9)
            lines, labels = panels[0].get_legend_handles_labels()
            columns = min(2, len(tasks))
            figure.legend(lines, labels, fontsize=7, ncols=columns, loc="outside lower center", frameon=False)

        size = (4.8, 4.0) if len(tasks) > 1 else (6.0, 5.6)
        return FigureWithData(make_panels(len(tasks), paint, "", size=size), tuple(rows))

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        first = next(iter(seeds.values()))
        out = [self._data_line(first) + cells_line(seeds), ""]
        for task in measured_tasks(seeds):
            n = sample_sizes(seeds, task)
            shown = [k for k in n if k in (1, 8, 16, 64)]
            names = [f"{prefix}{name}" for name in JUDGES for prefix in PREFIXES if prefix in self.sizes]
            known = [name for name in (*names, *OTHERS) if has_row(seeds, task, name)]
            rows = []
            for name in known:
                curves = row_curves(seeds, task, name)
                cells = [format_interval([c[n.index(k)] for c in curves], bounds=SHARE) for k in shown]
                rows.append([self._row_title(name), *cells])
            out += [
                f"### {task_title(task)}",
                "",
                f"{first['tasks'][task]['test']['problems']} held-out problems, {n[-1]} samples of each."
                + (_reading_line(seeds, task) if has_row(seeds, task, "best log pi") else ""),
                *markdown_table(["right, %", *(f"N = {k}" for k in shown)], rows),
                *self._auroc_lines(seeds, task),
                *self._verdict_lines(seeds, task, [pair for pair in COMPARED if {*pair} <= {*known}]),
            ]
        return out

    def _verdict_lines(
        self, seeds: Mapping[int, SeedData], task: str, compared: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Which rows lie above which, and in how many of these comparisons all problems help at equal steps."""
        out = lines_above_at_every_n(
            compared, partial(row_curves, seeds, task), self._row_title, sample_sizes(seeds, task)
        )
        lines = dict(zip(compared, out[2:], strict=False))
        equal = [lines[pair] for pair in compared if pair[1] == f"{LONG}{pair[0]}"]
        held = sum(line.endswith(("**yes**.", "**in every seed**.")) for line in equal)
        if equal:
            out += [
                f"At equal steps judges from all problems are above those from a tenth in {held or 'none'} of"
                f" {len(equal)} comparisons.",
                "",
            ]
        return out

    def _row_title(self, row: str) -> str:
        prefix, name = split_row(row)
        return f"{JUDGES[name]}, from {self.sizes[prefix]}" if name in JUDGES else OTHERS[name]

    def _data_line(self, first: SeedData) -> str:
        if first["model"] == "tiny":
            return self._sums_line(first)
        if "one task" in first:
            return self._one_task_line(first)
        learned = first["learned from"]
        total = sum(x["answers"] for x in learned.values())
        each = ", ".join(
            f"{task_title(name)} {x['problems']:,} problems and {x['answers']:,} answers,"
            f" {100 * x['right'] / x['answers']:.1f} % of them right"
            for name, x in learned.items()
        )
        start = start_line(first["model"], TASKS[0]).strip()
        s = SETTINGS
        return (
            f"{start} Then came {s['rl_steps']} steps of GRPO on MAWPS and SVAMP, 512 answers each. Of the policy's"
            f" answers to training problems {total:,} have verdicts (in the first seed {each}); judges learn from nine"
            " tenths of the problems, or from a tenth of these, each problem once; or from that tenth for as many steps"
            " as from all. An outcome reward model learns at the end of an answer; one that learns at every token has a"
            f" language-model loss of right answers beside it, of weight {s['lm_weight']:g}. Of every judge the best of"
            f" three measurements on the held-out tenth is kept. {CONTROLLED} All choose among the same samples. An"
            " answer that states nothing is never chosen."
        ).strip()

    def _one_task_line(self, first: SeedData) -> str:
        ((name, x),), s = first["learned from"].items(), first["one task"]
        return (
            f"{s['start']}Of the answers to training problems of {name} {x['answers']:,} have verdicts (in the first"
            f" seed {x['problems']:,} draws of {x['different problems']:,} different problems,"
            f" {100 * x['right'] / x['answers']:.1f} % of the answers right). Judges learn from nine tenths of the"
            f" problems in {s['steps']} steps of {s['batch_size']}; or from a tenth of these in a tenth of the steps,"
            " or in as many. Of every judge the best of three measurements on the held-out tenth is kept. No RL came"
            f" first, and judges learned from {name} alone. Rates ({s['lr']:g}, of implicit models"
            f" {s['implicit_lr']:g}) are those of SmolLM2 on word problems; no setting was chosen on this model and"
            f" task. {CONTROLLED} All choose among the same samples. An answer that states nothing is never chosen."
        )

    def _sums_line(self, first: SeedData) -> str:
        (x,), s = first["learned from"].values(), ON_TINY
        known = first["tasks"][TINY_TASKS[0]]["test"]["best"]  # a run that was stopped lacks judges
        few = f", or from a tenth of these in {s['steps'] // 10}" if f"{FEW}orm" in known else ""
        confounded = f" {CONFOUNDED} No judge learned from a tenth for as many steps here." * bool(few)
        beta = f" The implicit model's beta is {s['betas'][0]:g}, as theirs." if "implicit ratio" in known else ""
        return (
            "The model is a transformer of two layers of width 64 after 300 steps of 64 worked sums of five digits. Of"
            f" its answers to training problems {x['answers']:,} have verdicts (in the first seed {x['problems']:,}"
            f" draws of {x['different problems']:,} different sums, {s['samples']} answers to each,"
            f" {100 * x['right'] / x['answers']:.1f} % of them right; {x['different answers']:,} of them differ);"
            f" judges learn from nine tenths of the problems in {s['steps']} steps of {s['batch_size']} draws{few},"
            f" each answer once, at the learning rate of the other recipes (1e-3).{beta} No other setting was tried."
            f"{confounded} All choose among the same samples. An answer that states nothing is never chosen."
        )

    def _auroc_lines(self, seeds: Mapping[int, SeedData], task: str) -> list[str]:
        judges = [
            row
            for row in ("best orm", "best ratio", "best log pi")
            if any(has_row(seeds, task, f"{p}{row}") for p in self.sizes)
        ]
        prefixes = [p for p in PREFIXES if p in self.sizes and any(has_row(seeds, task, f"{p}{row}") for row in judges)]
        rows = []
        for row in judges:
            cells = []
            for prefix in prefixes:
                if not has_row(seeds, task, f"{prefix}{row}"):
                    cells.append("not measured")
                    continue
                name = score_name(seeds, task, f"{prefix}{row}")
                every = [data["tasks"][task]["test"]["auroc within problems"][name] for data in seeds.values()]
                cells.append(format_interval(every, 1, 3, bounds=SHARE))
            rows.append([JUDGES[row].removeprefix("best by "), *cells])
        return [
            "AUROC within problems, the chance that a right answer scores above a wrong one to the same problem:",
            *markdown_table(["judge", *(f"from {self.sizes[prefix]}" for prefix in prefixes)], rows),
        ]


def one_task_settings(run: FigureRun) -> dict[str, Any]:
    """The recipe's settings on a task of the user's: as many of its training problems as there are, up to a limit."""
    task = run.recipe_job(RECIPE, **ON_ONE_TASK).stages[-1].job.task
    problems = min(MAX_PROBLEMS, len(task.train))
    steps = max(3, round(0.9 * problems / ON_ONE_TASK["batch_size"]))
    return ON_ONE_TASK | {"problems": problems, "steps": steps} | word_problem_start(run)


def one_task_facts(run: FigureRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of these settings."""
    names = ("steps", "batch_size", "lr", "implicit_lr")
    start = f"{line.strip()} " if (line := start_line(run.model, run.task)) else ""
    return {"start": start, **{name: settings[name] for name in names}}


def measure_judges(
    folder: Path,
    job: Any,
    device: str = "auto",
    dtype: str = "auto",
    judges: Sequence[str] = JUDGE_STAGES,
    tasks: Sequence[str] = TASKS,
) -> dict[str, dict[str, Any]]:
    """By task and split, what these judges choose and tell apart: stages of the recipe's run in this folder."""
    solved = {stage.name: stage.job.task for stage in job.stages if stage.name.startswith(SPLITS)}
    names = {(task, split): f"{split}{'' if task == tasks[0] else f'-{task}'}" for task in tasks for split in SPLITS}
    scored = score_splits(folder, {name: solved[name] for name in names.values()}, device, dtype, judges)
    return {task: {split: measure_answers(scored[names[task, split]], False) for split in SPLITS} for task in tasks}


def score_splits(
    folder: Path,
    splits: Mapping[str, Any],
    device: str = "auto",
    dtype: str = "auto",
    judges: Sequence[str] = JUDGE_STAGES,
) -> dict[str, ScoredAnswers]:
    """The answers of each split, given with its task, scored by these judges and the policy."""
    implicit = [name for name in judges if "implicit" in name]
    readers = {name: str(folder / name) for name in judges if name in implicit or name == "tuned"}
    if implicit:
        readers["reference"] = reference_model(folder / implicit[0])
    orms = {name: folder / name for name in judges if name.endswith("orm")}
    found = score_stored_sets({folder / split: task for split, task in splits.items()}, orms, readers, device, dtype)
    for scored, sums in found:
        for stage in (name for name in readers if name != "reference"):
            name, _, beta = stage.rpartition("-") if stage in implicit else (stage, "", "1")
            reference = sums["reference" if stage in implicit else stage]
            read = implicit_scores(sums[stage], reference, scored.lengths, float(beta))
            for reading in READINGS if stage in implicit else READINGS[1:]:  # the tuned model is read by log pi alone
                scored.scores[f"{name} {reading}"] = read[reading]
    return {split: scored for split, (scored, _) in zip(splits, found, strict=True)}


def log_pi_reading(seeds: Mapping[int, SeedData], task: str) -> str:
    """Sum or mean, whichever of the implicit model from all problems chooses better on the validation split."""

    def worth(reading: str) -> float:
        splits = [data["tasks"][task]["validation"] for data in seeds.values()]
        known = [s for s in splits if f"implicit {reading}" in s["best"]]
        return sum(s["best"][f"implicit {reading}"][s["n"].index(min(CHOICE_N, max(s["n"])))] for s in known)

    return max(READINGS[1:], key=worth)


def _reading_line(seeds: Mapping[int, SeedData], task: str) -> str:
    read = LOG_PI_WORDS[log_pi_reading(seeds, task)]
    return f" {READ_LOG_PI} by best of {CHOICE_N} on validation problems: here as its {read}."


def split_row(row: str) -> tuple[str, str]:
    """The size of data that a row's judge learned from, and the row's name without it."""
    prefix = next((p for p in (LONG, FEW, MANY) if row.startswith(p)), "")
    return prefix, row.removeprefix(prefix)


def score_name(seeds: Mapping[int, SeedData], task: str, row: str) -> str:
    """The score that a row chooses or votes by."""
    prefix, name = split_row(row)
    if name == "tuned":
        return f"tuned {log_pi_reading(seeds, task)}"
    judge = name.partition(" ")[2]
    if judge == "log pi":
        return f"{prefix}implicit {log_pi_reading(seeds, task)}"
    return f"{prefix}{judge}" if judge.endswith("orm") else f"{prefix}implicit ratio" if judge else name


def has_row(seeds: Mapping[int, SeedData], task: str, row: str) -> bool:
    """Whether every seed has the judge of a row."""
    name = score_name(seeds, task, row)
    return row in ("majority", "oracle") or all(name in d["tasks"][task]["test"]["best"] for d in seeds.values())


def row_curves(seeds: Mapping[int, SeedData], task: str, row: str) -> list[list[float]]:
    """Of each seed the accuracy over N of a row on the test split."""
    tests = [data["tasks"][task]["test"] for data in seeds.values()]
    if row in ("majority", "oracle"):
        return [test[row] for test in tests]
    kind = "weighted" if split_row(row)[1].startswith("weighted") else "best"
    return [test[kind][score_name(seeds, task, row)] for test in tests]


def measured_tasks(seeds: Mapping[int, SeedData]) -> tuple[str, ...]:
    return tuple(next(iter(seeds.values()))["tasks"])


def sample_sizes(seeds: Mapping[int, SeedData], task: str) -> list[int]:
    return list(next(iter(seeds.values()))["tasks"][task]["test"]["n"])


FIGURE = JudgeScale()
