"""The samples of a training run, read again by other scorers than the one that rewarded them, and against the start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.book.figure import FigureRun
from ponder.book.score_answers import load_scorer, score_distinct, sum_distinct_logprobs
from ponder.protocols import Scorer
from ponder.reason.operators.uncertainty import sum_logprob
from ponder.runs import read_traces
from ponder.types import Trace

MAX_TRACES = 32  # of a step that are read again
SHARED_COST = (
    "The start, and judges of it, are trained once for the figures algorithms, reward-hacking, over-optimisation and"
    " falling: the first of them that runs has that time in its cost."
)


def shared_start(run: FigureRun, figure: str) -> dict[str, Any]:
    """The setting `start` of recipes, for figures that train from the same cold start: it is trained once for a seed.
    None for a task of the user's, where a language model starts as it is."""
    if run.task is not None:
        return {}
    folder = _shared_folder(run, figure, "start")
    run.run_recipe("cold_start", folder)
    return {"start": str(folder / "start")}


def shared_judges(run: FigureRun, figure: str) -> dict[str, Any]:
    """The settings `start` and `judges` of recipes: both judges of the start are trained once for a seed."""
    start = shared_start(run, figure)
    folder = _shared_folder(run, figure, "judges-of-start")
    run.run_recipe("outcome_judges", folder, **start)
    return {**start, "judges": str(folder)}


def _shared_folder(run: FigureRun, figure: str, name: str) -> Path:
    """A folder beside those of the figures, for this model, task and seed."""
    place = run.folder.parent.name.removeprefix(f"{figure}-")
    return run.folder.parents[1] / f"{name}-{place}" / run.folder.name


def traces_by_step(folder: Path, every: int) -> dict[int, list[Trace]]:
    """The traces of the first step, of every so manieth after it, and of the last."""
    by_step: dict[int, list[Trace]] = {}
    last = -1
    for step, trace in read_traces(folder):
        if step > last >= 0 and last % every:
            del by_step[last]
        last = step
        own = by_step.setdefault(step, [])
        if len(own) < MAX_TRACES:
            own.append(trace)
    return by_step


def reread_training(
    folder: Path,
    rewarded: str,
    verifier: Scorer,
    judges: Mapping[str, str],
    start: str,
    every: int,
    device: str = "auto",
    dtype: str = "auto",
) -> dict[str, list[float]]:
    """Means over the samples of some steps: the reward they had (the score named `rewarded`), the verifier's verdict,
    what each judge says (guides by name), the length in tokens, and the KL from the start: log pi - log pi_start."""
    steps = traces_by_step(folder, every)
    scorers = {name: load_scorer(guide, device, dtype) for name, guide in judges.items()}
    reference = load_scorer(f"logprob:{start}", device, dtype)
    out: dict[str, list[float]] = {"step": []}
    for step, traces in steps.items():
        row = event_loop.run(_reread(traces, rewarded, verifier, scorers, reference))
        out["step"].append(step)
        for name, value in row.items():
            out.setdefault(name, []).append(round(value, 4))
    return out


async def _reread(
    traces: Sequence[Trace], rewarded: str, verifier: Scorer, judges: Mapping[str, Scorer], reference: Any
) -> dict[str, float]:
    pairs = [(trace, i) for trace in traces for i in trace.answers()]
    verdicts = await asyncio.gather(*(verifier(trace, trace.answers()) for trace in traces))
    below = await sum_distinct_logprobs(reference, traces)
    own = [sum_logprob(trace, i) or 0.0 for trace, i in pairs]
    out = {
        "reward": _mean([trace.score(i, rewarded) or 0.0 for trace, i in pairs]),
        "right": _mean([score.value or 0.0 for group in verdicts for score in group]),
        "length": _mean([len(trace.steps[i].token_ids) for trace, i in pairs]),
        "kl": _mean([x - y for x, y in zip(own, [y for group in below for y in group], strict=True)]),
    }
    for name, judge in judges.items():
        out[name] = _mean([x or 0.0 for group in await score_distinct(judge, traces) for x in group])
    return out


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def example_texts(folder: Path, count: int) -> list[list[str]]:
    """Question and answer of the last samples of a run, one of each problem."""
    last = traces_by_step(folder, 10**9)
    traces = last[max(last)]
    return [[trace.problem.question, trace.text(trace.answers()[0])] for trace in traces[:count]]
