"""Read a run directory as attempts: the answers of its traces, graded by the verifier of its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ponder.errors import PonderError, UsageError
from ponder.measure.readers.attempts import (
    LOGPROB_COLUMN,
    LOGPROB_SUM_COLUMN,
    NO_VERDICT_NOTE,
    Attempts,
    ProblemAttempts,
)
from ponder.measure.readers.column_aliases import ColumnMap
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.registry import only_allowed
from ponder.runs import job_json, read_job, read_traces
from ponder.runs.trust import allowed_names
from ponder.tasks.reward_functions import REWARD_NAME
from ponder.types import Trace

# The task whose own reward functions are not loaded to know their name.
CUSTOM_TASK_TYPE = "ponder.tasks.datasets.custom:CustomTask"
AnswerReader = Callable[[str], str | None]


def is_run(path: Path) -> bool:
    return (path / "job.json").is_file()


def read_run(path: Path, columns: ColumnMap = ColumnMap()) -> Attempts:
    """`columns.correct` names the scorer to judge by; else it is the verifier of the run's task."""
    task = run_task(path)
    traces = list(run_traces(path))
    if not traces:
        raise UsageError(f"{path} holds no traces yet: let the run get further, or give another")
    scorer, notes = _judging_scorer(path, [t for _, t in traces], columns.correct, task)
    read = getattr(task_verifier(task), "extract_answer", None)
    groups = tuple(to_problem_attempts(problem, trace, scorer, read) for problem, trace in traces)
    if undecided := sum(g.undecided for g in groups):
        notes.append(f"{undecided} attempts {NO_VERDICT_NOTE}")
    if lost := [g for g in groups if g.error and not g.size]:
        notes.append(f"{len(lost)} problems failed and have no attempts ({lost[0].error})")
    if silent := sum(g.no_attempt_finished for g in groups):
        notes.append(f"{silent} problems have no attempt that came to an end, which counts as wrong")
    name = path.name
    if any(trace.oracle for _, trace in traces):
        notes.append("the gold answers guided its search: an oracle, not what it would reach without them")
        name += " (oracle)"
    return Attempts(name, groups, tuple(notes), _encoded_task(path))


def run_traces(path: Path) -> Iterator[tuple[str, Trace]]:
    """Every trace with a name of its own: a training run asks a problem again, which is then another group,
    named by its step, counted from 1.

    An evaluation that goes on asks again what failed: then the last trace counts.
    """
    traces = list(read_traces(path))
    stepwise = any(step for step, _ in traces)
    if not stepwise:
        last = {trace.problem.id: i for i, (_, trace) in enumerate(traces)}
        traces = [(s, t) for i, (s, t) in enumerate(traces) if not t.failed or last[t.problem.id] == i]
    seen: dict[str, int] = {}
    for step, trace in traces:
        problem = f"step {step + 1}: {trace.problem.id}" if stepwise else trace.problem.id
        seen[problem] = seen.get(problem, 0) + 1
        if seen[problem] > 1 and not stepwise:
            raise UsageError(f"{path} has the problem {problem!r} twice: it was written by two processes; run it again")
        yield (problem if seen[problem] == 1 else f"{problem} ({seen[problem]})"), trace


def run_task(path: Path) -> Any:
    """The task of a run; None where it cannot be made here: a package is missing, or it is code that is neither
    ponder's own nor trusted."""
    encoded = _encoded_task(path)
    try:
        return None if encoded is None else job_json.decode(encoded)
    except PonderError:
        return None


def run_verifier(path: Path, task: Any) -> str | None:
    """The name of the scorer whose verdict counts; of reward functions it is known without loading them."""
    if task is not None:
        name = getattr(task_verifier(task), "name", None)
        return name if isinstance(name, str) else None
    encoded = _encoded_task(path)
    return REWARD_NAME if isinstance(encoded, dict) and encoded.get("is") == CUSTOM_TASK_TYPE else None


def task_verifier(task: Any) -> Any:
    """The verifier of a run's task; None where it has none, or where it needs code that is not trusted."""
    try:
        with only_allowed(allowed_names()):
            return getattr(task, "verifier", None)
    except PonderError:
        return None


def _encoded_task(path: Path) -> Any:
    job = read_job(path)
    return job.get("task") if isinstance(job, dict) else None


def _judging_scorer(path: Path, traces: list[Trace], scorer: str, task: Any) -> tuple[str, list[str]]:
    names = sorted({n for t in traces for i in t.answers() for n in t.steps[i].scores})
    if scorer:
        if scorer not in names:
            raise UsageError(f"{path} has no scores of {scorer!r}; it has {', '.join(names) or 'none'}")
        return scorer, [f"judged by {scorer}"]
    verifier = run_verifier(path, task)
    if verifier is None and len(names) == 1:
        verifier = names[0]
    if verifier is None:
        raise UsageError(
            f"{path} does not say who judges: its task cannot be loaded here. Name a scorer with --column correct=NAME"
            f" (it has {', '.join(names) or 'none'}), or give --trust where its task is code of your own"
        )
    return verifier, [f"judged by {verifier}"]


def to_problem_attempts(problem: str, trace: Trace, scorer: str, read: AnswerReader | None) -> ProblemAttempts:
    """The answers of one trace."""
    leaves = answer_steps(trace)
    texts = tuple(trace.text(i) for i in leaves)
    names = sorted({n for i in leaves for n in trace.steps[i].scores})
    scores = {n: tuple(trace.score(i, n) for i in leaves) for n in names}
    return ProblemAttempts(
        problem,
        correct=tuple(trace.score(i, scorer) for i in leaves),
        answers=tuple(read(t) for t in texts) if read is not None else None,
        scores={
            **scores,
            LOGPROB_COLUMN: tuple(mean_logprob(trace, i) for i in leaves),
            LOGPROB_SUM_COLUMN: tuple(sum_logprob(trace, i) for i in leaves),
        },
        tokens=tuple(sampled_token_count(trace, i) for i in leaves),
        texts=texts,
        chosen=None if trace.chosen is None else leaves.index(trace.chosen),
        cost=trace.cost,
        question=trace.problem.question,
        gold=trace.problem.answer,
        error=trace.failed,
        no_attempt_finished=not leaves and not trace.failed,
    )


def answer_steps(trace: Trace) -> list[int]:
    """Every answer; also the step that was chosen, where the model went on from it or was cut off there."""
    leaves = trace.answers()
    return leaves if trace.chosen is None or trace.chosen in leaves else [*leaves, trace.chosen]


def sampled_token_count(trace: Trace, leaf: int) -> int:
    """Tokens that the policy wrote on the way to this answer."""
    return sum(len(trace.steps[i].token_ids) for i in trace.path(leaf) if trace.steps[i].sampled)
