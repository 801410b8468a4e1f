"""Figures of cost, votes, routing and calibration: their numbers against ones worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fake_runs import right_answer, write_run, wrong_answer
from ponder.errors import UsageError
from ponder.measure.figures import FigureSettings, draw_figure
from ponder.measure.readers.score_table import read_score_table

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def problem(i: int, answers: str, gold: str = "7", tokens: int = 10, **more: Any) -> Row:
    """Each letter is a sample: 7 is right, - is no answer."""
    return {"id": f"p{i}", "gold": gold, "correct": [a == gold for a in answers],
            "pred": [None if a == "-" else a for a in answers], "completion_tokens": [tokens] * len(answers),
            **more}  # fmt: skip


def rows(kind: Any, *sources: str, **settings: Any) -> list[Any]:
    return list(draw_figure(kind, sources, FigureSettings(**settings))[0].rows)


def test_coverage_over_cost_is_coverage_at_k_times_the_cost_of_a_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(i, "7123" if i % 2 else "1234", tokens=10 + 20 * i) for i in range(4)])
    over_k, over_cost = rows("coverage", path), rows("coverage", path, cost="tokens")
    assert [(r["k"], r["mean"]) for r in over_k] == [(r["k"], r["mean"]) for r in over_cost]
    assert all(r["cost"] == pytest.approx(40 * r["k"]) and r["in"] == "tokens" for r in over_cost)
    with pytest.raises(UsageError, match="does not tell its flops"):
        rows("coverage", path, cost="flops")


def test_coverage_of_several_systems_over_cost_shares_one_panel(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.jsonl", [problem(i, "7123", tokens=t) for i in range(3)])
             for n, t in (("a", 10), ("b", 30))]  # fmt: skip
    figure, _ = draw_figure("coverage", paths, FigureSettings(cost="tokens"))
    assert len(figure.figure.axes) == 1 and {r["curve"] for r in figure.rows} == {"coverage"}
    assert figure.figure.axes[0].get_xlabel() == "tokens written per problem"


TABLE = "family,name,score,tokens\n" + "".join(
    f"{family},{family}{c},{0.2 + 0.3 * math.log10(c / base)},{c}\n"
    for family, base in (("A", 100), ("B", 300))
    for c in (400, 800, 1600, 3200)
)


def test_compute_fits_the_line_and_the_shift_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    result = rows("compute", str(path))
    assert {r["system"]: r["shift"] for r in result} == pytest.approx({"A": 1.0, "B": 3.0})
    assert all(
        r["slope_per_decade"] == pytest.approx(0.3) and r["line"] == pytest.approx(r["accuracy"]) for r in result
    )
    figure, _ = draw_figure("compute", [str(path)])
    assert len(figure.figure.axes) == 2, "the second panel has the families overlaid"
    assert "takes 3 times the compute" in figure.notes[1]
    assert figure.figure.get_suptitle() == "table.csv", "figures are named by what was read"


def test_compute_of_logs_is_the_vote_of_k_over_cost(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(0, "7771"), problem(1, "1117"), problem(2, "7777")])
    result = rows("compute", path)
    assert [r["cost"] for r in result] == [10, 20, 40]
    assert result[0]["accuracy"] == pytest.approx((3 / 4 + 1 / 4 + 1) / 3)
    assert result[-1]["accuracy"] == pytest.approx(2 / 3), "two of three votes are right"
    assert rows("compute", path, select="any")[-1]["accuracy"] == 1.0
    with pytest.raises(UsageError, match="not of best"):
        rows("compute", path, select="best")


def test_pareto_takes_any_table_of_names_scores_and_costs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"model": n, "accuracy": s, "dollars": c}
                                        for n, s, c in (("a", 0.5, 1), ("b", 0.4, 2), ("c", 0.9, 9))])  # fmt: skip
    assert {r["system"]: r["on_frontier"] for r in rows("pareto", path)} == {"a": True, "b": False, "c": True}
    assert rows("pareto", path)[0]["in"] == "dollars"
    with pytest.raises(UsageError, match="--cost is for runs and logs"):
        rows("pareto", path, cost="tokens")
    with pytest.raises(UsageError, match="has single problems"):
        rows("pareto", path, write(tmp_path / "log.jsonl", [problem(0, "71")]))


def test_a_log_of_problems_is_no_score_table(tmp_path: Path) -> None:
    assert read_score_table(write(tmp_path / "log.jsonl", [{"id": 1, "model": "a", "score": 1, "cost": 2}])) is None
    path = write(tmp_path / "bad.jsonl", [{"name": "a", "score": "high", "cost": 2}])
    with pytest.raises(UsageError, match="score is 'high'"):
        read_score_table(path)
    with pytest.raises(UsageError, match="not above 0"):
        read_score_table(write(tmp_path / "free.jsonl", [{"name": "a", "score": 1, "cost": 0}]))


def test_routing_by_votes_finds_what_the_strong_system_adds(tmp_path: Path) -> None:
    """The weak system is unanimous where it is right, and its samples disagree where it is wrong."""
    weak = write(tmp_path / "weak.jsonl", [problem(i, "7777" if i < 6 else "1234", tokens=1) for i in range(10)])
    strong = write(tmp_path / "strong.jsonl", [problem(i, "7777", tokens=25) for i in range(10)])
    by_votes = [r for r in rows("routing", weak, strong) if r["curve"] == "votes"]
    assert (by_votes[0]["cost"], by_votes[0]["accuracy"]) == (4, 0.6)
    assert (by_votes[1]["cost"], by_votes[1]["accuracy"]) == (pytest.approx(4 + 0.4 * 100), 1.0)
    assert (by_votes[-1]["cost"], by_votes[-1]["accuracy"]) == (104, 1.0)
    oracle = [r for r in rows("routing", weak, strong) if r["curve"] == "oracle"]
    assert oracle[0]["area"] == pytest.approx(by_votes[0]["area"]), "it cannot be done better"
    with pytest.raises(UsageError, match="routing takes two logs"):
        rows("routing", weak)


def test_train_or_think_crosses_where_both_cost_the_same(tmp_path: Path) -> None:
    trained = write(tmp_path / "trained.jsonl", [problem(i, "77", tokens=10) for i in range(4)])
    present = write(tmp_path / "present.jsonl", [problem(i, "7777" if i < 2 else "7123", tokens=10) for i in range(4)])
    result = rows("train-or-think", trained, present, training_cost=3000.0, select="any", quality=1.0)
    assert result[0]["break_even"] == pytest.approx(3000 / (40 - 10)), "one sample trained, all four of the present one"
    for r in result:
        assert r["train"] == pytest.approx(3000 + 10 * r["queries"]) and r["think"] == pytest.approx(40 * r["queries"])
    with pytest.raises(UsageError, match="--training-cost"):
        rows("train-or-think", trained, present)


def test_reliability_has_the_counts_of_its_bins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(0, "7711", rm_score=[0.95, 0.95, 0.95, 0.05]),
                                        problem(1, "1711", rm_score=[0.05, 0.95, 0.05, 0.05])])  # fmt: skip
    low, high = rows("reliability", path)
    assert (low["score"], low["accuracy"], low["samples"]) == (pytest.approx(0.05), 0.0, 4)
    assert (high["score"], high["accuracy"], high["samples"]) == (pytest.approx(0.95), 0.75, 4)
    assert low["ece"] == pytest.approx((0.05 + 0.2) / 2)
    votes = rows("reliability", path, scorer="votes")
    assert [(r["score"], r["accuracy"]) for r in votes] == [(0.5, 1.0), (0.75, 0.0)]
    with pytest.raises(UsageError, match="give --scorer, one of score, votes"):
        rows("reliability", path, scorer="other")


def test_reliability_takes_scores_beyond_0_and_1_as_logits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(0, "7711", rm_score=[2.0, 2.0, -2.0, 2.0]),
                                        problem(1, "7711", rm_score=[2.0, -2.0, -2.0, -2.0])])  # fmt: skip
    figure, _ = draw_figure("reliability", [path])
    assert [r["score"] for r in figure.rows] == pytest.approx([1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))])
    # three of four agree with the sign: sigmoid(2 / T) = 3 / 4
    assert f"temperature {2 / math.log(3):.2f} would fit best" in figure.notes[0]


def test_votes_are_the_shares_of_each_problems_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(0, "7711"), problem(1, "1123-"), problem(2, "7777")])
    result = {r["problem"]: r for r in rows("votes", path)}
    assert [r["problem"] for r in rows("votes", path)] == ["p2", "p0", "p1"], "by the share of right samples"
    p1 = result["p1"]
    assert [p1[part] for part in ("right", "leading wrong", "other wrong", "no answer")] == [0, 0.4, 0.4, 0.2]
    assert [result[p]["vote_right"] for p in ("p0", "p1", "p2")] == [1, 0, 1]
    bare = write(tmp_path / "bare.jsonl", [{"id": 1, "correct": [True, False]}])
    with pytest.raises(UsageError, match="no answers to vote on"):
        rows("votes", bare)


def test_condorcet_has_the_binomial_formula_and_the_votes_of_problems(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [problem(0, "7711"), problem(1, "7123")])
    result = rows("condorcet", path)
    (theory,) = [r["majority"] for r in result if (r["system"], r["n"], r["p"]) == ("theory", 3, 0.6)]
    assert theory == pytest.approx(0.6**3 + 3 * 0.6**2 * 0.4)
    # Of 3 of the samples 7, 1, 2, 3 each answer has at most one vote: 7 is in 3 of 4 subsets, and is first in a third.
    (vote,) = [r["majority"] for r in result if r["system"] == "a" and r["p"] == 0.25]
    assert vote == pytest.approx(3 / 4 / 3)


def test_two_axis_tells_control_scaling_and_performance(tmp_path: Path) -> None:
    short = write(tmp_path / "short.jsonl", [problem(i, "71", tokens=100) for i in range(4)])
    long = write(tmp_path / "long.jsonl", [problem(i, "77" if i else "71", tokens=900) for i in range(4)])
    figure, _ = draw_figure("two-axis", [short, long], FigureSettings(budgets=(500, 800)))
    assert {(r["length"], r["control"]) for r in figure.rows} == {(500, 1.0), (800, 0.0)}
    slope = 1000 * 100 * (0.875 - 0.5) / 300
    assert f"Control 50.0 %, Scaling {slope:+.2f} points per 1,000 tokens, Performance 87.5 %" in figure.notes[0]
    with pytest.raises(UsageError, match="3 numbers for 2 runs"):
        rows("two-axis", short, long, budgets=(1, 2, 3))


def test_coverage_of_a_run_is_drawn_over_flops(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [[right_answer(p), wrong_answer(p), wrong_answer(p, 2)] for p in range(4)])
    result = [r for r in rows("coverage", str(path), cost="flops") if r["curve"] == "coverage"]
    assert [r["cost"] for r in result] == pytest.approx([2e12 / 3 * k for k in (1, 2, 3)])
    assert [r["mean"] for r in result] == pytest.approx([1 / 3, 2 / 3, 1.0])
