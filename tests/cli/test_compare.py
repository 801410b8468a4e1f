"""`ponder compare`: the numbers of the table against independent ones, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fake_runs import TASK, StoredJob, right_answer, write_run, wrong_answer
from ponder.measure.readers import Attempts, ProblemAttempts, read_logs
from ponder.measure.statistics.compare_systems import PairwiseResult, compare_pair, compare_systems, holm_correction
from ponder.measure.statistics.decision_rules import default_rule
from ponder.measure.statistics.evaluation_report import evaluation_report
from ponder.pipelines.replay import StoredAttempts as ToReplay
from ponder.pipelines.replay import replay
from ponder.runs import Run, read_traces
from ponder.tasks import Addition
from ponder.trace_json import trace_to_json

Ponder = Callable[..., Any]


def write(path: Path, correct: list[Any], **more: Any) -> Path:
    path.write_text(
        "".join(json.dumps({"id": i, "correct": c, "gold": "7", **more}) + "\n" for i, c in enumerate(correct))
    )
    return path


def test_the_table_has_accuracy_interval_and_pairs(ponder: Ponder, tmp_path: Path) -> None:
    a = write(tmp_path / "small.jsonl", [1] * 30 + [0] * 70)
    b = write(tmp_path / "large.jsonl", [1] * 20 + [0] * 10 + [1] * 30 + [0] * 40)
    output = ponder("compare", a, b)
    assert output.code == 0, output.err
    assert (
        "small" in output.out and "30.0 % [21.9, 39.6] (30 of 100)" in output.out
    )  # Wilson, by R's prop.test without correction
    assert "50.0 % [40.4, 59.6] (50 of 100)" in output.out
    assert "30    10" in output.out, "won and lost"
    assert "fewer than 500 problems" in output.out
    data = json.loads(ponder("compare", a, b, "--json").out)
    (pair,) = data["pairs"]
    exact = stats.binomtest(10, 40).pvalue  # McNemar's exact test
    assert pair["p_value"] == pytest.approx(exact)
    assert pair["difference"] == pytest.approx(0.2)
    assert pair["low"] < 0.2 < pair["high"]
    assert data["systems"][0]["accuracy"]["mean"] == pytest.approx(0.3)


def test_runs_show_cost_per_problem(ponder: Ponder, tmp_path: Path) -> None:
    answers = [[right_answer(i), wrong_answer(i)] for i in range(4)]
    one, two = (
        write_run(tmp_path / "one", answers),
        write_run(tmp_path / "two", [[wrong_answer(i), right_answer(i)] for i in range(4)]),
    )
    out = ponder("compare", one, two).out
    assert "tokens" in out and "TFLOP" in out and "seconds" in out
    assert "dollars" not in out, "what nobody counted is not shown as 0"
    assert "Student, sign flips" in out, "half a point is neither right nor wrong"
    first = ponder("compare", one, two, "--select", "first").out
    assert "100.0" in first and "-100.0" in first and "McNemar" in first


def test_prices_give_dollars(ponder: Ponder, tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, [[right_answer(i)] for i in range(4)]) for name in ("one", "two")]
    table = tmp_path / "prices.json"
    table.write_text('{"two": {"generated": 2.0, "prompt": 1.0}}')
    data = json.loads(ponder("compare", *paths, "--prices", table, "--json").out)
    assert data["systems"][0]["dollars_per_problem"] is None, "unknown is not free"
    assert data["systems"][1]["dollars_per_problem"] == pytest.approx((30 * 2.0 + 4 * 1.0) / 1e6)
    table.write_text('{"three": {"generated": 2.0}}')
    output = ponder("compare", *paths, "--prices", table)
    assert output.code == 2 and "none of one, two" in output.err


def test_the_systems_own_choice_is_taken_where_there_is_one(ponder: Ponder, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [[wrong_answer(i), right_answer(i)] for i in range(4)], chosen=[1, 1, 1, 0])
    data = json.loads(ponder("compare", path, "--json").out)
    assert data["select"] == "chosen"
    assert data["systems"][0]["accuracy"]["correct"] == 3


def test_different_problems_need_common(ponder: Ponder, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", [1] * 5), write(tmp_path / "b.jsonl", [1] * 4)
    output = ponder("compare", a, b)
    assert output.code == 2 and "--common" in output.err
    output = ponder("compare", a, b, "--common-problems")
    assert output.code == 0 and "compared on the 4 problems that all have" in output.out


def test_another_version_of_the_task_is_refused(ponder: Ponder, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", [1] * 5), write(tmp_path / "b.jsonl", [1] * 5, gold="8")
    output = ponder("compare", a, b)
    assert output.code == 2 and "different versions of a task" in output.err
    other = Addition(digits=2, test_size=50, seed=5)
    one = write_run(tmp_path / "one", [[right_answer(i)] for i in range(4)])
    two = write_run(tmp_path / "two", [[right_answer(i, other)] for i in range(4)], other)
    assert other.test[0].answer != TASK.test[0].answer
    output = ponder("compare", one, two)
    assert output.code == 2 and "different versions" in output.err


def test_a_vote_without_answers_says_what_to_do(ponder: Ponder, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [[1, 0], [0, 1]])
    output = ponder("compare", path, "--select", "majority")
    assert output.code == 2 and "no answers to vote on" in output.err
    output = ponder("compare", path, "--select", "best")
    assert output.code == 2 and "needs a score" in output.err


def test_nothing_judged_is_no_accuracy(ponder: Ponder, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "correct": [null]}\n{"id": 2, "correct": [null]}\n')
    output = ponder("compare", path, "--column", "correct=correct")
    assert output.code == 2 and "no problem has a verdict" in output.err


def system(name: str, values: list[float | None]) -> Attempts:
    return Attempts(name, tuple(ProblemAttempts(str(i), (v,), gold=1) for i, v in enumerate(values)))


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, None]), st.sampled_from([0.0, 1.0, None])), min_size=1))
def test_an_undecided_problem_leaves_both_systems(pairs: list[tuple[float | None, float | None]]) -> None:
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not both:
        return
    result = compare_systems([system("b", [b for _, b in pairs]), system("a", [a for a, _ in pairs])]).pairs[0]
    assert result.total == len(both)
    assert result.difference == pytest.approx(np.mean([a - b for a, b in both]))
    assert (result.wins, result.losses) == (sum(a > b for a, b in both), sum(a < b for a, b in both))


def test_holm_against_worked_numbers() -> None:
    """Holm 1979: 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, none below the one before."""
    pairs = [PairwiseResult("a", "b", 0, 0, 0, 1, 0, 0, "", p, p) for p in (0.04, 0.01, 0.03, 0.02)]
    assert [p.adjusted_p_value for p in holm_correction(pairs)] == pytest.approx([0.06, 0.04, 0.06, 0.06])


def unsealed(folder: Path) -> list[dict[str, Any]]:
    """A run's traces as JSON lines without checksums, as somebody's own program may write them."""
    return [{"step": step, **trace_to_json(trace)} for step, trace in read_traces(folder)]


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "traces.bin").unlink(missing_ok=True)
    (folder / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_what_failed_and_was_asked_again_counts_once(ponder: Ponder, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[right_answer(0)], [wrong_answer(1)]])
    rows = unsealed(folder)
    failed = rows[0] | {"steps": rows[0]["steps"][:1], "failed": "the server is gone"}
    write_rows(folder, [failed, *rows])
    (line,) = json.loads(ponder("compare", folder, "--json").out)["systems"]
    assert (line["accuracy"]["correct"], line["accuracy"]["total"]) == (1, 2)
    write_rows(folder, [*rows, rows[0]])
    assert "twice" in ponder("compare", folder).err, "two that both came to an end are another matter"


def test_no_answer_is_wrong_and_an_error_is_unknown(ponder: Ponder, tmp_path: Path) -> None:
    """As the evaluation's own report has it: who runs out of budget on hard problems must not gain by it."""
    folder = write_run(tmp_path / "run", [[right_answer(0)], [], [right_answer(2)]])
    (line,) = json.loads(ponder("compare", folder, "--json").out)["systems"]
    assert (line["accuracy"]["correct"], line["accuracy"]["total"]) == (2, 3)
    assert "counts as wrong" in ponder("compare", folder).out
    rows = unsealed(folder)
    rows[1]["failed"] = "the server is gone"
    write_rows(folder, rows)
    (line,) = json.loads(ponder("compare", folder, "--json").out)["systems"]
    assert (line["accuracy"]["correct"], line["accuracy"]["total"], line["accuracy"]["undecided"]) == (2, 3, 1)
    assert line["accuracy"]["high"] == 1.0, "the one that failed may have been right"


