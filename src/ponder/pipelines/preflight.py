"""Proofs that a run is right, before it spends anything: on a few short samples of its own, in seconds.

Nothing of the run changes: no step is taken, and the sampler's stream begins anew with each of the run's steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ponder.errors import ModelError
from ponder.models.native import Native
from ponder.pipelines import checks
from ponder.pipelines.checks import Check
from ponder.pipelines.sft import PREFERRED, FineTune, answer, end_token, given, in_one
from ponder.pipelines.solve import pick
from ponder.pipelines.witness import LONGEST, PROBLEMS, Evidence, Witness, draw, ended, gather, shortest
from ponder.train.learner import Learner
from ponder.types import Problem, Sampling

if TYPE_CHECKING:
    from ponder.pipelines.rl import RL


async def preflight(job: RL, policy: Native, learner: Learner, critic: Learner | None = None) -> list[Check]:
    """Raises where a check fails."""
    found, _ = await examine(job, policy, learner, critic)
    return checks.all_hold(found)


async def examine(
    job: RL, policy: Native, learner: Learner, critic: Learner | None = None
) -> tuple[list[Check], Evidence | None]:
    """All checks, and what they looked at; only one where the model cannot even be sampled, or nothing is learned."""
    sampling: Sampling = getattr(job.strategy, "sampling", Sampling(temperature=job.temperature))
    try:
        e = await _samples(job, policy, learner, sampling)
    except ModelError as why:
        return [Check("finite", False, str(why), checks.FINITE)], None
    if not e.credited():
        return [checks.credit(e)], None
    own = job.teacher is None and e.witness.reference is not None
    stops = bool(sampling.stop or sampling.stop_tokens)
    found = [
        checks.probabilities(e, sampling.truncated), checks.invariance(e), checks.kl(e, own), checks.prompt(e),
        checks.end(e, stops), checks.template(e), await checks.grader(e, job.task), checks.finite(e),
        checks.gradient(learner, e.traces),
    ]  # fmt: skip
    if critic is not None:
        found.append(checks.gradient(critic, e.traces, "critic's gradient"))
    return found, e


def examine_given(
    job: FineTune, problems: Sequence[Problem], policy: Native, learner: Learner
) -> tuple[list[Check], Evidence]:
    """The checks that apply where answers are given and nothing is sampled."""
    chosen = shortest(policy, pick(problems, job.seed, 0, 8 * PROBLEMS))
    traces = [given(policy, p, in_one(answer(job.data, p))) for p in chosen]
    for trace in traces:
        for step in trace.steps[1:]:  # the beginning and the end are enough
            step.token_ids = np.concatenate([step.token_ids[: LONGEST - 1], step.token_ids[LONGEST - 1 :][-1:]])
            step.logprobs = None if step.logprobs is None else step.logprobs[: len(step.token_ids)]  # all unknown
    Witness(learner).note_reference(traces)
    job.objective.credit(traces, PREFERRED, {})
    e = gather(policy, learner, traces, {})
    found = [checks.invariance(e), checks.prompt(e), checks.end(e, False), checks.template(e), checks.finite(e)]
    return [*found, checks.gradient(learner, traces)], e


async def _samples(job: RL, policy: Native, learner: Learner, sampling: Sampling) -> Evidence:
    tokenizer, scorer = policy.tokenizer, job.task.verifier.name
    policy.stream(job.seed)
    problems = shortest(policy, pick(job.task.train, job.seed, 0, 8 * PROBLEMS))
    drawn = await draw(policy, problems, sampling, job.strategy)
    real = ended(drawn, end_token(tokenizer) if tokenizer.eos else None, scorer)
    traces = [trace for trace, _ in drawn]
    Witness(learner).note_reference(traces)
    job.objective.credit(traces, scorer, {})
    return gather(policy, learner, traces, real)
