"""Check what a job names before a model is loaded: a mistake is reported in a second, not after minutes of loading."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from ponder.errors import PonderError, TaskError, UsageError
from ponder.models.chat_templates import check_template_name
from ponder.models.grammar import check_grammar
from ponder.models.guides import check_guide
from ponder.models.load import load_tokenizer
from ponder.models.model_paths import OPENAI_PREFIX, check_model
from ponder.pipelines.training.teachers import check_same_vocabulary
from ponder.protocols import Task
from ponder.reason.ineffective_settings import check_budget
from ponder.reason.missing_guide import missing_guide
from ponder.types import Sampling


def check_inputs(job: Any) -> None:
    """Raise for a model, guide, template, grammar or teacher that a job names and cannot use. Loads no weights."""
    if isinstance(template := getattr(job, "template", None), str):
        check_template_name(template)
    critic = getattr(getattr(job, "algorithm", None), "critic", None)
    named = (getattr(job, "model", None), getattr(job, "teacher", None), getattr(critic, "model", None))
    for model in (*named, *getattr(job, "solvers", ())):
        if isinstance(model, str) and not model.startswith(OPENAI_PREFIX):
            check_model(model)
    if isinstance(job.model if hasattr(job, "model") else None, str):
        for other in (getattr(job, "teacher", None), getattr(critic, "model", None)):
            if isinstance(other, str):
                _check_vocabulary(other, job.model)
    if hasattr(job, "guide"):
        check_strategy_guide(getattr(job, "strategy", None), job.guide, getattr(job, "task", None))
    for part in (job, getattr(job, "strategy", None)):
        _check_grammars(part)
    check_budget(getattr(job, "strategy", None), getattr(job, "budget", None))


def check_strategy_guide(strategy: Any, guide: str, task: Task | None = None) -> None:
    """Raise if a guide cannot be used, or if a strategy needs one and there is none."""
    check_guide(guide, task)
    if not guide and (why := missing_guide(strategy)):
        raise UsageError(why)


def require_problems(task: Task, split: str) -> None:
    """Raise if a task has no problems to train or to measure on."""
    if not len(getattr(task, split)):
        kind = {"train": "training", "test": "held-out"}[split]
        raise TaskError(f"the task {task.name} has no {kind} problems: check its settings or its data folder")


def _check_vocabulary(other: str, model: str) -> None:
    try:
        tokenizer = load_tokenizer(model)
    except (PonderError, OSError):
        return  # loading the model says what is wrong with it
    check_same_vocabulary(other, tokenizer)


def _check_grammars(part: Any) -> None:
    for field in fields(part) if is_dataclass(part) else ():
        if isinstance(value := getattr(part, field.name), Sampling):
            check_grammar(value)
