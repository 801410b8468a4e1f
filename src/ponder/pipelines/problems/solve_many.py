"""Solve many problems in a run: several at a time, each trace written when it arrives, none solved twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any

from ponder.errors import Interrupted, ModelError
from ponder.protocols import Progress
from ponder.runs import Run, read_traces
from ponder.runs.problem_changes import check_problems_unchanged
from ponder.types import Problem, Trace, problem_key

REPORT_SECONDS = 15.0  # between two reports of progress, where traces come slowly
MAX_EARLY_FAILURES = 16  # so many failures before the first success end the job: the settings are wrong

Work = Callable[[Problem], Coroutine[Any, Any, Trace]]
Metrics = Callable[[Collection[Trace]], Mapping[str, float]]  # of all traces so far


async def solve_many(
    problems: Sequence[Problem],
    work: Work,
    run: Run,
    progress: Progress,
    *,
    max_concurrency: int,
    report_every: int = 1,
    step: int = 0,
    phase: str = "solve",
    fixed_problems: bool = True,
    retry_failed: bool = True,
    metrics: Metrics | None = None,
) -> list[Trace]:
    """One trace for each problem, in order: the ones that the run holds under this step, and new ones from `work`.

    `phase` says what is done, as a verb. `report_every`: traces between two reports of progress, the second of which
    follows with the first trace after REPORT_SECONDS. `fixed_problems`: the run refuses to resume where one of its
    problems changed; otherwise it solves the changed ones. `retry_failed`: a trace that failed is no result, so it is
    solved again when the run resumes.
    """
    run.flush()
    stored = [trace for at, trace in read_traces(run.folder) if at == step]
    if fixed_problems:
        check_problems_unchanged(run, stored, problems)
    keys = [problem_key(problem) for problem in problems]
    results = {problem_key(trace.problem): trace for trace in stored if not (retry_failed and trace.failed)}
    done = {key: results[key] for key in keys if key in results}
    left = [problem for problem, key in zip(problems, keys, strict=True) if key not in done]
    resumed, new, reported, reported_at = bool(done), list[Trace](), 0, time.monotonic()
    progress.phase(phase)
    try:
        async with aclosing(_in_completion_order(left, work, max_concurrency)) as arriving:
            async for trace in arriving:
                run.write_traces(step, [trace])
                _release_pictures(trace)
                done[problem_key(trace.problem)] = trace
                new.append(trace)
                early = retry_failed and not resumed and len(new) == min(len(left), MAX_EARLY_FAILURES)
                if early and all(t.failed for t in new):
                    raise ModelError(f"every attempt to {phase} fails, the last one because: {trace.failed}")
                is_due = len(new) - reported >= report_every or time.monotonic() - reported_at > REPORT_SECONDS
                if is_due or len(new) == len(left):
                    values = {} if metrics is None else metrics(done.values())
                    progress.step(len(done), len(problems), values, new[reported:])
                    reported, reported_at = len(new), time.monotonic()
    except Interrupted:
        raise Interrupted(f"stopped after {len(done)} of {len(problems)} problems; the same command goes on") from None
    return [done[key] for key in keys]


def _release_pictures(trace: Trace) -> None:
    """Let the pictures of a finished trace leave the memory: an encoded prompt keeps its own there, a copy does not."""
    for step in trace.steps:
        if step.parent is None:
            step.token_ids = step.token_ids.copy()


async def _in_completion_order(
    problems: Sequence[Problem], work: Work, max_concurrency: int
) -> AsyncGenerator[Trace, None]:
    """Each trace as soon as it is there. A slow problem holds up no other; the rest is cancelled when one raises."""
    waiting, finished, running = iter(problems), list[asyncio.Task[Trace]](), list[asyncio.Task[Trace]]()
    try:
        while True:
            running += [asyncio.create_task(work(p)) for p in islice(waiting, max_concurrency - len(running))]
            if not running:
                return
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            finished, running = [t for t in running if t.done()], [t for t in running if not t.done()]
            for task in finished:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        # A stop fails many at once; asyncio would log each error that nobody asks for, with its traceback.
        await asyncio.gather(*finished, *running, return_exceptions=True)
