"""Sampling goes on while the learner learns: asynchronous RL with a bound on how old samples may be.

The batch of step b begins when version b - a of the weights is published. a is at most S, the staleness, and as small
as keeps the learner busy (admission_pace.py). So at version v the batches of steps v to v + a are sampled at the same
time, and no token is older than S versions when it is learned from: its age is b less the version that it was sampled
with. Batches are paced before they begin, and so nothing that was sampled is thrown away. When new weights come,
answers in flight go on with them; their log-probabilities stay those of the weights that sampled each token, which a
rollout correction needs. The learner does not wait while a sampler in another process loads them: it has a batch to go
on with.

Nothing of this is saved. A run that resumes at version v begins the batches of steps v to v + 1 again.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from ponder.errors import RunError
from ponder.models.base_policy import SeededPolicy
from ponder.pipelines.problems.curriculum import Curriculum, PassRateHistory, Uniform
from ponder.pipelines.solve import solve_all
from ponder.pipelines.training.admission_pace import AdmissionPace
from ponder.pipelines.training.session import TrainingState
from ponder.pipelines.training.shared_rollouts import exchange_traces, own_part
from ponder.protocols import Policy, Scorer, Strategy, Task
from ponder.train.distributed import current_group
from ponder.types import Problem, Trace

T = TypeVar("T")


class AsyncJob(Protocol):
    """The settings of a training job that are read here."""

    @property
    def task(self) -> Task: ...
    @property
    def curriculum(self) -> Curriculum: ...
    @property
    def rollout_strategy(self) -> Strategy: ...
    @property
    def problems_per_step(self) -> int: ...
    @property
    def staleness(self) -> int: ...
    @property
    def batches_ahead(self) -> int | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Sampler(Protocol):
    """A policy with weights of its own."""

    async def begin_publish(self, version: int) -> asyncio.Task[None]:
        """The learner's weights, as they are now, are this version. The task ends when the sampler has it."""
        ...


@dataclass(slots=True)
class BatchAhead:
    """The batch of a coming step."""

    chosen: list[int]  # problems, by index
    problems: list[Problem]
    own_traces: asyncio.Task[list[Trace]]  # of this rank's part of them


