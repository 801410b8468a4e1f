"""SmolLM2 on word problems: it seldom gives an answer that a verifier reads, so it first imitates GSM8K's solutions."""

from __future__ import annotations

from typing import Any

from ponder.book.figure import FigureRun

WORD_PROBLEMS = ("gsm8k", "svamp", "mawps")
STEPS, LR = 100, 2e-4
LIMIT = 64  # held-out problems that tell its own accuracy


def task_title(task: str) -> str:
    """A set of word problems by the name that its authors gave it; any other task by its own."""
    return task.upper() if task in WORD_PROBLEMS else task


def starts_with_gsm8k(run: FigureRun) -> bool:
    return run.model == "smollm2" and run.task in WORD_PROBLEMS


def word_problem_start(run: FigureRun, pruned: str | None = None) -> dict[str, Any]:
    """The setting `start` of recipes: SmolLM2, or the model `pruned` from it, after GSM8K's worked solutions, trained
    once for a seed and all figures. None for other models and tasks, which start as they are."""
    if not starts_with_gsm8k(run):
        return {}
    folder = run.folder.parents[1] / f"start-gsm8k-{'pruned-' * (pruned is not None)}smollm2" / run.folder.name
    model = pruned or run.model
    job = run.build_recipe("cold_start", model=model, task="gsm8k", steps=STEPS, lr=LR, limit=LIMIT, seed=run.seed)
    run.run_job(job, folder)
    return {"start": str(folder / "start")}


def start_line(model: str | None, task: str | None) -> str:
    """What the page says of it."""
    if model != "smollm2" or task not in WORD_PROBLEMS:
        return ""
    return (
        f" The model is SmolLM2 after {STEPS} steps of 64 of GSM8K's worked training solutions, without which it seldom"
        " gives an answer that the verifier reads."
    )
