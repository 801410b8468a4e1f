"""Choosing among the answers to one problem: AUROC within problems by brute force, log-probability as sum and mean, and
answers that state nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import trace_group
from ponder.errors import UsageError
from ponder.measure import auroc, auroc_within_problems
from ponder.measure.figures.coverage_plots import _attempts_to_choose
from ponder.measure.readers.attempts import LOGPROB_SUM_COLUMN, Attempts, ProblemAttempts
from ponder.measure.readers.run_directory import to_problem_attempts
from ponder.measure.statistics.decision_rules import apply_rule
from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.reason.operators.select import best_step
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.reason.operators.vote import stated_answers
from ponder.reason.strategies import BestOfN
from ponder.types import Score, Trace


def brute_force(scores: list[float], right: list[int], problems: list[int]) -> float | None:
    """Every pair of a right and a wrong answer to one problem; ties are half; the mean over problems with both."""
    shares = []
    for p in set(problems):
        mine = [(s, r) for s, r, q in zip(scores, right, problems, strict=True) if q == p]
        pairs = [(a, b) for (a, ra), (b, rb) in itertools.product(mine, mine) if ra == 1 and rb == 0]
        if pairs:
            shares.append(sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs))
    return sum(shares) / len(shares) if shares else None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=30))
def test_auroc_within_problems_matches_brute_force(rows: list[tuple[int, int, int]]) -> None:
    scores, right, problems = ([float(r[0]) for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    expected = brute_force(scores, right, problems)
    if expected is None:
        with pytest.raises(UsageError, match="no problem has right and wrong"):
            auroc_within_problems(scores, right, problems, resamples=20)
        return
    result = auroc_within_problems(scores, right, problems, resamples=20)
    assert result.area == pytest.approx(expected) and result.low <= result.area <= result.high
    assert result.problems == sum(
        len({r for r, q in zip(right, problems, strict=True) if q == p}) == 2 for p in set(problems)
    )


def test_difficulty_alone_is_worth_nothing_within_problems() -> None:
    """A score that knows only how easy a problem is: high when pooled, one half within problems."""
    rng = np.random.default_rng(0)
    ease = np.repeat(rng.random(200), 8)
    right = (rng.random(1600) < ease).astype(float)
    problems = np.repeat(np.arange(200), 8).tolist()
    assert auroc(ease.tolist(), right.tolist(), problems).area > 0.75
    within = auroc_within_problems(ease.tolist(), right.tolist(), problems)
    assert within.area == 0.5 and within.low < 0.5 < within.high


def test_interval_over_problems_covers_the_truth() -> None:
    """95 % of intervals around a known value, from 100 problems each."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        shift = rng.random(100)  # problems differ; the mean chance is that of uniform shares
        scores, right, problems = [], [], []
        for p, share in enumerate(shift):
            scores += [1.0, 2.0 if rng.random() < share else 0.0]
            right += [0, 1]
            problems += [p, p]
        result = auroc_within_problems(scores, right, problems, resamples=200, seed=int(rng.integers(1000)))
        covered += result.low <= 0.5 <= result.high
    assert covered >= 52


def group(texts: list[str], logprobs: list[list[float]], right: list[float]) -> Trace:
    trace = trace_group([5], [list(range(4, 4 + len(lp))) for lp in logprobs], right)
    for i, text, lp in zip(trace.answers(), texts, logprobs, strict=True):
        trace.steps[i].text, trace.steps[i].logprobs = text, np.array(lp, np.float32)
    trace.extract_answer = lambda text: text.removeprefix("#") if text.startswith("#") else None
    return trace


def test_sum_and_mean_of_log_probabilities_choose_differently() -> None:
    trace = group(["#a", "#b"], [[-1.0, -1.0], [-0.8, -0.8, -0.8]], [1.0, 0.0])
    assert sum_logprob(trace, 1) == pytest.approx(-2.0) and mean_logprob(trace, 2) == pytest.approx(-0.8)
    attempts = Attempts("run", (to_problem_attempts("p", trace, "wanted", trace.extract_answer),))
    assert attempts.groups[0].scores[LOGPROB_SUM_COLUMN] == pytest.approx((-2.0, -2.4))
    assert apply_rule(attempts, "logprob_sum") == [1.0] and apply_rule(attempts, "logprob") == [0.0]
    for rank_by, chosen in (("logprob_sum", 1), ("logprob", 2)):
        how = BestOfN(2, rank_by=rank_by)  # type: ignore[arg-type]
        ranks = {i: how.rank(trace, i, None) or 0.0 for i in trace.answers()}
        assert how.decide(trace, dict.fromkeys(ranks, 1), ranks) == chosen


def test_answer_that_states_nothing_never_wins() -> None:
    trace = group(["#a", "???"], [[-1.0], [-0.1]], [1.0, 0.0])
    for i, value in ((1, 0.2), (2, 0.9)):
        trace.steps[i].scores["judge"] = Score(value)
    assert best_step(trace, [1, 2], "judge") == 1
    assert BestOfN(2).decide(trace, {1: 1, 2: 1}, {1: 0.2, 2: 0.9}) == 1
    attempts = Attempts("run", (to_problem_attempts("p", trace, "wanted", trace.extract_answer),))
    assert apply_rule(attempts, "best", "judge") == apply_rule(attempts, "logprob") == [1.0]
    assert _attempts_to_choose(attempts.groups[0]) == [0, None]
    silent = ProblemAttempts("q", (0.0, 1.0), answers=(None, None), scores={"judge": (0.1, 0.9)})
    assert stated_answers(silent.answers or ()) == [0, 1], "where none states an answer, the score decides"
    assert apply_rule(Attempts("run", (silent,)), "best", "judge") == [1.0]


def test_report_has_both_areas() -> None:
    traces = [
        group(["#1", "#2"], [[-1.0], [-2.0]], [1.0, 0.0]),
        group(["#3", "#4", "#5"], [[-1.0], [-1.0], [-1.0]], [0.0, 1.0, 0.0]),
    ]
    for trace, values in zip(traces, ([0.9, 0.8], [0.1, 0.05, 0.0]), strict=True):
        for i, value in zip(trace.answers(), values, strict=True):
            trace.steps[i].scores["judge"] = Score(value)
    report = evaluation_report(traces, "wanted", None, "judge")
    assert report.guide_within is not None and report.guide_within.area == pytest.approx((1.0 + 0.5) / 2)
    assert report.guide_auroc is not None and report.guide_auroc.area == pytest.approx(4 / 6)
    assert any(line.startswith("within problems") for line in report.lines())