def test_a_task_whose_questions_changed_is_another_version(ponder: Ponder, tmp_path: Path) -> None:
    one, two = (
        write_run(tmp_path / "one", [[right_answer(0)], [right_answer(1)]]),
        write_run(tmp_path / "two", [[right_answer(0)], [right_answer(1)]]),
    )
    assert ponder("compare", one, two).code == 0
    rows = json.dumps(unsealed(two))
    changed = rows.replace("What is", "Say what is").replace(" + ", " plus ")
    assert changed != rows
    write_rows(two, json.loads(changed))
    output = ponder("compare", one, two)
    assert output.code != 0 and "different versions of a task" in output.err


def test_few_problems_have_an_honest_interval() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        rates = rng.beta(1, 1, 8)
        a, b = rng.binomial(4, rates) / 4, rng.binomial(4, rates) / 4
        result = compare_pair(("a", a.tolist()), ("b", b.tolist()))
        held += result.low <= 0 <= result.high
    assert held >= 184, "the percentile bootstrap would hold it some 175 times"
    one = compare_pair(("a", [0.5]), ("b", [0.25]))
    assert one.low < -0.9 and one.high > 0.9, "one problem says next to nothing"


def test_compare_says_what_the_evaluation_said(tmp_path: Path) -> None:
    """A search that chooses, one that ran out, one that failed, and one whose choice is no leaf."""
    answers = [
        [right_answer(0), wrong_answer(0)],
        [wrong_answer(1), right_answer(1)],
        [right_answer(2), right_answer(2)],
        [right_answer(3), wrong_answer(3)],
        [],
    ]
    folder = write_run(tmp_path / "run", answers, chosen=[0, 0, None, None, None])
    traces = [trace for _, trace in read_traces(folder)]
    traces[3].failed = "the server is gone"
    inner = traces[1].add(replace(traces[1].steps[2], parent=0, text=right_answer(1)))  # right, and thought on from it
    traces[1].add(replace(traces[1].steps[1], parent=inner, text=" no"))
    traces[1].chosen = inner
    with Run(tmp_path / "again", StoredJob(TASK)) as run:
        run.write_traces(0, traces)
    (system,) = read_logs([tmp_path / "again"])
    (line,) = compare_systems([system]).systems
    output = evaluation_report(traces, TASK.verifier.name, TASK.verifier.extract_answer).accuracy
    assert default_rule(system) == "chosen"
    assert (line.accuracy.mean, line.accuracy.total) == (output.mean, output.total) == (0.4, 5)
    again = replay(ToReplay.read(str(tmp_path / "again")), TASK.verifier, "addition", "chosen", truth="new")
    assert again.after.mean == 0.4, "and so does the same judge, asked again"


