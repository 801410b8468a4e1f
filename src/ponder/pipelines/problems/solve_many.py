"""Ask a policy about many problems at once, in a run: each trace is kept as it comes, and none is asked for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ponder.errors import Interrupted, ModelError
from ponder.pipelines.solve import try_solve
from ponder.protocols import Policy, Progress, Scorer, Strategy
from ponder.reason.harvest.harvested_row import problem_key
from ponder.runs import Run, read_traces
from ponder.types import Problem, Trace

MAX_EARLY_FAILURES = 16  # failures from the start on that end the work: it is the settings, not the problems


class SolveMany:
    """`batch` problems are in flight. An attempt that failed is made again when the run goes on."""

    def __init__(self, run: Run, watch: Progress, batch: int) -> None:
        self.run, self.watch, self.batch = run, watch, batch
        self.done = {_attempt_key(step, t.problem): t for step, t in read_traces(run.folder) if not t.failed}

    async def __call__(
        self,
        step: int,
        phase: str,
        problems: Sequence[Problem],
        strategy: Strategy,
        policy: Policy,
        judge: Scorer | None = None,
    ) -> list[Trace]:
        """One trace each, in order, kept under this step of the run. `phase`: what is done, as a verb."""
        self.watch.phase(phase)
        gate = asyncio.Semaphore(self.batch)

        async def one(problem: Problem) -> Trace:
            async with gate:
                return await try_solve(problem, strategy, policy, judge)

        left = [p for p in problems if _attempt_key(step, p) not in self.done]
        tasks = [asyncio.create_task(one(p)) for p in left]
        failed = 0
        try:
            for number, coming in enumerate(asyncio.as_completed(tasks), 1):
                trace = await coming
                self.run.write_traces(step, [trace])
                self.done[_attempt_key(step, trace.problem)] = trace
                failed += bool(trace.failed)
                if failed == number == min(len(left), MAX_EARLY_FAILURES):
                    raise ModelError(f"every attempt to {phase} fails, the last one because: {trace.failed}")
                self.watch.step(len(problems) - len(left) + number, len(problems), {}, [trace])
        except Interrupted:
            raise Interrupted(f"stopped at a problem to {phase}; the same command goes on") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [self.done[_attempt_key(step, p)] for p in problems]


def _attempt_key(step: int, problem: Problem) -> tuple[int, str, str]:
    """A file may have other problems now under the ids that it had when the run began."""
    return step, problem.id, problem_key(problem)