class SamplingAhead:
    """A context manager. `take` waits for the batch of the step that is next. After that step, `publish` gives the
    sampler its weights; once it has them, the batches that they allow begin."""

    def __init__(self, job: AsyncJob, sampler: Policy, state: TrainingState, verifier: Scorer | None = None) -> None:
        self.job, self.sampler = job, sampler
        self._verifier = job.task.verifier if verifier is None else verifier  # who grades
        self._cursor = state.cursor
        self._batches: dict[int, BatchAhead] = {}
        self._begun = state.step  # steps whose batch has begun, or is done
        self._pace = AdmissionPace(job.staleness, current_group()) if job.batches_ahead is None else None
        self._waited, self._next_is_ready = 0.0, False  # of the batch that was taken last
        self._learner_thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._publication: asyncio.Task[None] | None = None  # of the newest version
        self.begin_batches(state)

    async def __aenter__(self) -> SamplingAhead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        tasks: list[asyncio.Task[Any]] = [batch.own_traces for batch in self._batches.values()]
        if self._publication is not None:
            if kind is None:
                await self._publication
            tasks.append(self._publication)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._learner_thread.shutdown()

    async def publish(self, sampler: Sampler, state: TrainingState) -> None:
        """Give the sampler version `state.step` of the weights. Returns when they are copied: the learner may change
        them then. The sampler loads them meanwhile, and the batches that they allow begin after that."""
        if self._publication is not None:
            await self._publication  # of the version before, without whose batches there is nothing to learn from
        loading = await sampler.begin_publish(state.step)
        last = state.step + self.batches_ahead  # now, when it is the same on every rank

        async def begin_when_loaded() -> None:
            await loading
            self.begin_batches(state, last)

        self._publication = asyncio.create_task(begin_when_loaded())

    @property
    def batches_ahead(self) -> int:
        """How many versions before its step a batch begins now."""
        return self._pace.ahead if self._pace is not None else self.job.batches_ahead or 0

    def begin_batches(self, state: TrainingState, last: int | None = None) -> None:
        """Begin the batches up to that of step `last`, at most `staleness` after version `state.step` of the weights.
        The sampler has that version, or a newer one."""
        job = self.job
        last = state.step + self.batches_ahead if last is None else last
        train = job.task.train  # once: a task may make the list anew each time
        history = PassRateHistory.from_json(state.curriculum_state) if state.curriculum_state else PassRateHistory()
        for step in range(self._begun, min(last + 1, job.steps)):
            chosen = job.curriculum.choose(train, job.seed, self._cursor, job.problems_per_step, history)
            self._cursor += len(chosen)
            problems = [train[i] for i in chosen]
            policy = SeededPolicy(self.sampler, job.seed, step)
            work = solve_all(own_part(problems), job.rollout_strategy, policy, self._verifier)
            self._batches[step] = BatchAhead(chosen, problems, asyncio.create_task(work))
            self._begun = step + 1

    def ready_batches(self) -> int:
        """Batches that are sampled, and wait for the learner."""
        return sum(batch.own_traces.done() for batch in self._batches.values())

    async def take(self, state: TrainingState) -> list[Trace]:
        """The traces of step `state.step`. The state gets what a run that resumes after this step begins from."""
        verifier = self._verifier
        began = time.perf_counter()
        batch = self._batches.pop(state.step)
        traces = await exchange_traces(batch.problems, batch.own_traces, self.sampler, verifier)
        following = self._batches.get(state.step + 1)
        self._waited = time.perf_counter() - began
        self._next_is_ready = following is not None and following.own_traces.done()
        oldest = max(token_ages(traces, state.step), default=0)
        if not 0 <= oldest <= self.job.staleness:
            raise RunError(
                f"a token of step {state.step} is {oldest} versions old; at most {self.job.staleness} may be"
            )
        state.cursor += len(batch.chosen)
        if not isinstance(self.job.curriculum, Uniform):  # which does not read it
            history = PassRateHistory.from_json(state.curriculum_state) if state.curriculum_state else PassRateHistory()
            for i, trace in zip(batch.chosen, traces, strict=True):
                history.add(i, [trace.score(leaf, verifier.name) for leaf in trace.answers()])
            state.curriculum_state = history.to_json()
        return traces

    async def run_beside(self, work: Callable[[], T]) -> T:
        """Do the learner's work in a thread of its own, so that this one goes on with sampling and grading. Work that
        has begun is finished, and what would cancel it comes after it."""
        threads = torch.get_num_threads()
        gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> T:
            torch.set_num_threads(threads)  # a new thread has torch's defaults
            if gpu is not None:
                torch.cuda.set_device(gpu)
            return work()

        began, loop = time.perf_counter(), asyncio.get_running_loop()
        future = loop.run_in_executor(self._learner_thread, contextvars.copy_context().run, run)
        cancelled = False
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                cancelled = True
        current = asyncio.current_task()
        if self._pace is not None:
            self._pace.record(self._waited, time.perf_counter() - began, self._next_is_ready)
        if cancelled and current is not None:
            current.cancel()
        return future.result()


def token_ages(traces: Sequence[Trace], step: int) -> list[int]:
    """The age of each sampled token of a batch that is learned from at this step."""
    ages: list[int] = []
    for trace in traces:
        for s in trace.steps:
            if s.sampled:
                versions = s.notes.get("version")
                ages += (
                    [step - s.version] * len(s.token_ids)
                    if versions is None
                    else (step - versions).astype(int).tolist()
                )
    return ages


def age_metrics(traces: Sequence[Trace], step: int) -> dict[str, float]:
    """How old the samples are, in versions of the weights, and the share of answers that several versions wrote."""
    ages = token_ages(traces, step)
    written = [s for t in traces for s in t.steps if s.sampled and len(s.token_ids)]
    return {
        "staleness/mean": float(np.mean(ages)) if ages else 0.0,
        "staleness/max": float(max(ages, default=0)),
        "staleness/mixed": sum("version" in s.notes for s in written) / max(1, len(written)),
    }
