"""What are ten times the answers to each problem worth to a judge? Half a million verdicts on a language model's
answers to word problems, against a tenth of them, on the very same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ponder.book.figure import FigureRun, SeedData
from ponder.book.judge_scale import BETA, MANY, SETTINGS, SPLITS, JudgeScale, measure_judges
from ponder.book.judges import RECIPE
from ponder.book.shared_settings import GSM8K_START
from ponder.book.stage_costs import stage_cost_lines, stage_costs
from ponder.book.word_problem_start import WORD_PROBLEMS, start_line, task_title, word_problem_start
from ponder.errors import UsageError

TASK = "mawps"
ON_WORD_PROBLEMS: dict[str, Any] = {k: v for k, v in SETTINGS.items() if k not in ("lm_weight", "tuned_steps")} | {
    "token_orm": False, "tenth": False, "long_tenth": False, "tuned": False, "many": 90, "many_batch_size": 8,
}  # fmt: skip
ALONE = ("more_tasks", "rl_tasks", "test_tasks", "rl_steps")  # settings that a task of one's own does without
JUDGES = tuple(f"{prefix}{judge}" for prefix in ("", MANY) for judge in ("orm", f"implicit-{BETA:g}"))


class JudgeAnswers(JudgeScale):
    name = "judge-answers"
    title = "What ten times the answers to each problem are worth to a judge"
    source = (
        "Cobbe et al. 2021, arXiv:2110.14168 (a verifier learns from 100 samples of each problem, and beats"
        " fine-tuning where it has enough data); Yuan et al. 2024, arXiv:2412.01981 (an implicit reward model judges"
        " better, and needs less data)"
    )
    claim = (
        "A judge that learned from ten times as many answers to each problem chooses better, and then best of N by an"
        " outcome reward model beats majority vote."
    )
    settings = (
        "Rates, beta, GRPO and the steps of judges from few answers are those of judge-scale. Judges from many read"
        " each answer once, in batches of a quarter of the problems; no other batch was tried. How log pi is read is"
        f" chosen on the validation split. {GSM8K_START}"
    )
    models = ("smollm2", "any")
    sizes: Mapping[str, str] = MappingProxyType(
        {"": f"{SETTINGS['samples']} answers a problem", MANY: f"{ON_WORD_PROBLEMS['many']} answers a problem"}
    )

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "tiny":
            raise UsageError("on the tiny model this is the figure judge-scale: make that, or give --on smollm2")
        task = run.task or TASK
        run, settings, tasks = replace(run, task=task), dict(ON_WORD_PROBLEMS), (task,)
        if task == TASK:
            tasks = (task, *SETTINGS["test_tasks"])
        else:
            settings = {name: value for name, value in settings.items() if name not in ALONE}
        job = run.recipe_job(RECIPE, **settings, **word_problem_start(run))
        folder = run.run_job(job, run.folder / RECIPE)
        return {
            "model": run.model, "task": task, "seed": run.seed,
            "tasks": measure_judges(folder, job, run.device, run.dtype, JUDGES, tasks),
            "learned from": self._learned_from(folder, job, task),
            "learned from many": self._learned_from(folder, job, task, "many-outcomes*"),
            "costs": stage_costs(folder, [stage.name for stage in job.stages]),
        }  # fmt: skip

    def report(self, seeds: Mapping[int, SeedData]) -> list[str]:
        return [*super().report(seeds), *stage_cost_lines(list(seeds.values()), stage_title)]

    def _data_line(self, first: SeedData) -> str:
        few, many = first["learned from"], first["learned from many"]
        counts = [sum(x["answers"] for x in learned.values()) for learned in (few, many)]
        each = ", ".join(
            f"{task_title(name)} {x['problems']:,} problems and {x['answers']:,} answers"
            f" ({x['different answers']:,} different), {100 * x['right'] / x['answers']:.1f} % of them right"
            for name, x in many.items()
        )
        steps, batch, many_batch = (ON_WORD_PROBLEMS[name] for name in ("steps", "batch_size", "many_batch_size"))
        start = start_line(first["model"], first["task"]).strip()
        rl = f" Then came {SETTINGS['rl_steps']} steps of GRPO on MAWPS and SVAMP, 512 answers each."
        return (
            f"{start}{rl * (first['task'] == TASK)} Of the policy's answers to training problems {counts[1]:,} have"
            f" verdicts (in the first seed: {each}); judges learn from nine tenths of the problems, each answer once."
            f" Others learn from {counts[0]:,} answers to the same problems. Those from more answers also take more"
            f" steps, {steps * batch // many_batch} of {many_batch} problems where the others take {steps} of {batch}:"
            " answers and steps are not told apart. Of every judge the best of three measurements on the held-out tenth"
            " is kept. All choose among the same samples. An answer that states nothing is never chosen."
        ).strip()


def stage_title(name: str) -> str:
    """A stage of the recipe, in words."""
    kind, _, task = name.removeprefix(MANY).partition("-")
    titles = {
        "start": "the start", "rl": "GRPO, sampling and learning", "outcomes": "answers to learn from",
        "orm": "outcome reward model", "implicit": "implicit reward model",
        **{split: f"answers to {split} problems" for split in SPLITS},
    }  # fmt: skip
    words = titles[kind]
    if kind in ("outcomes", *SPLITS) and task in WORD_PROBLEMS:
        words = f"{words}, {task_title(task)}"
    return f"{words} ({ON_WORD_PROBLEMS['many']} answers a problem)" if name.startswith(MANY) else words


FIGURE = JudgeAnswers()
