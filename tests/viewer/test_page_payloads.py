"""No text of a run directory is ever executed: 0 of all payloads, in every text field, on every page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.viewer.export import export_view
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.payload_runs import COMPLETIONS_PER_TRACE, RUN_NAME, tree_count, write_payload_run
from viewer.script_payloads import PAYLOADS

# Nothing on these pages makes such an element: one that is there was made of a text.
FOREIGN = (
    "main :is(script, img, iframe, object, embed, style, link, base, meta, form:not(.ask-form), video, audio, math)"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_payload_run(root)
    return root


@pytest.fixture(scope="module")
def viewer(root: Path) -> Iterator[LiveViewer]:
    with live_viewer(root) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1300, 900)
        yield page


def go(page: Page, url: str, ready: str) -> None:
    page.open("about:blank")
    page.open(url)
    page.wait_for(ready, 60)


def check_harmless(page: Page) -> None:
    assert page.evaluate("window.hit") is None
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(f"document.querySelectorAll({json.dumps(FOREIGN)}).length") == 0
    assert page.evaluate("[...document.querySelectorAll('main a[href]')].every(a => a.protocol !== 'javascript:')")


def shown_texts(page: Page, selector: str) -> set[str]:
    """The whole text of each element."""
    elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return set(page.evaluate(f"{elements}.map(e => e.textContent)"))


def test_there_are_many_payloads() -> None:
    assert len(PAYLOADS) >= 150 and len(set(PAYLOADS)) == len(PAYLOADS)


def test_a_payload_runs_where_a_page_takes_it_for_html(page: Page) -> None:
    """The check can fail: without the viewer's policy and text nodes, payloads run."""
    page.open("about:blank")
    page.evaluate(f"document.body.innerHTML = {json.dumps(PAYLOADS[0])}")
    page.wait_for("window.hit === 1")


def test_list_of_runs_and_a_run_show_texts_only(page: Page, viewer: LiveViewer) -> None:
    (run,) = viewer.get("/api/runs")["runs"]
    go(page, f"{viewer.url}#/runs", "document.querySelector('main').textContent.includes('onerror')")
    check_harmless(page)
    assert RUN_NAME in page.text("main")
    go(page, f"{viewer.url}#/run/{run['id']}", "document.querySelector('main').textContent.includes('onerror')")
    page.wait_for("!document.querySelector('main .waiting')")
    page.evaluate("document.querySelectorAll('main details').forEach(d => (d.open = true))")
    check_harmless(page)


def test_list_of_rollouts_shows_texts_only(page: Page, viewer: LiveViewer) -> None:
    (run,) = viewer.get("/api/runs")["runs"]
    go(page, f"{viewer.url}#/rollouts/{run['id']}", "!!document.querySelector('tbody td a')")
    seen = ""
    for top in range(0, 33 * (len(PAYLOADS) + 10), 500):
        page.evaluate(f"document.querySelector('.table-box').scrollTop = {top}")
        page.wait_for(f"document.querySelector('.table-box').scrollTop > {top} - 500", 60)
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.wait_for("!document.querySelector('td.waiting')", 60)
        seen += page.text("tbody tr")
        check_harmless(page)
    shown = sum(" ".join(payload.split())[:40].split("\x00")[0] in seen for payload in PAYLOADS)
    assert shown > 0.8 * len(PAYLOADS)  # control characters are shown as blanks


@pytest.mark.parametrize("number", range(1, tree_count() + 1))
def test_one_trace_shows_every_payload_as_text(page: Page, viewer: LiveViewer, number: int) -> None:
    (run,) = viewer.get("/api/runs")["runs"]
    go(page, f"{viewer.url}#/rollouts/{run['id']}/{number}", "!!document.querySelector('.completion')")
    page.evaluate("document.querySelectorAll('details').forEach(d => (d.open = true))")
    check_harmless(page)
    payloads = PAYLOADS[(number - 1) * COMPLETIONS_PER_TRACE : number * COMPLETIONS_PER_TRACE]
    unpruned = {payload for k, payload in enumerate(payloads) if k % 3 != 2}
    assert unpruned <= shown_texts(page, ".completion > .model-text")
    assert unpruned <= shown_texts(page, ".scores td.wrap") and unpruned <= shown_texts(page, ".scores th")
    assert {payloads[0], payloads[-1]} <= shown_texts(page, ".message .model-text")
    page.evaluate("document.querySelectorAll('main *').forEach(e => { if (e.tabIndex >= 0) e.focus(); })")
    check_harmless(page)


