"""The report of an evaluation: accuracy, votes, coverage and cost, computed from traces alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ponder.measure.statistics.episode_summary import EpisodeSummary, episode_summary
from ponder.measure.statistics.intervals import Accuracy, MeanInterval, mean_with_undecided
from ponder.measure.statistics.roc import AurocInterval, WithinAuroc, auroc, auroc_within_problems
from ponder.protocols import Strategy
from ponder.reason.operators import majority_step
from ponder.reason.operators.auto_cut import count_without_steps, uses_cut
from ponder.reason.operators.select import AnswerExtractor
from ponder.types import Cost, Score, Trace
from ponder.verify.undecided import MAX_LISTED_REASONS, MAX_UNDECIDED_SHARE, count_verdicts


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation.

    `accuracy` is that of the answer the strategy chose, or of one sample where it chooses none; votes and coverage need
    more samples. All problems are in every denominator, also those that failed.
    """

    num_problems: int
    samples_per_problem: int  # per problem, at most
    accuracy: Accuracy | MeanInterval
    majority: Accuracy | MeanInterval | None
    coverage: Accuracy | MeanInterval | None  # any of the samples is right
    num_undecided: int
    cost: Cost
    num_failed: int = 0  # problems of which an error ended the thinking; they are undecided
    num_out_of_budget: int = 0  # problems that ran out of budget
    oracle: bool = False
    guide_auroc: AurocInterval | None = None  # how well what guided the search tells right answers from wrong ones
    num_uncut: int = 0  # problems whose search by steps cut none
    reasons: Mapping[str, int] = field(default_factory=dict)  # why problems failed and samples are undecided
    episodes: EpisodeSummary | None = None  # of a task that is played in turns
    guide_within: WithinAuroc | None = None  # how well the guide tells right answers from wrong ones to one problem

    @property
    def unmeasured(self) -> str:
        """Why this is no measurement: so many problems have no verdict that training would stop, too."""
        lost = self.accuracy.undecided
        if lost <= MAX_UNDECIDED_SHARE * self.num_problems:
            return ""
        return (
            f"{lost} of {self.num_problems} problems have no verdict, so the accuracy may be anything in its interval"
        )

    def lines(self) -> list[str]:
        c = self.cost
        rows: dict[str, object] = {"accuracy": self.accuracy}
        if self.oracle:
            rows["oracle"] = "the search was guided by the gold answers: not what it would reach without them"
        if self.majority is not None:
            rows[f"majority of {self.samples_per_problem}"] = self.majority
        if self.coverage is not None:
            rows[f"any of {self.samples_per_problem}"] = self.coverage
        if self.guide_auroc is not None:
            rows["guide"] = f"a right answer scores above a wrong one with probability {self.guide_auroc}"
        if self.guide_within is not None:
            rows["within problems"] = f"above a wrong one to the same problem with probability {self.guide_within}"
        if self.episodes is not None:
            rows["turns"] = self.episodes.turn_line()
            rows |= {"tool calls": line} if (line := self.episodes.tool_line()) else {}
        if self.num_undecided:
            samples = "1 sample" if self.num_undecided == 1 else f"{self.num_undecided} samples"
            rows["undecided"] = f"{samples}: the verifier could not judge them"
        if self.num_failed:
            problems = "1 problem" if self.num_failed == 1 else f"{self.num_failed} problems"
            rows["failed"] = f"{problems}: an error ended the thinking; `ponder traces` says which"
        if self.reasons:
            rows["because"] = "; ".join(
                f"{count} x {why}" for why, count in list(self.reasons.items())[:MAX_LISTED_REASONS]
            )
        if self.unmeasured:
            rows["warning"] = self.unmeasured
        if self.num_out_of_budget:
            rows["out of budget"] = f"{self.num_out_of_budget} problems"
        if self.num_uncut:
            rows["not cut"] = (
                f"{self.num_uncut} problems: no step was cut, so the search was best-of-n; see --strategy.cut"
            )
        grading = f", {c.scorer_tokens:,} to judge" if c.scorer_tokens else ""
        dollars = f", ${c.dollars:.4f}" if c.dollars else ""
        work = f"{c.generated_tokens:,} tokens written{grading}, {c.flops / 1e12:.1f} TFLOP, {c.seconds:.0f} s{dollars}"
        rows["cost"] = work
        return [f"{name:<15} {value}" for name, value in rows.items()]


