"""The one unit of work: solve(problem) -> Trace. Training, evaluation and answering differ in who consumes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ponder import settings
from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.models.guides import default_guide, load_guide
from ponder.pipelines.frozen_opponent import with_opponent
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.budget import Budget, BudgetedPolicy, BudgetLedger
from ponder.reason.episodes import EnvironmentFailed, Episodes
from ponder.reason.named_strategies import find_strategy
from ponder.reason.operators import evaluate
from ponder.reason.operators.auto_cut import is_cut_probe
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace


async def solve(
    problem: Problem,
    strategy: Strategy | str,
    policy: Policy,
    verifier: Scorer | None = None,
    *,
    guide: Scorer | None = None,
    budget: Budget | BudgetLedger | None = None,
    oracle: bool = False,
    trace: Trace | None = None,
) -> Trace:
    """Run the strategy on a problem, then grade the answers. `trace`: continue an earlier one.

    A strategy may be named, as in `ask`: it then has its own settings, and the guide that it brings or needs.
    The strategy and its guide do not see the gold answer, except with `oracle`: the trace then says so.
    """
    if isinstance(strategy, str):
        strategy, own_guide = find_strategy(strategy)
        guide = guide if guide is not None else load_guide(own_guide or default_guide(strategy), policy)
    if verifier is not None and guide is not None and guide.name == verifier.name and not oracle:
        raise UsageError(
            f"guide and verifier both score as {verifier.name!r}, and one would be taken for the other: "
            "rename the guide"
        )
    settings.check_finite(strategy)
    begin_episodes: Callable[[Problem], Episodes] | None = getattr(with_opponent(verifier, policy), "episodes", None)
    episodes = None if begin_episodes is None else begin_episodes(problem)
    if trace is None:
        trace = prompt_trace(problem, ids([]) if episodes else policy.encode(problem.messages))
    asked = problem
    if episodes is not None:
        try:
            asked = replace(problem, messages=await episodes.begin())
        except EnvironmentFailed as failure:
            return failed_episode(trace, verifier, failure)
        if len(trace.steps) == 1:
            trace.steps[0] = Step(None, asked.question, episodes.encode(asked.messages, policy))
        trace.episodes = episodes
    trace.oracle, trace.budget_exhausted, trace.failed = trace.oracle or (oracle and guide is not None), False, ""
    # Tags may hold a worked solution.
    trace.problem = asked if trace.oracle else replace(asked, answer=None, tags={})
    trace.extract_answer = getattr(verifier, "extract_answer", None)
    budgeted = policy
    if budget is not None:
        budgeted = BudgetedPolicy(
            policy, budget if isinstance(budget, BudgetLedger) else BudgetLedger(budget, trace.cost)
        )
    try:
        await strategy(trace, budgeted, guide)
    except BudgetExhausted:  # before the strategy began
        trace.budget_exhausted = True
    finally:
        trace.problem, trace.episodes = problem, None
        if episodes is not None:
            await episodes.close()
        trace.budget_exhausted |= isinstance(budgeted, BudgetedPolicy) and budgeted.was_limited
    if trace.chosen is None and not (trace.failed or trace.budget_exhausted or trace.answers()):
        trace.failed = no_answer_reason(trace)
    if verifier is not None:
        await evaluate(trace, unjudged_answers(trace, verifier.name), verifier)
    return trace


def failed_episode(trace: Trace, verifier: Scorer | None, failure: EnvironmentFailed) -> Trace:
    """A trace whose environment did not begin: undecided, for that reason."""
    trace.failed = str(failure)
    scores = {} if verifier is None else {verifier.name: Score(None, trace.failed)}
    trace.add(Step(0, "", ids([]), last=True, scores=scores))
    return trace


def no_answer_reason(trace: Trace) -> str:
    """Why there is no answer: the most frequent reason why branches were pruned."""
    reasons = Counter(s.pruned for s in trace.steps if s.pruned and not is_cut_probe(s))
    return "no branch came to an answer" + "".join(f": {reason}" for reason, _ in reasons.most_common(1))


def unjudged_answers(trace: Trace, verifier_name: str) -> list[int]:
    """Every answer, and the chosen step, that has no score by this verifier yet."""
    steps = trace.answers()
    if trace.chosen is not None and trace.chosen not in steps:
        steps.append(trace.chosen)
    return [i for i in steps if verifier_name not in trace.steps[i].scores]


async def try_solve(
    problem: Problem,
    strategy: Strategy,
    policy: Policy,
    verifier: Scorer | None = None,
    *,
    guide: Scorer | None = None,
    budget: Budget | BudgetLedger | None = None,
    oracle: bool = False,
) -> Trace:
    """Like `solve`, but an error that ends the attempt is stored on the trace, as the reason why it failed."""
    trace = prompt_trace(problem, ids([]))
    try:
        trace.steps[0].token_ids = policy.encode(problem.messages)
        return await solve(problem, strategy, policy, verifier, guide=guide, budget=budget, oracle=oracle, trace=trace)
    except Interrupted:
        raise
    except PonderError as error:
        trace.failed = str(error)
        return trace


async def solve_all(
    problems: Sequence[Problem], strategy: Strategy, policy: Policy, verifier: Scorer | None = None, **more: Any
) -> list[Trace]:
    """Solve all problems concurrently; the policy batches their requests. The first failure cancels the rest.
    `more`: as for `solve`."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(solve(p, strategy, policy, verifier, **more)) for p in problems]
    return [t.result() for t in tasks]
