"""Replay a search: run another strategy offline, on the steps and scores that a run or a log has stored.

Each stored trace answers for its own problem: a `ReplayPolicy` hands out the stored continuations, a `ReplayScorer` the
stored scores of the guide. A problem for which the strategy asks for something that is not stored is not replayable. It
is counted as such, and not as wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder import event_loop
from ponder.errors import PonderError, UnknownName, UsageError
from ponder.measure.readers.attempts import ProblemAttempts
from ponder.measure.statistics.compare_systems import PairwiseResult, compare_pair
from ponder.measure.statistics.decision_rules import accuracy_of_values, apply_rule, default_rule
from ponder.measure.statistics.intervals import Accuracy, MeanInterval
from ponder.pipelines.replay import StoredAttempts
from ponder.pipelines.solve import solve
from ponder.protocols import Scorer, Strategy
from ponder.reason.answer_extraction import extract_answer
from ponder.reason.budget import Budget
from ponder.reason.replay_policy import ReplayPolicy, ReplayScorer, WhenExhausted, stored_tokens
from ponder.reason.scorers import Likelihood
from ponder.types import Score, Trace

LIKELIHOOD_GUIDE = "likelihood"  # needs no stored score: the steps have their log-probabilities


@dataclass(frozen=True)
class SearchReplayReport:
    source: str
    strategy: str
    guide: str  # empty: none
    before_rule: str  # how the stored attempts became one answer
    truth: str  # whose verdicts the accuracies are by
    before: Accuracy | MeanInterval  # of the replayed problems alone
    after: Accuracy | MeanInterval
    pair: PairwiseResult
    problems: int
    not_replayable: dict[str, int]  # problems, by what was asked for and is not stored
    stored_tokens: float  # generated tokens per replayed problem
    replayed_tokens: float
    notes: tuple[str, ...] = ()


class StoredVerdicts:
    """A `Scorer` that gives each answer the verdict that the same text had, and reads the answers as they were read."""

    name = "stored verdict"

    def __init__(self, group: ProblemAttempts) -> None:
        texts = group.texts or ()
        self._verdicts = dict(zip(reversed(texts), reversed(group.correct), strict=True))
        self._answers = None if group.answers is None else dict(zip(texts, group.answers, strict=True))

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(self._verdicts.get(trace.text(i)), "the verdict that is stored, if any") for i in steps]

    def extract_answer(self, text: str) -> str | None:
        return extract_answer(text) if self._answers is None else self._answers.get(text)


def longest_stored_answer(stored: StoredAttempts) -> int:
    """Tokens of the longest stored path: a strategy that may sample as many has room for every stored answer."""
    _check_traces(stored)
    paths = ((t, t.path(i)[1:]) for t in stored.searched for i in range(len(t.steps)))
    return max((sum(len(stored_tokens(t.steps[j])) for j in path) for t, path in paths), default=1) or 1


def replay_search(
    stored: StoredAttempts,
    strategy: Strategy,
    name: str,
    guide: str = "",
    budget: Budget | None = None,
    when_exhausted: WhenExhausted = "error",
    truth: str = "stored verdicts",
) -> SearchReplayReport:
    """Run a strategy on every stored trace, and compare its answers with those of the run."""
    _check_traces(stored)
    _check_guide(stored, guide)
    rule = default_rule(stored.attempts)
    stored_values = apply_rule(stored.attempts, rule)
    before: list[float | None] = []
    after: list[float | None] = []
    costs: list[tuple[int, int]] = []
    missing: Counter[str] = Counter()
    for group, trace, value in zip(stored.attempts.groups, stored.searched, stored_values, strict=True):
        policy = ReplayPolicy([trace], when_exhausted)
        scorer = _guide_of(trace, guide)
        if scorer is None and guide:
            missing[f"the stored trace has no {guide} score"] += 1
            continue
        verdicts = StoredVerdicts(group)
        trace_again = event_loop.run(_solve_if_stored(trace, strategy, policy, verdicts, guide=scorer, budget=budget))
        if trace_again is None:
            missing[policy.refusals[0]] += 1
            continue
        before.append(value)
        after.append(_value(trace_again))
        costs.append((trace.cost.generated_tokens, trace_again.cost.generated_tokens))
    if not after:
        raise UsageError(f"no stored problem can be replayed with {name}: {next(iter(missing))}")
    notes = list(stored.attempts.reading_notes)
    if not any(len(s.token_ids) for t in stored.searched for s in t.steps):
        notes.append("the log has texts without tokens: the replayed tokens are UTF-8 bytes")
    return SearchReplayReport(
        source=stored.attempts.name,
        strategy=name,
        guide=guide,
        before_rule=rule,
        truth=truth,
        before=accuracy_of_values(before),
        after=accuracy_of_values(after),
        pair=compare_pair((f"{name}, replayed", after), (rule, before)),
        problems=len(stored.searched),
        not_replayable=dict(missing.most_common()),
        stored_tokens=sum(a for a, _ in costs) / len(costs),
        replayed_tokens=sum(b for _, b in costs) / len(costs),
        notes=tuple(notes),
    )


async def _solve_if_stored(
    stored: Trace, strategy: Strategy, policy: ReplayPolicy, verdicts: Scorer, **more: Any
) -> Trace | None:
    """None where the strategy asked for anything that is not stored; other errors are the strategy's own."""
    try:
        trace = await solve(stored.problem, strategy, policy, verdicts, **more)
    except PonderError:
        if not policy.refusals:
            raise
        return None
    return None if policy.refusals else trace


def _value(trace: Trace) -> float | None:
    """The verdict on the chosen answer; the mean over all answers where the strategy chooses none; 0 without any."""
    if trace.chosen is not None:
        return trace.score(trace.chosen, StoredVerdicts.name)
    verdicts = [v for i in trace.answers() if (v := trace.score(i, StoredVerdicts.name)) is not None]
    if trace.failed or not trace.answers():
        return 0.0
    return sum(verdicts) / len(verdicts) if verdicts else None


def _guide_of(trace: Trace, name: str) -> Scorer | None:
    if name and any(name in step.scores for step in trace.steps):
        return ReplayScorer([trace], name)
    return Likelihood() if name == LIKELIHOOD_GUIDE else None


def _check_guide(stored: StoredAttempts, name: str) -> None:
    known = {score for t in stored.searched for step in t.steps for score in step.scores}
    if name and name not in {*known, LIKELIHOOD_GUIDE}:
        raise UnknownName("stored score", name, sorted({*known, LIKELIHOOD_GUIDE}))


def _check_traces(stored: StoredAttempts) -> None:
    if not stored.searched:
        raise UsageError(f"{stored.attempts.name} holds verdicts only: a strategy is replayed on stored texts")
