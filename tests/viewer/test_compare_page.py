"""The page Compare in a real browser, on two real evaluations of the same problems."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.page_checks import check_sizes_and_themes, choose, press, texts, write_into
from viewer.real_runs import NUM_PROBLEMS, real_runs

PROBLEM_ROWS = "section[aria-label=Problems] tbody tr[data-place]"


@pytest.fixture(scope="module")
def viewer() -> Iterator[LiveViewer]:
    with live_viewer(real_runs()) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1400, 1000)
        yield page


def open_pair(page: Page, viewer: LiveViewer, more: str = "") -> dict[str, Any]:
    """Open the comparison of both evaluations; what the server says about them."""
    ids = f"{viewer.run_id('before')},{viewer.run_id('after')}"
    page.messages.clear()
    page.resize(1400, 1000)
    page.open("about:blank")
    page.open(f"{viewer.url}#/compare?runs={ids}{more}")
    page.wait_for(f"!!document.querySelector({json.dumps(PROBLEM_ROWS)}) || !!document.querySelector('td.empty')")
    return dict(viewer.get(f"/api/compare?runs={ids}"))


def count_of(page: Page, title: str) -> int:
    """The number on a button such as "Won 3"."""
    label = next(text for text in texts(page, ".segments button") if text.startswith(title))
    return int(label.removeprefix(title))


def test_page_shows_accuracies_and_the_paired_difference(page: Page, viewer: LiveViewer) -> None:
    answer = open_pair(page, viewer)
    rows = texts(page, "section[aria-label=Accuracy] tbody tr")
    for row, name, system in zip(rows, ("before", "after"), answer["systems"], strict=True):
        assert row.startswith(name) and f"{100 * system['accuracy']:.1f} %" in row
        assert f"{100 * system['low']:.1f} % to {100 * system['high']:.1f} %" in row
    pair = answer["differences"][0]
    difference = page.text("section[aria-label=Differences] tbody tr")
    assert difference.startswith("after − before") and f"{pair['p']:.4f}" in difference
    shown = page.evaluate("document.querySelector('.outcome').getAttribute('aria-label')")
    assert shown == f"{pair['wins']} won, {pair['ties']} tied, {pair['losses']} lost"
    check_sizes_and_themes(page)


def test_problems_are_counted_as_the_test_counts_them(page: Page, viewer: LiveViewer) -> None:
    answer = open_pair(page, viewer)
    pair = answer["differences"][0]
    assert count_of(page, "All") == NUM_PROBLEMS == len(texts(page, PROBLEM_ROWS))
    counts = [count_of(page, title) for title in ("Won", "Lost", "Ties")]
    assert counts == [pair["wins"], pair["losses"], pair["ties"]]


def test_filter_of_outcome_and_words_is_in_the_link(page: Page, viewer: LiveViewer) -> None:
    answer = open_pair(page, viewer, "&show=tied")
    ties = answer["differences"][0]["ties"]
    assert len(texts(page, PROBLEM_ROWS)) == ties
    question = answer["pairs"][0]["question"]
    write_into(page, "input[type=search]", question)
    same = [pair for pair in answer["pairs"] if question in f"{pair['problem_id']} {pair['question']}"]
    page.wait_for(f"document.querySelector('.segments button').textContent === 'All {len(same)}'")
    assert "show=tied" in page.evaluate("location.hash") and "q=" in page.evaluate("location.hash")


def test_opened_problem_shows_both_answers_and_their_difference(page: Page, viewer: LiveViewer) -> None:
    answer = open_pair(page, viewer)
    press(page, "j")
    press(page, "Enter")
    page.wait_for("document.querySelectorAll('.side').length === 2")
    first = answer["pairs"][0]
    for side, name in enumerate(("before", "after")):
        number = first["results"][side]["number"]
        trace = viewer.get(f"/api/runs/{viewer.run_id(name)}/traces/{number}")
        path = next(path for path in trace["completions"] if path[-1] == trace["chosen"])
        text = "".join(trace["steps"][i]["text"] for i in path[1:])
        assert texts(page, ".side .model-text")[side] == (text.strip() or "There is no text.")
        assert page.evaluate(f"!!document.querySelector('.side a[href$=\"/{number}\"]')")
    assert f"problem={first['problem_id']}".replace(" ", "+") in page.evaluate("decodeURIComponent(location.hash)")
    check_sizes_and_themes(page)


def test_link_restores_the_opened_problem(page: Page, viewer: LiveViewer) -> None:
    problem = open_pair(page, viewer)["pairs"][3]["problem_id"]
    open_pair(page, viewer, f"&problem={problem}")
    page.wait_for("document.querySelectorAll('.side').length === 2")
    assert page.text("section[aria-label='Both answers'] h3") == f"Problem {problem}"


def test_table_of_problems_is_saved_as_csv(page: Page, viewer: LiveViewer) -> None:
    answer = open_pair(page, viewer)
    page.evaluate("viewer.download = (name, content) => { window.saved = content; }")
    page.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent === 'CSV').click()")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("window.saved"))))
    assert [float(row["after"]) for row in rows] == [pair["results"][1]["value"] for pair in answer["pairs"]]


def test_run_is_added_moved_to_the_front_and_left_out(page: Page, viewer: LiveViewer) -> None:
    page.open(f"{viewer.url}#/compare")
    page.wait_for("document.querySelectorAll('.chooser option').length > 2")
    assert "Add two or more runs" in page.text(".empty")
    for name in ("before", "after"):
        choose(page, ".chooser select", viewer.run_id(name))
    page.wait_for(f"!!document.querySelector({json.dumps(PROBLEM_ROWS)})")
    page.click("button[aria-label='Put after first']")
    page.wait_for(
        "document.querySelector('section[aria-label=Differences] tbody tr')?.textContent.startsWith('before − after')"
    )
    page.click("button[aria-label='Leave out before']")
    page.wait_for("document.querySelector('.empty')?.textContent === 'Add a second run on the same problems.'")


def test_runs_without_common_problems_are_one_sentence(page: Page, viewer: LiveViewer) -> None:
    ids = f"{viewer.run_id('before')},{viewer.run_id('rl')}"
    page.open("about:blank")
    page.open(f"{viewer.url}#/compare?runs={ids}")
    page.wait_for("!!document.querySelector('.failure')")
    assert page.text(".failure") == viewer.error(f"/api/compare?runs={ids}")
