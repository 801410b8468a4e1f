"""Run directories written without a model, to be read, compared, plotted and replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ponder.runs import Run
from ponder.tasks import Addition
from ponder.types import Cost, Step, Trace, ids, prompt_trace

TASK = Addition(digits=2, test_size=50)


@dataclass(frozen=True)
class StoredJob:
    """The job of a finished run."""

    task: Any


def write_run(
    folder: Path,
    texts: Sequence[Sequence[str]],
    task: Any = TASK,
    scores: Sequence[Sequence[float]] | None = None,
    logprobs: Sequence[Sequence[float]] | None = None,
    chosen: Sequence[int | None] | None = None,
    steps: Sequence[int] | None = None,
    cost: Cost = Cost(prompt_tokens=4, generated_tokens=30, flops=2e12, seconds=0.5),
) -> Path:
    """A run in which these are the answers to the task's test problems, graded by its verifier."""
    traces = []
    for p, answers in enumerate(texts):
        trace = prompt_trace(task.test[p % len(task.test)], ids([1, 2]))
        for i, text in enumerate(answers):
            lp = -0.5 if logprobs is None else logprobs[p][i]
            tokens = 3 + i
            trace.add(Step(0, text, ids(range(tokens)), np.full(tokens, lp, np.float32), "eos"))
        grade_answers(trace, task.verifier)
        for i in range(len(answers)):
            if scores is not None:
                trace.steps[i + 1].scores["rm"] = type(next(iter(trace.steps[i + 1].scores.values())))(scores[p][i])
        trace.chosen = None if chosen is None or chosen[p] is None else 1 + int(chosen[p] or 0)
        trace.add_cost(cost)
        traces.append(trace)
    with Run(folder, StoredJob(task)) as run:
        for p, trace in enumerate(traces):
            run.write_traces(0 if steps is None else steps[p], [trace])
    return folder


def grade_answers(trace: Trace, verifier: Any) -> None:
    leaves = trace.answers()
    for i, score in zip(leaves, asyncio.run(verifier(trace, leaves)), strict=True):
        trace.steps[i].scores[verifier.name] = score


def right_answer(p: int, task: Any = TASK) -> str:
    return str(task.gold(task.test[p % len(task.test)]))


def wrong_answer(p: int, by: int = 1, task: Any = TASK) -> str:
    """A wrong answer in the same form, off by `by`."""
    gold = task.test[p % len(task.test)].answer
    return right_answer(p, task).replace(str(gold), str(int(gold) + by))
