"""Which judge chooses best among N answers of a policy that learned by RL, where far more of them are right."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from ponder.book.figure import FigureRun, SeedData
from ponder.book.judges import RECIPE, Judges
from ponder.book.shared_settings import GSM8K_START
from ponder.book.word_problem_start import start_line, starts_with_gsm8k, task_title
from ponder.errors import UsageError

TASK = "mawps"
NEEDED = ("rl", "outcomes", "right", "tuned", "implicit")  # stages that make the policy and its best judges
# As in a trial of one seed on validation problems, with 70 steps of GRPO and no other rates or betas finished.
ON_WORD_PROBLEMS: dict[str, Any] = {
    "rl_steps": 50, "more_tasks": ("svamp",), "problems": 1300, "samples": 24, "batch_size": 16, "steps": 160,
    "warmup_steps": 10, "lr": 1e-4, "implicit_lr": 2e-5, "betas": (0.05,), "limit": 192, "n": 64,
}  # fmt: skip


class RLJudges(Judges):
    name = "rl-judges"
    title = "Which judge picks best of N, after RL"
    settings = (
        "The reading of the implicit reward model is chosen on the validation split, as said below. Rates, beta and"
        " steps are those of the one trial before, with one seed on validation problems, in which GRPO had 70 steps; no"
        f" others were tried to the end. {GSM8K_START}"
    )
    models = ("smollm2", "any")
    on_word_problems = ON_WORD_PROBLEMS
    reads_steps = False

    def run(self, run: FigureRun) -> dict[str, Any]:
        if run.model == "tiny":
            raise UsageError("this figure is of word problems: give --on smollm2 or another language model")
        return super().run(replace(run, task=run.task or TASK)) | {"rl steps": ON_WORD_PROBLEMS["rl_steps"]}

    def recipe_job(self, run: FigureRun) -> Any:
        """SmolLM2 learns from two sets of word problems; another model, or on another task, from that task alone."""
        if starts_with_gsm8k(run):
            return super().recipe_job(run)
        alone = {name: value for name, value in ON_WORD_PROBLEMS.items() if name != "more_tasks"}
        return run.recipe_job(RECIPE, logprob_orm=True, **alone)

    def _start_line(self, first: SeedData) -> str:
        return policy_line(first)


def policy_line(first: SeedData) -> str:
    """What a page says of the policy, from the data of one seed."""
    line = start_line(first["model"], first.get("task"))
    steps, others = ON_WORD_PROBLEMS["rl_steps"], ", ".join(map(task_title, ON_WORD_PROBLEMS["more_tasks"]))
    if "rl steps" in first and not line:
        return f" The policy is the model after {steps} steps of GRPO on {first['task']}, 512 answers each."
    own = task_title(first["task"]) if line else ""
    return line and f"{line} Then came {steps} steps of GRPO on {own} and {others}, 512 answers each."


FIGURE = RLJudges()


def rl_policy_and_judges(run: FigureRun) -> dict[str, str]:
    """The settings `start`, `judge` and `tuned` of recipes: SmolLM2 after GRPO on word problems, the implicit reward
    model of its answers, and the policy fine-tuned on the right ones, trained once for this figure and others. None for
    other models and tasks."""
    if (folder := _run_stages(run, NEEDED)) is None:
        return {}
    judge = f"implicit-{ON_WORD_PROBLEMS['betas'][0]:g}"
    return {"start": str(folder / "rl"), "judge": str(folder / judge), "tuned": str(folder / "tuned")}


def judges_of_rl(run: FigureRun) -> dict[str, str]:
    """The settings `start` and `judges` of recipes: that policy, and the run that has its outcome reward model and its
    implicit one. Empty for other models and tasks."""
    folder = _run_stages(run, ("rl", "outcomes", "orm", "implicit"))
    return {} if folder is None else {"start": str(folder / "rl"), "judges": str(folder)}


def policy_of_rl(run: FigureRun) -> str | None:
    """That policy alone; None for other models and tasks."""
    folder = _run_stages(run, ("rl",))
    return None if folder is None else str(folder / "rl")


def _run_stages(run: FigureRun, names: Container[str]) -> Path | None:
    """Run these stages of the figure, and finish those that it has begun, in its own folder; None for other models and
    tasks."""
    if run.model != "smollm2" or run.task != TASK:
        return None
    folder = run.folder.parents[1] / f"{FIGURE.name}-{run.model}" / run.folder.name / RECIPE
    job = FIGURE.recipe_job(run)
    needed = [stage for stage in job.stages if stage.name.partition("-")[0] in names or (folder / stage.name).exists()]
    run.run_job(replace(job, stages=tuple(needed)), folder)
    return folder