def evaluation_report(
    traces: Sequence[Trace],
    scorer: str,
    extract_answer: AnswerExtractor | None,
    guide: str = "",
    strategy: Strategy | None = None,
    in_turns: bool = False,
) -> EvaluationReport:
    """`read` finds the answer that votes are counted on (None: no vote); `guide` scored answers beside the verifier.
    `strategy`: what made the traces, which says whether steps were to be cut.
    `in_turns`: the task is played with an environment."""
    scores = [[t.score(i, scorer) for i in t.answers()] for t in traces]
    samples = max(map(len, scores), default=0)
    undecided = sum(s is None for group in scores for s in group)
    cost = sum((t.cost for t in traces), Cost())
    ended = sum(bool(t.failed) for t in traces), sum(t.budget_exhausted for t in traces), any(t.oracle for t in traces)
    guide_auroc, within = _guide_auroc(traces, scorer, guide)
    last = (
        guide_auroc,
        count_without_steps(traces) if uses_cut(strategy) else 0,
        _failure_reasons(traces, scorer),
    )
    episodes = episode_summary(traces) if in_turns else None
    chose = any(t.chosen is not None for t in traces)
    if samples <= 1 or chose:
        single = mean_with_undecided([chosen_score(t, scorer) for t in traces])
    else:
        single = mean_with_undecided([_mean_score(t, scorer) for t in traces], graded=True)
    if samples <= 1:
        return EvaluationReport(
            len(traces),
            samples,
            single,
            None,
            None,
            undecided,
            cost,
            *ended,
            *last,
            episodes=episodes,
            guide_within=within,
        )
    coverage = mean_with_undecided([_best_score(t, scorer) for t in traces])
    voted = (
        None
        if extract_answer is None
        else mean_with_undecided([_majority_score(t, scorer, extract_answer) for t in traces])
    )
    return EvaluationReport(
        len(traces),
        samples,
        single,
        voted,
        coverage,
        undecided,
        cost,
        *ended,
        *last,
        episodes=episodes,
        guide_within=within,
    )


def chosen_score(trace: Trace, scorer: str) -> float | None:
    """The score of the answer given. None given is wrong, unless an error was the reason: a small budget is none."""
    answers = trace.answers()
    step = trace.chosen if trace.chosen is not None else answers[0] if len(answers) == 1 else None
    if step is not None:
        return trace.score(step, scorer)
    return None if trace.failed else 0.0


def _guide_auroc(traces: Sequence[Trace], scorer: str, guide: str) -> tuple[AurocInterval | None, WithinAuroc | None]:
    """Over answers with both scores, and within problems, with intervals over problems; None where there are none of a
    kind."""
    both = [(t.score(i, guide), t.score(i, scorer), n) for n, t in enumerate(traces) for i in t.answers()]
    known = [(x, y, n) for x, y, n in both if x is not None and y is not None] if guide not in ("", scorer) else []
    scores, right, problems = zip(*known, strict=True) if known else ((), (), ())
    if set(right) != {0.0, 1.0} or len(set(problems)) < 2:
        return None, None
    mixed = {n for n, y in zip(problems, right, strict=True) if y == 1} & {n for _, y, n in known if y == 0}
    return auroc(scores, right, problems), auroc_within_problems(scores, right, problems) if mixed else None


def running_accuracy(traces: Iterable[Trace], scorer: str) -> float:
    """Mean over all problems so far, as in the report; NaN while nothing was judged."""
    worths = [chosen_score(t, scorer) if t.chosen is not None else _mean_score(t, scorer) for t in traces]
    known = [w for w in worths if w is not None]
    return sum(known) / len(worths) if known else math.nan


def _mean_score(trace: Trace, scorer: str) -> float | None:
    """Of one answer at random among those that were judged."""
    scores = [trace.score(i, scorer) for i in trace.answers()]
    known = [s for s in scores if s is not None]
    return sum(known) / len(known) if known else None if scores or trace.failed else 0.0


def _best_score(trace: Trace, scorer: str) -> float | None:
    """The best of the answers; unknown where none is right and one that nobody judged may be."""
    scores = [trace.score(i, scorer) for i in trace.answers()]
    top = max((s for s in scores if s is not None), default=0.0)
    return None if top < 1 and (None in scores or (trace.failed and not scores)) else top


def _failure_reasons(traces: Sequence[Trace], scorer: str) -> dict[str, int]:
    """Why problems failed and samples have no verdict, the most frequent first."""
    failed = [Score(None, t.failed) for t in traces if t.failed]
    scores = [t.steps[i].scores.get(scorer) for t in traces for i in t.answers()]
    reasons = count_verdicts([*failed, *(s for s in scores if s is not None)]).reasons
    return dict(sorted(reasons.items(), key=lambda one: -one[1]))


def _majority_score(trace: Trace, scorer: str, read: AnswerExtractor) -> float | None:
    """The score of what most samples say. Saying nothing is wrong, unless nobody could judge it."""
    chosen = majority_step(trace, trace.answers(), read)
    if chosen is not None:
        return trace.score(chosen, scorer)
    decided = [trace.score(i, scorer) is not None for i in trace.answers()]
    return 0.0 if any(decided) or not (decided or trace.failed) else None
