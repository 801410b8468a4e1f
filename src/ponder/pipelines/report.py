"""What an evaluation found: numbers from traces alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ponder.measure import Accuracy, Auroc, Mean, auroc, mean_of
from ponder.protocols import Strategy
from ponder.reason.operators import majority
from ponder.reason.operators.auto_cut import cuts_steps, uncut
from ponder.types import Cost, Trace

Read = Callable[[str], str | None]


@dataclass(frozen=True)
class Report:
    """What an evaluation found. `single` is the accuracy of what the strategy chose, or of one sample where it chooses
    none; votes and coverage need more samples."""

    problems: int
    samples: int  # per problem, at most
    single: Accuracy | Mean
    majority: Accuracy | Mean | None
    coverage: Accuracy | Mean | None  # any of the samples is right
    undecided: int
    cost: Cost
    failed: int = 0  # problems of which an error ended the thinking; they are undecided
    spent: int = 0  # problems that ran out of budget
    oracle: bool = False
    guide: Auroc | None = None  # how well what guided the search tells right answers from wrong ones
    uncut: int = 0  # problems whose search by steps cut none

    def lines(self) -> list[str]:
        c = self.cost
        rows: dict[str, object] = {"accuracy": self.single}
        if self.oracle:
            rows["oracle"] = "the search was guided by the gold answers: not what it would reach without them"
        if self.majority is not None:
            rows[f"majority of {self.samples}"] = self.majority
        if self.coverage is not None:
            rows[f"any of {self.samples}"] = self.coverage
        if self.guide is not None:
            rows["guide"] = f"a right answer scores above a wrong one with probability {self.guide}"
        if self.undecided:
            rows["undecided"] = f"{self.undecided} samples: the verifier could not judge them"
        if self.failed:
            rows["failed"] = f"{self.failed} problems: an error ended the thinking; traces.jsonl says which"
        if self.spent:
            rows["out of budget"] = f"{self.spent} problems"
        if self.uncut:
            rows["not cut"] = f"{self.uncut} problems: no step was cut, so the search was best-of-n; see --set cut=..."
        judged = f", {c.scorer_tokens:,} to judge" if c.scorer_tokens else ""
        dollars = f", ${c.dollars:.4f}" if c.dollars else ""
        work = f"{c.generated_tokens:,} tokens written{judged}, {c.flops / 1e12:.1f} TFLOP, {c.seconds:.0f} s{dollars}"
        rows["cost"] = work
        return [f"{name:<15} {value}" for name, value in rows.items()]


def report(
    traces: Sequence[Trace], scorer: str, read: Read | None, guide: str = "", strategy: Strategy | None = None
) -> Report:
    """`read` finds the answer that votes are counted on (None: no vote); `guide` scored answers beside the verifier.
    `strategy`: what made the traces, which says whether steps were to be cut."""
    scores = [[t.score(i, scorer) for i in t.answers()] for t in traces]
    samples = max(map(len, scores), default=0)
    undecided = sum(s is None for group in scores for s in group)
    cost = sum((t.cost for t in traces), Cost())
    ended = sum(bool(t.failed) for t in traces), sum(t.spent for t in traces), any(t.oracle for t in traces)
    last = _told_apart(traces, scorer, guide), uncut(traces) if cuts_steps(strategy) else 0
    judged = [[s for s in group if s is not None] for group in scores]
    chose = any(t.chosen is not None for t in traces)
    if samples <= 1 or chose:
        single: Accuracy | Mean = _rate([outcome(t, scorer) for t in traces])
    else:
        single = mean_of([sum(group) / len(group) if group else None for group in judged])
    if samples <= 1:
        return Report(len(traces), samples, single, None, None, undecided, cost, *ended, *last)
    coverage = _rate([max(group) if group else None for group in judged])
    voted = None if read is None else _rate([_vote(t, scorer, read) for t in traces])
    return Report(len(traces), samples, single, voted, coverage, undecided, cost, *ended, *last)


def outcome(trace: Trace, scorer: str) -> float | None:
    """The score of the answer given. None given is wrong, unless an error was the reason: a small budget is none."""
    answers = trace.answers()
    step = trace.chosen if trace.chosen is not None else answers[0] if len(answers) == 1 else None
    if step is not None:
        return trace.score(step, scorer)
    return None if trace.failed else 0.0


def _told_apart(traces: Sequence[Trace], scorer: str, guide: str) -> Auroc | None:
    """Over answers with both scores, with an interval over problems; None where there are none of a kind."""
    both = [(t.score(i, guide), t.score(i, scorer), n) for n, t in enumerate(traces) for i in t.answers()]
    known = [(x, y, n) for x, y, n in both if x is not None and y is not None] if guide not in ("", scorer) else []
    scores, right, problems = zip(*known, strict=True) if known else ((), (), ())
    if set(right) != {0.0, 1.0} or len(set(problems)) < 2:
        return None
    return auroc(scores, right, problems)


def so_far(traces: Iterable[Trace], scorer: str) -> float:
    """Mean score of what was judged; NaN while nothing was."""
    judged = [s for t in traces for s in _told(t, scorer) if s is not None]
    return sum(judged) / len(judged) if judged else math.nan


def _told(trace: Trace, scorer: str) -> list[float | None]:
    if trace.chosen is not None or not trace.answers():
        return [outcome(trace, scorer)]
    return [trace.score(i, scorer) for i in trace.answers()]


def _rate(values: list[float | None]) -> Accuracy | Mean:
    """Right or wrong has its own interval; graded scores get the bootstrap's."""
    return Accuracy.of(values) if set(values) <= {0.0, 1.0, None} else mean_of(values)


def _vote(trace: Trace, scorer: str, read: Read) -> float | None:
    """The score of what most samples say. Saying nothing is wrong, unless nobody could judge it."""
    chosen = majority(trace, trace.answers(), read)
    if chosen is not None:
        return trace.score(chosen, scorer)
    return 0.0 if any(trace.score(i, scorer) is not None for i in trace.answers()) else None
