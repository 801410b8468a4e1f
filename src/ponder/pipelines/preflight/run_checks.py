"""Preflight: runs the checks of a training job on a few short samples, in seconds, before it spends anything.

Nothing of the run changes: no step is taken, and every step of the run seeds the sampler anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ponder.errors import ModelError
from ponder.models.chat_templates import ChatTemplateError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import answer_end_token
from ponder.pipelines.preflight import checks
from ponder.pipelines.preflight.checks import Check
from ponder.pipelines.preflight.gradient_probe import (
    MAX_COMPLETION_TOKENS,
    NUM_PROBLEMS,
    PreflightData,
    add_ended_answers,
    draw_short_samples,
    gather_preflight_data,
    shortest_prompts,
)
from ponder.pipelines.preflight.picture_check import check_pictures
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.sft import PREFERENCE_SCORER, FineTune, target_traces
from ponder.train.learner import Learner
from ponder.types import Problem, Sampling, Trace

if TYPE_CHECKING:
    from ponder.pipelines.rl import RL


class PreflightReport(NamedTuple):
    learner: Learner
    checks: list[Check]
    data: PreflightData | None  # what they were made on; None if sampling failed or nothing has a gradient


async def run_preflight(job: RL, policy: PonderPolicy, learner: Learner, critic: Learner | None = None) -> list[Check]:
    """Run all checks. Raises PreflightError if one fails."""
    results, _ = await preflight_rl(job, policy, learner, critic)
    return checks.raise_if_failed(results)


async def preflight_rl(
    job: RL, policy: PonderPolicy, learner: Learner, critic: Learner | None = None
) -> tuple[list[Check], PreflightData | None]:
    """The results of all checks, and their data; a single failed one if sampling fails, or nothing has a gradient."""
    sampling = job.rollout_sampling
    try:
        e = await _gather_samples(job, policy, learner, sampling)
    except ChatTemplateError:  # says itself what is wrong: nothing was computed yet
        raise
    except ModelError as why:
        return [Check("finite", False, str(why), checks.FINITE_ADVICE)], None
    if not e.credited():
        return [checks.check_credit(e)], None
    own = job.teacher is None and e.learner.reference is not None
    stops = bool(sampling.stop or sampling.stop_token_ids)
    results = [
        checks.check_logprobs(e, sampling.renormalises), checks.check_gradient_invariance(e),
        checks.check_kl_term(e, own), checks.check_prompt_mask(e),
        checks.check_eos(e, stops), checks.check_template(e), await checks.check_verifier(e, job.task),
        checks.check_finite(e),
        checks.check_gradient(learner, e.traces), *check_pictures(e),
    ]  # fmt: skip
    if critic is not None:
        results.append(checks.check_gradient(critic, e.traces, "critic's gradient"))
    return results, e


def preflight_sft(
    job: FineTune, problems: Sequence[Problem], policy: PonderPolicy, learner: Learner
) -> tuple[list[Check], PreflightData]:
    """The checks of a fine-tuning job, where answers are given and nothing is sampled."""
    chosen = shortest_prompts(policy, shuffled_problems(problems, job.seed, 0, 8 * NUM_PROBLEMS))
    traces = [first_turns(trace) for trace in target_traces(job, policy, chosen, single_steps=True)]
    for trace in traces:
        for step in trace.steps[1:]:  # the beginning and the end suffice
            step.token_ids = np.concatenate(
                [step.token_ids[: MAX_COMPLETION_TOKENS - 1], step.token_ids[MAX_COMPLETION_TOKENS - 1 :][-1:]]
            )
            step.logprobs = None if step.logprobs is None else step.logprobs[: len(step.token_ids)]  # all unknown
    with learner.unchanged():
        learner.write_reference_logprobs(traces)
    job.algorithm.credit(traces, PREFERENCE_SCORER, {})
    e = gather_preflight_data(policy, learner, traces, {})
    results = [
        checks.check_gradient_invariance(e),
        checks.check_prompt_mask(e),
        checks.check_eos(e, False),
        checks.check_template(e),
        checks.check_finite(e),
        *check_pictures(e),
    ]
    return [*results, checks.check_gradient(learner, traces)], e


def first_turns(trace: Trace) -> Trace:
    """The trace up to where an environment answers."""
    steps = [replace(s, stop="eos") for s in trace.steps[1:] if s.parent == 0]
    return trace if all(s.parent in (None, 0) for s in trace.steps) else Trace(trace.problem, [trace.steps[0], *steps])


async def _gather_samples(job: RL, policy: PonderPolicy, learner: Learner, sampling: Sampling) -> PreflightData:
    tokenizer, scorer = policy.tokenizer, job.task.verifier.name
    policy.reseed(job.seed)
    problems = shortest_prompts(policy, shuffled_problems(job.task.train, job.seed, 0, 8 * NUM_PROBLEMS))
    samples = await draw_short_samples(policy, problems, sampling, job.rollout_strategy)
    sampled_lengths = add_ended_answers(samples, answer_end_token(tokenizer) if tokenizer.eos else None, scorer)
    traces = [trace for trace, _ in samples]
    with learner.unchanged():
        learner.write_reference_logprobs(traces)
    job.algorithm.credit(traces, scorer, {})
    return gather_preflight_data(policy, learner, traces, sampled_lengths)
