"""Choosing among k samples: exact expectations against every order, curves against the vote rules themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.measure import best_at_k, pass_at_k, plurality_accuracy, plurality_limit, selection_curve
from ponder.measure.statistics.answer_selection import SampleSelectionRule
from ponder.reason.operators import vote

SAMPLE = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([0.0, 0.25, 0.5, -1.0, None]))
RIGHT = {"a": 1.0, "b": 0.0, "c": 0.0, None: 0.0}


def select_by_rule(rule: str, answers: Sequence[Any], scores: Sequence[float | None]) -> Any:
    return vote.majority_answer(answers) if rule == "majority" else getattr(vote, f"{rule}_answer")(answers, scores)


def over_all_orders(rule: str, answers: Sequence[Any], scores: Sequence[float | None], k: int) -> float:
    """What the vote rule chooses, over every order of every subset of k."""
    orders = list(itertools.permutations(range(len(answers)), k))
    picked = (select_by_rule(rule, [answers[i] for i in order], [scores[i] for i in order]) for order in orders)
    return sum(RIGHT[p] for p in picked) / len(orders)


@pytest.mark.parametrize("rule", ["majority", "best"])
@given(samples=st.lists(SAMPLE, min_size=1, max_size=6))
@settings(max_examples=40)
def test_exact_is_the_mean_over_all_orders(
    rule: SampleSelectionRule, samples: list[tuple[str | None, float | None]]
) -> None:
    answers, scores = [a for a, _ in samples], [s for _, s in samples]
    right = [RIGHT[a] for a in answers]
    ks = range(1, len(samples) + 1)
    curve = selection_curve(rule, [answers], [right], list(ks), [scores], "exact", missing="abstain")
    assert curve.mean == pytest.approx([over_all_orders(rule, answers, scores, k) for k in ks], abs=1e-12)


@pytest.mark.parametrize("rule", get_args(SampleSelectionRule))
@given(samples=st.lists(SAMPLE, min_size=1, max_size=12))
@settings(max_examples=60)
def test_prefix_is_the_vote_rule(rule: SampleSelectionRule, samples: list[tuple[str | None, float | None]]) -> None:
    answers, scores = [a for a, _ in samples], [s for _, s in samples]
    right = [RIGHT[a] for a in answers]
    ks = range(1, len(samples) + 1)
    curve = selection_curve(rule, [answers], [right], list(ks), [scores], "prefix", missing="abstain")
    assert curve.mean.tolist() == [RIGHT[select_by_rule(rule, answers[:k], scores[:k])] for k in ks]
    assert curve.sd is None


@pytest.mark.parametrize("rule", get_args(SampleSelectionRule))
def test_subsets_tend_to_the_mean_over_all_orders(rule: SampleSelectionRule) -> None:
    answers = ["b", "a", "a", None, "b", "c", "a"]
    scores = [0.75, 0.5, 0.25, 0.125, 0.25, 1.0, -0.5]
    right, ks = [RIGHT[a] for a in answers], [1, 2, 3, 5]
    curve = selection_curve(rule, [answers], [right], ks, [scores], subsets=20_000)
    wanted = [over_all_orders(rule, answers, scores, k) for k in ks]
    assert curve.mean == pytest.approx(wanted, abs=0.015)  # four standard errors of 20,000 coins
    assert curve.sd == pytest.approx([math.sqrt(p * (1 - p)) for p in wanted], abs=0.01)


def test_spread_is_that_of_the_whole_set() -> None:
    """Over many problems the sd is of the mean over problems, not of one problem."""
    answers, right = [["a", "b"]] * 400, [[1.0, 0.0]] * 400
    curve = selection_curve("majority", answers, right, [1], subsets=400)
    assert curve.sd is not None and curve.sd[0] == pytest.approx(math.sqrt(0.25 / 400), rel=0.15)


def test_exact_and_subsets_agree_on_large_votes() -> None:
    rng = np.random.default_rng(3)
    answers = [rng.choice(12, size=200, p=np.arange(1, 13) / 78).tolist() for _ in range(2)]
    right = [[float(a == 11) for a in group] for group in answers]
    ks = [1, 7, 40, 120, 200]
    exact = selection_curve("majority", answers, right, ks, how="exact")
    drawn = selection_curve("majority", answers, right, ks, subsets=4000)
    assert exact.mean == pytest.approx(drawn.mean, abs=0.03)
    assert exact.mean[0] == pytest.approx(np.mean([np.mean(r) for r in right]))


def test_best_by_a_perfect_score_is_coverage() -> None:
    right = [1.0] * 5 + [0.0] * 1995
    ks = [1, 10, 100, 1000, 2000]
    assert best_at_k(right, right, ks) == pytest.approx(pass_at_k(2000, 5, ks), abs=1e-12)
    assert best_at_k(right, [-r for r in right], ks)[-2:] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert best_at_k(right, [1.0] * 2000, ks) == pytest.approx([5 / 2000] * 5)  # all tie: chance


def test_unknown_is_not_wrong() -> None:
    curve = selection_curve("majority", [["a", "a"], ["b"] * 2], [[1, 1], [None, None]], [1, 2], how="exact")
    assert (curve.mean.tolist(), curve.problems.tolist(), curve.missing.tolist()) == ([1, 1], [1, 1], [1, 1])
    assert curve.low[0] < 0.3, "one right problem of one is no certainty"
    assert math.isnan(best_at_k([1.0, None], [0.5, 0.5], 1))  # the choice may fall on the undecided
    assert best_at_k([1.0, None], [0.5, 0.25], 2) == 1.0  # it cannot
    for how in ("exact", "prefix"):  # nobody answered, and nobody was judged: not wrong
        for rule in ("majority", "best"):
            nothing = selection_curve(rule, [[None, None]] * 2, [[None, None], [0, 0]], [1], [[1, 1]] * 2, how)
            assert nothing.mean.tolist() == [0.0] and nothing.missing.tolist() == [1]
    half = selection_curve("majority", [["a", "a"]], [[1, None]], [2], how="prefix")
    assert half.mean.tolist() == [1.0]  # the other sample that says so was judged


def test_refuses_what_it_cannot_choose() -> None:
    one = (["a", "b"],)
    with pytest.raises(UsageError, match=r"1 of 2 samples have no score.*abstain"):
        selection_curve("best", one, [[1, 0]], [1], [[0.5, None]])
    with pytest.raises(UsageError, match="needs 3 samples of every problem; 1 of 1"):
        selection_curve("majority", one, [[1, 0]], [3])
    with pytest.raises(UsageError, match="needs 3 samples; there are 2"):
        best_at_k([1, 0], [1, 0], 3)
    with pytest.raises(UsageError, match="needs scores"):
        selection_curve("weighted", one, [[1, 0]], [1])
    with pytest.raises(UsageError, match="no exact expectation"):
        selection_curve("weighted", one, [[1, 0]], [1], [[1, 1]], "exact")
    with pytest.raises(UsageError, match="without samples"):
        selection_curve("majority", [[]], [[]], [1])
    with pytest.raises(UsageError, match="no problems"):
        selection_curve("majority", [], [], [1])
    with pytest.raises(UsageError, match="between 0"):
        selection_curve("majority", one, [[1, 7]], [1])
    with pytest.raises(UsageError, match="infinite"):
        best_at_k([1, 0], [1, math.inf], 1)
    with pytest.raises(UsageError, match="too long"):
        selection_curve("majority", [list(range(3000)) + [0] * 3000], [[1.0] * 6000], [5000], how="exact")


def test_too_few_samples_are_told() -> None:
    answers, right = [["a"], ["a", "b", "b"]], [[1.0], [1.0, 0.0, 0.0]]
    for how in ("exact", "subsets", "prefix"):
        left = selection_curve("majority", answers, right, [1, 3, 4], how=how, short="drop")
        assert left.problems.tolist() == [2, 1, 0] and left.missing.tolist() == [0, 1, 2]
        assert left.mean[1] == 0 and math.isnan(left.mean[2])
        curve = selection_curve("majority", answers, right, [1, 3], how=how, short="missing")
        assert not math.isnan(curve.mean[0]) and math.isnan(curve.mean[1])


def test_misspelt_settings_are_no_defaults() -> None:
    for bad in ({"how": "exactly"}, {"short": "skip"}, {"missing": "ignore"}):
        with pytest.raises(UsageError, match="no way"):
            selection_curve("majority", [["a"]], [[1]], [1], **bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no rule named 'wieghted'. Did you mean 'weighted'"):
        selection_curve("wieghted", [["a"]], [[1]], [1], [[1]])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        selection_curve("majority", [["a"]], [[1]], [1], subsets=0)
    with pytest.raises(UsageError, match="canonical"):
        selection_curve("majority", [[["a"]]], [[1]], [1])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no method named"):
        plurality_accuracy([1.0], 3, method="guess")  # type: ignore[arg-type]


def test_an_answer_that_is_no_number_is_none() -> None:
    curve = selection_curve("majority", [[math.nan, math.nan, 7.0]], [[0, 0, 1]], [3], how="prefix")
    assert curve.mean.tolist() == [1.0]


def test_many_problems_have_the_same_interval() -> None:
    """Beyond 5,000 problems the interval is the central limit's."""
    answers, right = [["a"], ["b"]] * 3000, [[1.0], [0.0]] * 3000
    curve = selection_curve("majority", answers, right, [1], how="prefix")
    assert (curve.low[0], curve.high[0]) == pytest.approx((0.5 - 1.96 * 0.5 / 6000**0.5, 0.5 + 1.96 * 0.5 / 6000**0.5))


