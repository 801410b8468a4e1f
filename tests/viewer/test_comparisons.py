"""Comparisons and fronts: numbers by hand, and equal to what `ponder.measure` says of the same runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

import fake_runs
from fake_runs import right_answer, write_run, wrong_answer
from ponder.errors import UsageError
from ponder.measure import fit_coverage_law_to_counts, paired_difference, pass_at_k, wilson
from ponder.types import Cost
from ponder.viewer.api import Api
from ponder.viewer.run_listing import RunLibrary
from viewer.real_runs import NUM_PROBLEMS, real_runs


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """Eight problems, four samples: `good` has 4 right of each but the last, `weak` as many as the problem's number."""
    good = [[right_answer(p)] * 4 if p < 7 else [wrong_answer(p)] * 4 for p in range(8)]
    weak = [[right_answer(p)] * min(p, 4) + [wrong_answer(p)] * max(0, 4 - p) for p in range(8)]
    write_run(tmp_path / "good", good, chosen=[0] * 8, cost=Cost(4, 0, 40, flops=4e12, seconds=2.0))
    write_run(tmp_path / "weak", weak, chosen=[0] * 8, cost=Cost(4, 0, 20, flops=2e12, seconds=3.0))
    return Api(RunLibrary(tmp_path))


def ids(api: Api, *names: str) -> str:
    known = {run["name"]: run["id"] for run in api.get("/api/runs", {})["runs"]}
    return ",".join(known[name] for name in names)


def test_compare_pairs_problems_with_intervals(api: Api) -> None:
    answer = api.get("/api/compare", {"runs": ids(api, "good", "weak")})
    good, weak = [1] * 7 + [0], [0] + [1] * 7  # by the chosen answer, the first
    expected = paired_difference(weak, good)
    (pair,) = answer["differences"]
    assert (answer["names"], answer["problems"], answer["counts"]) == (["good", "weak"], 8, [8, 8])
    assert (pair["first"], pair["wins"], pair["losses"], pair["ties"]) == ("weak", 1, 1, 6)
    assert (pair["difference"], pair["low"], pair["high"], pair["p"]) == pytest.approx(
        (expected.mean, expected.low, expected.high, expected.p_value)
    )
    low, high = wilson(7, 8)
    assert [answer["systems"][0][key] for key in ("accuracy", "low", "high")] == pytest.approx([7 / 8, low, high])
    assert [row["results"][0]["value"] for row in answer["pairs"]] == good
    assert [row["results"][1]["value"] for row in answer["pairs"]] == weak
    assert answer["systems"][0]["tokens"] == 40 and answer["systems"][1]["seconds"] == 3
    run = ids(api, "weak")
    for row in answer["pairs"]:
        trace = api.get(f"/api/runs/{run}/traces/{row['results'][1]['number']}", {})
        assert trace["problem"]["id"] == row["problem_id"], "the number leads to both answers"


def test_fronts_hold_coverage_law_and_budget(api: Api) -> None:
    answer: dict[str, Any] = api.get("/api/fronts", {"runs": ids(api, "good", "weak")})
    weak, counts = ids(api, "weak"), [min(p, 4) for p in range(8)]
    rows = [row for row in answer["coverage"] if row["run"] == weak]
    assert [row["k"] for row in rows] == [1, 2, 3, 4] or [row["k"] for row in rows] == [1, 2, 4]
    for row in rows:
        each = [float(pass_at_k(4, c, row["k"])) for c in counts]
        assert row["pass_at_k"] == pytest.approx(sum(each) / 8) and row["low"] <= row["pass_at_k"] <= row["high"]
    assert rows[0]["vote"] == pytest.approx(sum(counts) / 32), "a vote of one is one attempt"
    law = fit_coverage_law_to_counts([4] * 8, counts, [row["k"] for row in rows])
    assert (answer["law"][weak]["a"], answer["law"][weak]["b"]) == pytest.approx((law.a, law.b))
    solved = next(one for one in answer["solved"] if one["run"] == weak)
    assert [problem["c"] for problem in solved["problems"]] == counts
    assert solved["problems"][1]["chance"] == pytest.approx([float(pass_at_k(4, 1, k)) for k in solved["k"]], abs=1e-6)
    assert answer["front"]["tokens"][0] == weak and answer["front"]["seconds"] == [ids(api, "good")]
    votes = next(one for one in answer["calibration"] if one["run"] == weak)
    assert votes["scorer"] == "votes" and sum(one["count"] for one in votes["bins"]) == 8