def test_an_oracle_is_called_one(ponder: Ponder, tmp_path: Path) -> None:
    """A search that the gold answer guided stands beside others under that name."""
    one = write_run(tmp_path / "one", [[right_answer(i)] for i in range(3)])
    two = write_run(tmp_path / "two", [[wrong_answer(i)] for i in range(3)])
    write_rows(one, [{**row, "oracle": True} for row in unsealed(one)])
    out = ponder("compare", one, two).out
    assert "one (oracle)" in out and "two (oracle)" not in out and "an oracle, not what it would reach" in out


def test_consistency_is_that_of_all_subsets_of_k(ponder: Ponder, tmp_path: Path) -> None:
    outcomes = [[1, 1, 0, 1, 0], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1]]
    path = write(tmp_path / "a.jsonl", outcomes)
    data = json.loads(ponder("compare", path, "--k", "4", "--tau", "0.75", "--json").out)["systems"][0]["consistency"]
    right = [[sum(s) for s in combinations(o, 4)] for o in outcomes]

    def share(enough: Callable[[int], bool]) -> float:
        return float(np.mean([np.mean([enough(r) for r in some]) for some in right]))

    assert data["pass_at_k"]["mean"] == pytest.approx(share(lambda r: r >= 1))
    assert data["g_pass_at_k"]["mean"] == pytest.approx(share(lambda r: r >= 3))
    assert data["pass_hat_k"]["mean"] == pytest.approx(share(lambda r: r == 4))
    assert data["mean_g_pass_at_k"]["mean"] == pytest.approx(
        2 / 4 * (share(lambda r: r >= 3) + share(lambda r: r >= 4))
    )
    assert "G-Pass@4, tau 0.75" in ponder("compare", path, "--k", "4", "--tau", "0.75").out
    output = ponder("compare", path, "--k", "6")
    assert output.code == 2 and "give --k 5 or less" in output.err


