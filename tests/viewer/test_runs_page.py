"""The pages Runs and Run in a real browser, on real runs."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.runs.records import RecordWriter
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.page_checks import check_page, check_sizes_and_themes, choose, press, texts, write_into
from viewer.real_runs import RUN_NAMES, STEPS, copy_runs

CURVES = "figure .plot canvas"
HOSTILE_NAME = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_runs(tmp_path_factory.mktemp("runs") / "all")


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[LiveViewer]:
    with live_viewer(folder) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1400, 1000)
        yield page


def open_view(page: Page, viewer: LiveViewer, view: str) -> None:
    """Open a link as if it had been pasted into a new tab."""
    page.messages.clear()
    page.resize(1400, 1000)
    page.open("about:blank")
    page.open(viewer.url + view)
    page.wait_for("!!document.querySelector('#main .page *') && !document.querySelector('#main .waiting')")


def names_shown(page: Page) -> list[str]:
    return texts(page, "tbody td.name")


def test_list_has_every_run_with_state_and_metric(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs?sort=name")
    page.wait_for(f"!!document.querySelector('{CURVES}')")
    assert names_shown(page) == list(RUN_NAMES)
    page.wait_for("document.querySelector('tbody').textContent.includes('reward')")  # long files are read bit by bit
    row = texts(page, "tbody tr")[RUN_NAMES.index("rl")]
    assert "finished" in row and f"{STEPS} / {STEPS}" in row and "reward" in row and "RL" in row
    assert texts(page, ".legend li") == ["sft"] or "rl" in texts(page, ".legend li")
    check_sizes_and_themes(page)


def test_filter_and_sort_are_in_the_link(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs?sort=name")
    write_into(page, "[data-filter]", "evaluate sft")
    page.wait_for("document.querySelectorAll('tbody td.name').length === 1")
    assert names_shown(page) == ["before"]
    assert "q=evaluate" in page.evaluate("location.hash")
    open_view(page, viewer, "#/runs?sort=-name&q=evaluate")
    assert names_shown(page) == ["search", "mcts", "before", "after"]
    page.evaluate("document.querySelector('thead button.sort').click()")
    assert names_shown(page) == ["after", "before", "mcts", "search"]


def test_chosen_runs_are_overlaid_and_restored_from_the_link(page: Page, viewer: LiveViewer) -> None:
    ids = ",".join(viewer.run_id(name) for name in ("rl", "sft"))
    open_view(page, viewer, f"#/runs?runs={ids}&metric=loss&x=tokens&smooth=0.6")
    page.wait_for("document.querySelector('figure')?.chart?.state.drawn?.length === 4")
    assert sorted(texts(page, ".legend li")) == ["rl", "sft"]
    assert page.text("figcaption b") == "loss"
    state = page.evaluate(
        "(() => { const s = document.querySelector('figure').chart.state;"
        " return [s.x.label, s.smoothing, s.drawn.map(l => l.faint)]; })()"
    )
    assert state == ["tokens", 0.6, [True, False, True, False]]  # each raw line stays beneath its smooth one
    assert texts(page, ".actions a[href*=compare]") == ["Compare"]
    assert ids in page.evaluate("document.querySelector('.actions a[href*=compare]').hash")


def test_keyboard_moves_chooses_and_opens(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs?sort=name")
    for key in ("j", "j", "j", "x"):  # the first one enters the list
        press(page, key)
    assert page.evaluate("document.activeElement.className") == "table-box"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert viewer.run_id(RUN_NAMES[2]) in page.evaluate("location.hash")
    press(page, "Enter")
    page.wait_for("document.querySelector('h2')?.textContent === " + json.dumps(RUN_NAMES[2]))
    for key, path in (("c", "#/compare"), ("f", "#/fronts"), ("r", "#/runs")):
        press(page, key)
        page.wait_for(f"location.hash === '{path}'")
    press(page, "?")
    assert page.visible("#keys") and "light or dark" in page.text("#keys-list")
    page.press("Escape")
    assert not page.visible("#keys")


def test_theme_key_changes_the_page_and_lasts(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    press(page, "d")
    dark = page.evaluate(background)
    assert dark != light
    open_view(page, viewer, "#/runs")
    assert page.evaluate(background) == dark
    press(page, "d")
    assert page.evaluate(background) == light


def test_run_page_shows_curves_marks_findings_job_and_files(page: Page, viewer: LiveViewer) -> None:
    run = viewer.run_id("rl")
    open_view(page, viewer, f"#/run/{run}")
    page.wait_for(f"document.querySelectorAll('{CURVES}').length > 4")
    details = viewer.get(f"/api/runs/{run}")
    assert {"Reward", "Learning", "Completions"} <= set(texts(page, ".group summary b"))
    shown = page.evaluate("document.querySelector('[data-name=reward] figure').chart.state")["series"][0]["y"]
    assert shown == viewer.get(f"/api/runs/{run}/metrics")["columns"]["reward"]
    marks = page.evaluate("document.querySelector('[data-name=reward] figure').chart.state.marks.map(m => m.kind)")
    assert marks == [mark["kind"] for mark in details["marks"]] and "checkpoint" in marks
    ails = page.text("section[aria-label='What ails it']")
    assert all(finding["text"] in ails for finding in details["findings"])
    assert "GRPO" in page.text("section[aria-label=Job]") and "metrics.jsonl" in page.text("table.plain")
    assert page.evaluate("!!document.querySelector(`a[href='#/rollouts/" + run + "']`)")
    check_sizes_and_themes(page)


def test_distributions_of_rewards_and_lengths_sum_to_one(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, f"#/run/{viewer.run_id('rl')}")
    page.wait_for("document.querySelectorAll('section[aria-label=Distributions] canvas').length === 2")
    sums = page.evaluate(
        "[...document.querySelectorAll('section[aria-label=Distributions] figure')].flatMap(f =>"
        " f.chart.state.series.map(s => s.y.reduce((a, b) => a + b, 0) / 2))"
    )
    assert sums == pytest.approx([1.0] * len(sums)) and len(sums) >= 2


def test_zoom_overlay_and_axes_are_restored_from_the_link(page: Page, viewer: LiveViewer) -> None:
    run, other = viewer.run_id("rl"), viewer.run_id("sft")
    open_view(page, viewer, f"#/run/{run}?with={other}&zoom=1~3&logy=1&q=loss")
    page.wait_for("document.querySelector('[data-name=loss] figure')?.chart?.state.plot")
    state = "document.querySelector('[data-name=loss] figure').chart.state"
    assert page.evaluate(f"[{state}.plot.scales.x.min, {state}.plot.scales.x.max]") == [1, 3]
    assert page.evaluate(f"{state}.series.map(s => s.name)") == ["rl", "sft"]
    assert page.evaluate(f"{state}.y.log") is True
    assert all(
        "loss" in name
        for name in page.evaluate("[...document.querySelectorAll('[data-name]')].map(e => e.dataset.name)")
    )
    page.evaluate("[...document.querySelectorAll('.controls button')].find(b => b.textContent === 'Show all').click()")
    assert "zoom" not in page.evaluate("location.hash")


def test_hover_reads_the_nearest_value(page: Page, viewer: LiveViewer) -> None:
    run = viewer.run_id("rl")
    open_view(page, viewer, f"#/run/{run}?q=reward_std")
    page.wait_for(f"!!document.querySelector('[data-name=reward_std] {CURVES}')")
    page.evaluate("document.querySelector('[data-name=reward_std] .plot').focus()")
    press(page, "End")
    last = viewer.get(f"/api/runs/{run}/metrics")["columns"]["reward_std"][-1]
    tip = page.text("[data-name=reward_std] .tip")
    assert f"step {STEPS - 1}" in tip
    assert float(tip.split("rl: ")[1].split("▾")[0].split("★")[0].split("◆")[0]) == pytest.approx(
        last, rel=1e-3, abs=1e-4
    )


def test_smoothing_is_the_debiased_moving_average(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs")
    values, weight = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0], 0.7
    # by its definition: the mean with weights 0.7^0, 0.7^1, ... backwards
    expected = [
        sum(weight ** (i - j) * values[j] for j in range(i + 1)) / sum(weight ** (i - j) for j in range(i + 1))
        for i in range(len(values))
    ]
    assert page.evaluate(f"viewer.smooth({values}, {weight})") == pytest.approx(expected)


def test_values_that_differ_by_rounding_only_are_drawn(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, "#/runs")
    axis = page.evaluate(
        "(async () => { const chart = viewer.chart({title: 'flat', x: {}, y: {},"
        " series: [{name: 'a', color: 0, x: [0, 1, 2], y: [0.3, 0.1 + 0.2, 0.3]}]});"
        " document.getElementById('main').append(chart.element); await new Promise(done => setTimeout(done, 50));"
        " const {min, max} = chart.state.plot.scales.y; chart.destroy(); return [min, max]; })()"
    )
    assert axis[0] < 0.29 and axis[1] > 0.31


def test_figure_saves_the_numbers_and_a_valid_svg(page: Page, viewer: LiveViewer) -> None:
    run = viewer.run_id("rl")
    open_view(page, viewer, f"#/run/{run}?q=reward_std&smooth=0.5")
    page.wait_for(f"!!document.querySelector('[data-name=reward_std] {CURVES}')")
    chart = "document.querySelector('[data-name=reward_std] figure').chart"
    rows = list(csv.DictReader(io.StringIO(page.evaluate(f"viewer.chartCsv({chart})"))))
    metrics = viewer.get(f"/api/runs/{run}/metrics")
    assert [float(row["step"]) for row in rows] == metrics["steps"]
    assert [float(row["y"]) for row in rows] == metrics["columns"]["reward_std"]
    assert len({row["smoothed"] for row in rows}) > 1
    svg = ElementTree.fromstring(page.evaluate(f"viewer.chartSvg({chart})"))
    assert len(svg.findall(".//{*}path")) == 2  # the raw line and the smooth one
    assert "reward_std" in "".join(svg.itertext())


def test_live_rows_cost_what_was_appended(page: Page, viewer: LiveViewer, folder: Path) -> None:
    shutil.copytree(folder / "sft", folder / "live")
    run = viewer.run_id("live")
    open_view(page, viewer, f"#/run/{run}?q=loss")
    state = "document.querySelector('[data-name=loss] figure').chart.state"
    page.wait_for("!!document.querySelector('[data-name=loss] figure')?.chart?.state.plot")
    before = page.evaluate(f"{state}.series[0].y.length")
    writer = RecordWriter(folder / "live" / "metrics.jsonl")
    writer.append({"step": 40, "loss": 0.125})
    writer.close()
    page.wait_for(f"{state}.series[0].y.length === {before + 1}")
    assert page.evaluate(f"{state}.series[0].y.at(-1)") == 0.125
    fetched = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('after=')).map(e => e.transferSize)"
    )
    assert fetched and max(fetched) < 10_000
    shutil.rmtree(folder / "live")


def test_ranks_replicas_queue_and_age_are_drawn(page: Page, viewer: LiveViewer, folder: Path) -> None:
    names = ("cluster/ranks", "cluster/replicas", "cluster/in_flight", "cluster/batches_ready", "staleness/mean")
    shutil.copytree(folder / "rl", folder / "spread")
    try:
        path = folder / "spread" / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        writer = RecordWriter(path)
        for at, row in enumerate(rows):
            writer.append(row | {name: float(at + i) for i, name in enumerate(names)})
        writer.close()
        open_view(page, viewer, f"#/run/{viewer.run_id('spread')}?q=cluster")
        for name in names[:-1]:
            page.wait_for(f"!!document.querySelector('[data-name=\"{name}\"] {CURVES}')")
        open_view(page, viewer, f"#/run/{viewer.run_id('spread')}?q=staleness")
        page.wait_for(f"!!document.querySelector('[data-name=\"staleness/mean\"] {CURVES}')")
        check_page(page)
    finally:
        shutil.rmtree(folder / "spread")


def test_hostile_run_name_stays_text(page: Page, viewer: LiveViewer, folder: Path) -> None:
    shutil.copytree(folder / "rl", folder / HOSTILE_NAME)
    try:
        open_view(page, viewer, "#/runs?sort=name")
        assert HOSTILE_NAME in names_shown(page)
        open_view(page, viewer, f"#/run/{viewer.run_id(HOSTILE_NAME)}?q=reward_std")
        page.wait_for(f"!!document.querySelector('[data-name=reward_std] {CURVES}')")
        svg = page.evaluate("viewer.chartSvg(document.querySelector('[data-name=reward_std] figure').chart)")
        ElementTree.fromstring(svg)
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
        assert page.evaluate("document.title") == f"{HOSTILE_NAME} · ponder view"
        check_page(page)
    finally:
        shutil.rmtree(folder / HOSTILE_NAME)


def test_metric_list_offers_what_the_runs_have(page: Page, viewer: LiveViewer) -> None:
    open_view(page, viewer, f"#/runs?runs={viewer.run_id('rl')}")
    page.wait_for(f"!!document.querySelector('{CURVES}')")
    choose(page, ".curves select", "grad_norm")
    page.wait_for("document.querySelector('figcaption b').textContent === 'grad_norm'")
    assert "metric=grad_norm" in page.evaluate("location.hash")


def test_missing_run_is_one_sentence(page: Page, viewer: LiveViewer) -> None:
    page.open(viewer.url + "#/run/0123456789ab")
    page.wait_for("!!document.querySelector('.failure')")
    assert page.text(".failure").startswith("there is no such run")
