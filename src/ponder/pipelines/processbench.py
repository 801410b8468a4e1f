"""A process reward model on ProcessBench: does it find the first wrong step, and none where there is none?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ponder import event_loop
from ponder.errors import TaskError, UsageError
from ponder.measure.statistics.verifier_metrics import FirstErrorScores, first_wrong_step, score_first_errors
from ponder.models.reward_models import PRM, ImplicitRewardModel
from ponder.pipelines.rewards.labelled_traces import tokenize_trace
from ponder.tasks.step_labels.processbench_labels import FIRST_WRONG_TAG
from ponder.types import Trace

CANDIDATE_THRESHOLDS = tuple(i / 100 for i in range(1, 100))


UNREAD_LABEL = -2  # for a solution that is longer than the context: neither an error nor none


@dataclass(frozen=True, slots=True)
class ProcessBenchResult:
    """Scores at a threshold, and at the best one for these solutions, which is optimistic: it was chosen on them."""

    result: FirstErrorScores
    threshold: float
    best_result: FirstErrorScores
    best_threshold: float
    num_unread: int  # solutions that are longer than the context, which count as wrong


def process_bench(
    reward_model: PRM | ImplicitRewardModel,
    traces: Sequence[Trace],
    threshold: float = 0.5,
    watch: Callable[[int], None] = lambda done: None,
) -> ProcessBenchResult:
    """Score solutions as `tasks.step_labels.processbench_labels` reads them. `watch` is called with how many are
    done."""
    if not 0 < threshold < 1:
        raise UsageError(f"the threshold is {threshold}; it is a probability between 0 and 1")
    if isinstance(reward_model, PRM) and reward_model.granularity == "line":
        raise UsageError("ProcessBench has steps of its own: read them per step")
    if reward_model.reader.head.logprob_weights:
        raise UsageError(
            "this reward model reads the log-probabilities that an answer was sampled with, and solutions of"
            " ProcessBench have none: give one that was trained without reads_logprobs"
        )
    policy = reward_model.reader.engine_policy
    read: list[list[float]] = []
    labels: list[int] = []
    unread: list[int] = []  # labels of solutions that are too long
    for begin in range(0, len(traces), 32):
        part = []
        for trace in traces[begin : begin + 32]:
            try:
                part.append(tokenize_trace(trace, policy))
            except TaskError:  # longer than the model's context
                unread.append(int(trace.problem.tags[FIRST_WRONG_TAG]))
        read += event_loop.run(_step_probabilities(reward_model, part))
        labels += [int(t.problem.tags[FIRST_WRONG_TAG]) for t in part]
        watch(len(read) + len(unread))
    if not read:
        raise TaskError(
            f"none of {len(traces)} solutions fits into the model's context: take a model with a longer one"
        )

    def at(limit: float) -> FirstErrorScores:
        return score_first_errors(
            [*(first_wrong_step(steps, limit) for steps in read), *[UNREAD_LABEL] * len(unread)], [*labels, *unread]
        )

    best = max(CANDIDATE_THRESHOLDS, key=lambda limit: (at(limit).f1, -abs(limit - 0.5)))
    return ProcessBenchResult(at(threshold), threshold, at(best), best, len(unread))


def evenly_spaced(traces: Sequence[Trace], limit: int | None) -> Sequence[Trace]:
    """At most `limit` solutions from all over the file, which lists those with an error first."""
    if limit is None or limit >= len(traces):
        return traces
    return [traces[i * len(traces) // limit] for i in range(limit)]


async def _step_probabilities(reward_model: PRM | ImplicitRewardModel, traces: Sequence[Trace]) -> list[list[float]]:
    """The probability of each step of each solution; a solution of one step has one, however many lines. An implicit
    reward model's is of the step's own tokens."""
    if isinstance(reward_model, ImplicitRewardModel):
        read = await asyncio.gather(*(reward_model.step_scores(t, len(t.steps) - 1) for t in traces))
        return [steps for steps, _ in read]
    ends = [[len(t.token_ids(i)) - 1 for i in range(1, len(t.steps))] for t in traces]
    scores = await asyncio.gather(
        *(reward_model.reader(t.token_ids(len(t.steps) - 1), at) for t, at in zip(traces, ends, strict=True))
    )
    return [steps for steps, _ in scores]