def test_elo_of_two_systems_is_the_odds_of_their_games(ponder: Ponder, tmp_path: Path) -> None:
    """30 won, 10 lost, 60 drawn: 60 points to 40, 400 log10(1.5) apart."""
    a = write(tmp_path / "small.jsonl", [1] * 30 + [0] * 70)
    b = write(tmp_path / "large.jsonl", [1] * 20 + [0] * 10 + [1] * 30 + [0] * 40)
    first, second = json.loads(ponder("compare", a, b, "--elo", "--json").out)["ratings"]
    assert first["player"] == "large" and first["games"] == 100
    assert first["rating"] - second["rating"] == pytest.approx(400 * np.log10(60 / 40), abs=1e-6)
    never = write(tmp_path / "never.jsonl", [0] * 100)
    always = write(tmp_path / "always.jsonl", [1] * 100)
    output = ponder("compare", never, always, "--elo")
    assert output.code == 0 and "some only won or lost" in output.out
    output = ponder("compare", a, "--elo")
    assert output.code == 2 and "give two runs or more" in output.err


def test_problems_needed_to_tell_systems_apart(ponder: Ponder, tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [1] * 50 + [0] * 50)
    b = write(tmp_path / "b.jsonl", [1] * 45 + [0] * 5 + [1] * 8 + [0] * 42)  # 8 won, 5 lost
    output = ponder("compare", a, b)
    z = stats.norm.ppf([0.975, 0.8])
    needed = int(np.ceil((z[0] * np.sqrt(0.13) + z[1] * np.sqrt(0.13 - 0.03**2)) ** 2 / 0.03**2))
    assert f"takes about {needed:,} problems like these 100 (80 % power)" in output.out
    sure = write(tmp_path / "c.jsonl", [1] * 90 + [0] * 10)
    assert "to tell" not in ponder("compare", a, sure).out, "what is plain already needs no more"


def test_the_standard_error_is_split_by_problems_and_samples(ponder: Ponder, tmp_path: Path) -> None:
    outcomes = [[1, 0], [1, 1], [0, 0], [1, 0]]
    data = json.loads(ponder("compare", write(tmp_path / "a.jsonl", outcomes), "--json").out)["systems"][0]["clustered"]
    inner = np.sqrt(np.mean([np.var(o, ddof=1) / 2 for o in outcomes]) / 4)
    total = np.std([np.mean(o) for o in outcomes], ddof=1) / 2
    assert data["sample_standard_error"] == pytest.approx(inner)
    assert data["problem_standard_error"] == pytest.approx(np.sqrt(total**2 - inner**2))
    out = ponder("compare", tmp_path / "a.jsonl").out
    assert f"{100 * inner:.2f}" in out and "what was sampled" in out
    assert "what was sampled" not in ponder("compare", tmp_path / "a.jsonl", "--select", "first").out