def test_bad_choices_are_one_sentence(api: Api) -> None:
    for runs, message in (("", "choose from 2 to 20"), (ids(api, "good"), "choose from 2"), ("0" * 12, "no such run"),
                          (ids(api, "good", "good"), "given twice")):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            api.get("/api/compare", {"runs": runs})


@pytest.fixture
def unjudged(api: Api, tmp_path: Path) -> str:
    """A run with two scorers, whose task cannot be loaded."""
    folder = write_run(tmp_path / "unjudged", [[right_answer(0)] * 2], scores=[[0.25, 0.75]])
    job = json.loads((folder / "job.json").read_text())
    job["task"] = {"is": "nowhere.tasks:Unknown"}
    (folder / "job.json").write_text(json.dumps(job))
    return ids(api, "unjudged")


def test_comparison_with_an_unjudged_run_names_the_command_that_compares_it(api: Api, unjudged: str) -> None:
    expected = (
        r"^unjudged does not say who judges .* `ponder compare`, which takes the scorer as --column correct=NAME$"
    )
    with pytest.raises(UsageError, match=expected):
        api.get("/api/compare", {"runs": f"{ids(api, 'good')},{unjudged}"})


def test_fronts_leave_out_an_unjudged_run_and_say_so(api: Api, unjudged: str) -> None:
    others = ids(api, "good", "weak")
    expected = api.get("/api/fronts", {"runs": others})
    answer = api.get("/api/fronts", {"runs": f"{unjudged},{others}"})
    note, *notes = answer["notes"]
    assert note.startswith("unjudged is left out: unjudged does not say who judges its answers")
    assert {**answer, "notes": notes} == expected
    with pytest.raises(UsageError, match=r"^unjudged does not say who judges"):
        api.get("/api/fronts", {"runs": unjudged})
    with pytest.raises(UsageError, match="0 runs were given; choose from 1 to 20"):
        api.get("/api/fronts", {"runs": ""})


def test_fronts_leave_out_a_run_without_verdicts_and_say_so(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_runs, "grade_answers", lambda trace, verifier: None)
    write_run(tmp_path / "ungraded", [[right_answer(0)] * 2])
    others = ids(api, "good", "weak")
    expected = api.get("/api/fronts", {"runs": others})
    answer = api.get("/api/fronts", {"runs": f"{ids(api, 'ungraded')},{others}"})
    note, *notes = answer["notes"]
    assert note == "ungraded is left out: no problem has a verdict, so there is no accuracy; judge the attempts first"
    assert {**answer, "notes": notes} == expected
    with pytest.raises(UsageError, match=r"^no problem has a verdict"):
        api.get("/api/fronts", {"runs": ids(api, "ungraded")})


def test_real_runs_compare_and_have_fronts() -> None:
    api = Api(RunLibrary(real_runs()))
    answer = api.get("/api/compare", {"runs": ids(api, "before", "after", "search")})
    assert answer["problems"] == 3 and len(answer["differences"]) == 3 and answer["counts"][0] == NUM_PROBLEMS
    fronts = api.get("/api/fronts", {"runs": ids(api, "before", "after", "search", "rl")})
    assert len(fronts["points"]) == 4 and all(point["flops"] for point in fronts["points"])
    search = next(one for one in fronts["calibration"] if one["run"] == ids(api, "search"))
    assert search["scorer"] == "likelihood"
