"""Searches on puzzles whose steps code can check: which judges lead them, what each reads, and what it knows of a line.

The policy and the judges are those of the figure step-judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder import event_loop
from ponder.book.figure import FigureRun
from ponder.book.score_answers import AnswerScores, load_scorer, score_steps
from ponder.book.step_judges import prefix_scores, puzzle_job, puzzle_judges
from ponder.errors import UsageError
from ponder.measure import auroc_within_problems
from ponder.pipelines.rewards.step_labelling import ExactSteps
from ponder.reason.operators.evaluate import REDUCTIONS, Reduction, reduce_scores
from ponder.runs import read_traces
from ponder.types import Cost, Trace

RECIPE = "puzzle_search"
COUNTED = 4  # answers to each problem of which is counted what a judge reads
StepScores = list[list[Sequence[float]]]  # of each step of each answer to each problem


def puzzle_stages(run: FigureRun) -> tuple[Path, dict[str, Any], ExactSteps]:
    """Run the searches of a puzzle, or what is left of them: their folder, jobs by stage, and the check of steps."""
    judges = puzzle_judges(run, run.task or "")
    built = run.build_recipe(RECIPE, model=run.model, puzzle=run.task, judges=str(judges), seed=run.seed)
    folder = run.run_job(built, run.folder / RECIPE)
    check = next(stage.job.labeller for stage in puzzle_job(run, run.task or "").stages if stage.name == "steps")
    return folder, {stage.name: stage.job for stage in built.stages}, check


class StepReading:
    """How a learned judge of steps is read: from its guide's name the scores of prefixes, the last of which is that of
    the answer."""

    def __init__(self, guide: str) -> None:
        kind, _, self.model = guide.partition(":")
        words = kind.split("+")[1:]
        self.reduce: Reduction | None = next((word for word in REDUCTIONS if word in words), None)
        self.reading = next((word for word in words if word not in REDUCTIONS), "")

    @property
    def guide(self) -> str:
        """The guide that scores each step by itself."""
        return "+".join(["reward", *([self.reading] if self.reading else []), "last"]) + f":{self.model}"

    def prefixes(self, steps: Sequence[float]) -> list[float]:
        if self.reduce is not None:
            return [reduce_scores(steps[: k + 1], self.reduce) for k in range(len(steps))]
        if self.reading == "logprob":
            return [math.prod(steps[: k + 1]) for k in range(len(steps))]
        return prefix_scores(steps)


def score_prefixes(guide: str, folder: Path, device: str, dtype: str) -> StepScores:
    """What a judge says of each answer in a run directory up to each of its steps."""
    how = StepReading(guide)
    return [[how.prefixes(steps) for steps in group] for group in score_steps(how.guide, folder, device, dtype)]


def last_scores(prefixes: StepScores) -> AnswerScores:
    """The scores of whole answers."""
    return [[steps[-1] for steps in group] for group in prefixes]


def reading_cost(guide: str, folder: Path, device: str, dtype: str) -> dict[str, float]:
    """The tokens that a judge reads for one whole answer, and the FLOPs, on average."""
    scorer = load_scorer(guide, device, dtype)
    total, count = Cost(), 0

    async def read(trace: Trace) -> None:
        nonlocal total, count
        scores = await scorer(trace, trace.answers()[:COUNTED])
        total, count = sum((score.cost for score in scores), total), count + len(scores)

    async def read_all() -> None:
        for _, trace in read_traces(folder):
            await read(trace)

    event_loop.run(read_all())
    return {"tokens": round(total.scorer_tokens / count, 2), "flops": float(f"{total.flops / count:.4g}")}


def sampling_flops(folder: Path) -> float:
    """The FLOPs of sampling one answer, a part of the prompt's included."""
    traces = [trace for _, trace in read_traces(folder)]
    answers = sum(len(trace.answers()) for trace in traces)
    return float(f"{sum(trace.cost.flops for trace in traces) / answers:.4g}")


def measure_lines(
    traces: Sequence[Trace], check: ExactSteps, prefixes: Mapping[str, StepScores], verifier: str
) -> dict[str, Any]:
    """What each judge knows after so many lines, as AUROC within problems: whether the new line is right, of those with
    right lines before it, and whether the answer will be right. Also the shares of both."""
    lines = [[trace.text(i).splitlines(keepends=True) for i in trace.answers()] for trace in traces]
    right = [
        [check.count_right_lines(trace.problem, own) for own in group]
        for trace, group in zip(traces, lines, strict=True)
    ]
    ends = [[float(trace.score(i, verifier) or 0.0) for i in trace.answers()] for trace in traces]
    deepest = max(
        min(len(own), found + 1) for g, r in zip(lines, right, strict=True) for own, found in zip(g, r, strict=True)
    )

    def each(k: int, known: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        return [(p, a) for p, group in enumerate(lines) for a, own in enumerate(group) if len(own) > k and known(p, a)]

    def area(scores: StepScores, k: int, chosen: list[tuple[int, int]], labels: list[float]) -> float | None:
        usable = [len(scores[p][a]) > k for p, a in chosen]
        z = [scores[p][a][k] for (p, a), ok in zip(chosen, usable, strict=True) if ok]
        y = [label for label, ok in zip(labels, usable, strict=True) if ok]
        names = [p for (p, _), ok in zip(chosen, usable, strict=True) if ok]
        try:
            return round(auroc_within_problems(z, y, names, resamples=2).area, 4)
        except UsageError:  # all are right, or none
            return None

    out: dict[str, Any] = {"right": [], "line": {g: [] for g in prefixes}, "answer": {g: [] for g in prefixes}}
    for k in range(deepest):  # lines with right ones before them
        after_right = each(k, lambda p, a, k=k: right[p][a] >= k)  # type: ignore[misc]
        labels = [float(right[p][a] > k) for p, a in after_right]
        out["right"].append(round(float(np.mean(labels)), 4))
        every = each(k, lambda p, a: True)
        for guide, scores in prefixes.items():
            out["line"][guide].append(area(scores, k, after_right, labels))
            out["answer"][guide].append(area(scores, k, every, [ends[p][a] for p, a in every]))
    return out