def test_tree_and_its_figure_show_texts_only(page: Page, viewer: LiveViewer) -> None:
    (run,) = viewer.get("/api/runs")["runs"]
    for number in range(1, tree_count() + 1):
        go(page, f"{viewer.url}#/tree/{run['id']}/{number}?node=3", "!!document.querySelector('.tree-side .scores')")
        check_harmless(page)
        payload = PAYLOADS[(number - 1) * COMPLETIONS_PER_TRACE + 2]
        assert payload in page.text(".tree-side > .model-text") and payload in page.text(".pruned-reason")
        page.evaluate("viewer.download = (name, text) => (viewer.saved = text)")
        for kind in ("SVG", "CSV"):
            page.evaluate(f"[...document.querySelectorAll('button')].find(b => b.textContent === '{kind}').click()")
            if kind == "SVG":
                script = "new DOMParser().parseFromString(viewer.saved, 'image/svg+xml')"
                assert page.evaluate(f"{script}.querySelectorAll('parsererror, script, a, use, image').length") == 0
                names = f"[...{script}.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))"
                assert not [name for name in page.evaluate(names) if name.startswith("on") or "href" in name]
        cells = [cell for row in csv.reader(io.StringIO(page.evaluate("viewer.saved"), newline="")) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]  # a spreadsheet would run it


def test_tokens_show_texts_only(page: Page, viewer: LiveViewer) -> None:
    (run,) = viewer.get("/api/runs")["runs"]
    for number in range(1, tree_count() + 1):
        for leaf in (1, 4):
            go(
                page,
                f"{viewer.url}#/trace/{run['id']}/{number}?leaf={leaf}&token=2",
                "!!document.querySelector('.token')",
            )
            check_harmless(page)
    payload = PAYLOADS[(tree_count() - 1) * COMPLETIONS_PER_TRACE + 3]
    page.wait_for("!!document.querySelector('.token-side h3')")
    assert json.dumps(payload)[1:-1][:20] in page.text(".token-side .token-text") or payload in page.text(".token-side")


def test_exported_copy_shows_texts_only(page: Page, root: Path, tmp_path: Path) -> None:
    """The same, from `file://` and without a server: its answers are scripts, so a payload might end one of them."""
    export_view(root, tmp_path / "copy")
    url = (tmp_path / "copy" / "index.html").as_uri()
    go(page, url, "typeof viewer === 'object' && !!viewer.info")
    run = page.evaluate("viewer.data.get('/api/runs').then(answer => answer.runs[0].id)")
    views = [
        ("rollouts/{run}", "tbody td a"),
        ("trace/{run}/2", ".token"),
        ("tree/{run}/2?node=3", ".tree-side .scores"),
    ]
    views += [(f"rollouts/{{run}}/{number}", ".completion") for number in range(1, tree_count() + 1)]
    for path, ready in views:
        go(page, f"{url}#/{path.format(run=run)}", f"!!document.querySelector({json.dumps(ready)})")
        page.evaluate("document.querySelectorAll('details').forEach(d => (d.open = true))")
        check_harmless(page)
    last = PAYLOADS[(tree_count() - 1) * COMPLETIONS_PER_TRACE :]
    assert {p for k, p in enumerate(last) if k % 3 != 2} <= shown_texts(page, ".completion > .model-text")


def test_page_files_cannot_make_html_of_text() -> None:
    """No file of ours has a way to do it, and none has inline code."""
    folder = resources.files("ponder.viewer") / "page"
    files = [entry for entry in folder.iterdir() if entry.name.endswith((".js", ".html", ".css"))]
    assert len(files) > 10
    for entry in files:
        text = entry.read_text()
        if entry.name.endswith(".js"):
            ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
            assert not re.search(ways, text), entry.name
            assert not re.search(r"setAttribute\(\s*[\"'](style|on)", text), entry.name
        if entry.name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), entry.name
