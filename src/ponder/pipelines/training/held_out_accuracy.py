"""Accuracy on held-out problems while a model trains: greedy, and of several samples pass@1 and the majority's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.models.base_policy import BasePolicy
from ponder.pipelines.training.shared_rollouts import solve_over_ranks
from ponder.protocols import Strategy, Task
from ponder.reason.strategies import Chain, Samples
from ponder.types import Problem, Sampling

ACCURACY = "eval/accuracy"  # of the greedy answer
START_ACCURACY = "eval/accuracy_at_start"  # the same before the first step
_SEED_STREAM = 1  # apart from that of the rollouts


async def held_out_accuracy(
    task: Task, policy: BasePolicy, sampling: Sampling, limit: int, samples: int, seed: int, step: int
) -> dict[str, float]:
    """Accuracy on the first `limit` held-out problems. A function of seed and step, so that a resumed run repeats it.

    A problem without a verdict counts as not right.
    """
    problems = list(task.test[:limit])
    out = {ACCURACY: await _accuracy(task, policy, problems, Chain(replace(sampling, temperature=0.0)))}
    if samples:
        policy.reseed(seed, step, _SEED_STREAM)
        traces = await solve_over_ranks(problems, Samples(samples, sampling), policy, task.verifier)
        report = evaluation_report(traces, task.verifier.name, getattr(task.verifier, "extract_answer", None))
        out["eval/pass@1"] = report.accuracy.mean
        if report.majority is not None:
            out[f"eval/cons@{samples}"] = report.majority.mean
    return out


async def _accuracy(task: Task, policy: BasePolicy, problems: Sequence[Problem], strategy: Strategy) -> float:
    traces = await solve_over_ranks(problems, strategy, policy, task.verifier)
    return evaluation_report(traces, task.verifier.name, None).accuracy.mean
