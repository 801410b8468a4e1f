"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ponder.common_settings import TASK_HELP, Device, Dtype, Guide, Model, Template
from ponder.settings import Named, SettingsOf

__all__ = ["Device", "Dtype", "Guide", "Model", "Template"]  # of jobs, too

TaskName = Annotated[str, Named("ponder.tasks:TASKS"), TASK_HELP]
TaskSettings = Annotated[dict[str, str], SettingsOf("task"), "a setting of the task (ponder tasks TASK lists them)"]
StrategySettings = Annotated[
    dict[str, str], SettingsOf("strategy"), "a setting of the strategy (ponder strategies NAME lists them)"
]
AlgorithmSettings = Annotated[
    dict[str, str], SettingsOf("algorithm"), "a setting of the algorithm, such as clip_high or kl.estimator"
]
BudgetSettings = Annotated[
    dict[str, str], SettingsOf("budget", "ponder.reason.budget:Budget"), "what each problem may cost at most"
]
MaxTokens = Annotated[int, "longest completion"]
RunDirectory = Annotated[Path | None, "the run directory; the same command resumes where it stopped"]
Json = Annotated[bool, "one JSON object per line on stdout, nothing else"]
LogTo = Annotated[str, "write metrics with these, too, offline: tensorboard, wandb, trackio (a,b: several)"]
Ranks = Annotated[int, "processes that train together on this machine: one GPU each, or several on the CPU"]
Cluster = Annotated[
    str,
    "HOST:PORT of a Ray cluster (ponder cluster up) that takes ranks and replicas; local: this machine, without Ray",
]
NoResume = Annotated[bool, "refuse to continue a run that is already there"]
Strategy = Annotated[
    str | None,
    Named("ponder.reason.strategies:STRATEGIES", "ponder.reason.presets:PRESETS"),
    "chain, majority-vote, best-of-n, beam-search, mcts ... or a preset (ponder strategies lists them)",
]
Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
    "bounds on answers and tokens; a server's chat is asked for it, too",
]
Prices = Annotated[Path | None, "a JSON table of dollars per million tokens; the row with the model's name counts"]
