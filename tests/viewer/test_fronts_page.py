"""The page Fronts in a real browser, on real evaluations with four samples a problem."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from fake_runs import right_answer, write_run, wrong_answer
from ponder.types import Cost
from ponder.viewer.api import Api
from ponder.viewer.export import export_view
from ponder.viewer.run_listing import RunLibrary
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.page_checks import check_sizes_and_themes, choose, texts, write_into
from viewer.real_runs import NUM_PROBLEMS, NUM_SAMPLES, real_runs

FRONT, COVERAGE = "section[aria-label='Accuracy against cost']", "section[aria-label=Coverage]"
BUDGET = "section[aria-label='Problems by budget']"


@pytest.fixture(scope="module")
def viewer() -> Iterator[LiveViewer]:
    with live_viewer(real_runs()) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1400, 1000)
        yield page


def open_fronts(page: Page, viewer: LiveViewer, more: str = "") -> dict[str, Any]:
    """Open the page on both evaluations; what the server says about them."""
    ids = f"{viewer.run_id('before')},{viewer.run_id('after')}"
    page.messages.clear()
    page.resize(1400, 1000)
    page.open("about:blank")
    page.open(f"{viewer.url}#/fronts?runs={ids}{more}")
    page.wait_for(f'!!document.querySelector("{FRONT} figure")?.chart?.state.plot')
    return dict(viewer.get(f"/api/fronts?runs={ids}"))


def series(page: Page, section: str) -> dict[str, dict[str, Any]]:
    """The series of a section's figure by name."""
    found = page.evaluate(
        f'document.querySelector("{section} figure").chart.state.series.map('
        "({name, x, y, low, high}) => ({name, x, y, low, high}))"
    )
    return {one["name"]: one for one in found}


def test_points_are_the_accuracies_with_their_intervals(page: Page, viewer: LiveViewer) -> None:
    answer = open_fronts(page, viewer)
    shown = series(page, FRONT)
    for name, point in zip(("before", "after"), answer["points"], strict=True):
        one = shown[name]
        assert (one["x"], one["y"]) == ([point["tokens"]], [point["accuracy"]])
        assert (one["low"], one["high"]) == ([point["low"]], [point["high"]])
    check_sizes_and_themes(page)


def test_cost_and_axis_are_in_the_link(page: Page, viewer: LiveViewer) -> None:
    answer = open_fronts(page, viewer)
    choose(page, f"{FRONT} select", "seconds")
    assert series(page, FRONT)["before"]["x"] == [answer["points"][0]["seconds"]]
    assert "x=seconds" in page.evaluate("location.hash")
    open_fronts(page, viewer, "&x=seconds&logx=0")
    state = page.evaluate(f'(s => [s.x.label, s.x.log])(document.querySelector("{FRONT} figure").chart.state)')
    assert state == ["seconds per problem", False]


def test_coverage_votes_and_law_are_drawn(page: Page, viewer: LiveViewer) -> None:
    answer = open_fronts(page, viewer)
    shown = series(page, COVERAGE)
    run = viewer.run_id("after")
    rows = [row for row in answer["coverage"] if row["run"] == run]
    one = shown["after: pass@k"]
    assert one["x"] == [row["k"] for row in rows] and one["x"][-1] == NUM_SAMPLES
    assert one["y"] == [row["pass_at_k"] for row in rows]
    assert shown["after: vote of k"]["y"] == [row["vote"] for row in rows]
    for name, law in ((name, answer["law"].get(viewer.run_id(name))) for name in ("before", "after")):
        assert (law is not None) == (f"{name}: law" in shown)
        if law is not None:
            k, y = (shown[f"{name}: law"][axis][-1] for axis in "xy")
            assert y == pytest.approx(math.exp(law["a"] * k ** law["b"]))


def test_budget_tells_how_many_problems_are_solved(page: Page, viewer: LiveViewer) -> None:
    answer = open_fronts(page, viewer, "&k=1")
    one = answer["solved"][0]
    for place, k in enumerate(one["k"]):
        write_into(page, f"{BUDGET} input[type=range]", str(place))
        expected = sum(problem["chance"][place] for problem in one["problems"])
        said = page.text(f"{BUDGET} [role=status]")
        assert f"With {k} sample" in said and f"of {NUM_PROBLEMS} problems" in said
        assert float(said.split(": ")[1].split(" of ")[0]) == pytest.approx(expected, abs=0.01)
    assert f"k={one['k'][-1]}" in page.evaluate("location.hash")
    assert len(texts(page, f"{BUDGET} tbody tr[data-place]")) == NUM_PROBLEMS


def test_figure_is_saved_with_its_intervals(page: Page, viewer: LiveViewer) -> None:
    answer = open_fronts(page, viewer)
    rows = csv.DictReader(
        io.StringIO(page.evaluate(f'viewer.chartCsv(document.querySelector("{FRONT} figure").chart)'))
    )
    after = next(row for row in rows if row["series"] == "after")
    assert [float(after[key]) for key in ("accuracy", "low", "high")] == [
        answer["points"][1][key] for key in ("accuracy", "low", "high")
    ]


def test_exported_copy_draws_the_same_front(page: Page, tmp_path: Path) -> None:
    """Of any runs that are chosen: the copy holds the points of each, and finds the front itself."""
    for name, right, tokens in (("a", 2, 10), ("b", 6, 30), ("c", 5, 40), ("d", 7, 90), ("e", 7, 90), ("f", 2, 20)):
        answers = [[right_answer(p) if p < right else wrong_answer(p)] for p in range(8)]
        write_run(tmp_path / "runs" / name, answers, chosen=[0] * 8, cost=Cost(4, 0, tokens))
    api = Api(RunLibrary(tmp_path / "runs"))
    known = {run["name"]: run["id"] for run in api.get("/api/runs", {})["runs"]}
    assert export_view(tmp_path / "runs", tmp_path / "copy") == 6
    page.open("about:blank")
    page.open(f"{(tmp_path / 'copy' / 'index.html').as_uri()}#/fronts?runs={','.join(known.values())}")
    page.wait_for(f'!!document.querySelector("{FRONT} figure")?.chart?.state.plot')
    points = {one["run"]: one for one in api.get("/api/fronts", {"runs": ",".join(known.values())})["points"]}
    expected = api.get("/api/fronts", {"runs": ",".join(known.values())})["front"]["tokens"]
    assert set(expected) == {known[name] for name in "abde"}
    front = series(page, FRONT)["front"]
    assert front["x"] == [points[run]["tokens"] for run in expected]
    assert front["y"] == [points[run]["accuracy"] for run in expected]


def test_page_without_runs_says_what_to_add(page: Page, viewer: LiveViewer) -> None:
    page.open("about:blank")
    page.open(f"{viewer.url}#/fronts")
    page.wait_for("!!document.querySelector('.empty')")
    assert page.text(".empty").startswith("Add runs")