def test_plurality_by_enumeration() -> None:
    for p in ([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.25] * 4, [1.0, 0.0], [0.0, 1.0]):
        for n in range(1, 6):
            chance = sum(
                math.prod(p[i] for i in drawn) * (vote.majority_answer(drawn) == 0)
                for drawn in itertools.product(range(len(p)), repeat=n)
            )
            assert plurality_accuracy(p, n) == pytest.approx(chance, abs=1e-12)


def test_plurality_worked_number() -> None:
    """Five equally likely answers and 16 samples: about .20, by every method."""
    for method in ("exact", "normal", "sampled"):
        assert plurality_accuracy([0.2] * 5, 16, method=method) == pytest.approx(0.2, abs=0.005)
    assert plurality_accuracy([0.2] * 5, 16) == pytest.approx(0.2, abs=1e-12)


def test_many_samples_come_to_the_limit() -> None:
    p = [0.4, 0.35, 0.15, 0.1]
    exact = [plurality_accuracy(p, n) for n in (1, 10, 100, 300)]
    assert exact == sorted(exact) and exact[0] == pytest.approx(0.4)
    assert plurality_accuracy(p, 300, method="normal") == pytest.approx(exact[-1], abs=0.01)
    assert plurality_accuracy(p, 300, method="sampled") == pytest.approx(exact[-1], abs=0.005)
    assert plurality_accuracy(p, 10**7, method="normal") == pytest.approx(plurality_limit(p))
    assert plurality_limit(p) == 1 and plurality_limit(p, 1) == 0
    assert plurality_limit([0.3, 0.3, 0.2, 0.2]) == 0.5
    with pytest.raises(UsageError, match="sum to 1"):
        plurality_accuracy([0.5, 0.2], 3)
    with pytest.raises(UsageError, match="count from 0"):
        plurality_limit([0.5, 0.5], 2)
