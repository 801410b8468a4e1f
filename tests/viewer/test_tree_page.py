"""The page Tree in a real browser: real searches, and a tree of 100,000 nodes."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.runs import read_traces
from ponder.types import Trace
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.page_checks import check_sizes_and_themes
from viewer.real_runs import real_runs


@pytest.fixture(scope="module")
def viewer() -> Iterator[LiveViewer]:
    with live_viewer(real_runs()) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1300, 900)
        yield page


def trace_of(name: str, number: int) -> Trace:
    return list(read_traces(real_runs() / name))[number - 1][1]


def open_tree(page: Page, viewer: LiveViewer, name: str, number: int = 1, query: str = "") -> None:
    page.open("about:blank")
    page.open(f"{viewer.url}#/tree/{viewer.run_id(name)}/{number}{query}")
    page.wait_for("!!document.querySelector('.tree-growth')")
    # What the page would save, so that a test can read it.
    page.evaluate("viewer.saved = []; viewer.download = (name, content) => viewer.saved.push([name, content])")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.evaluate(
            "document.querySelector('.tree-canvas').dispatchEvent("
            f"new KeyboardEvent('keydown', {{key: {json.dumps(key)}, bubbles: true, cancelable: true}}))"
        )


def click_button(page: Page, text: str) -> None:
    page.evaluate(f"[...document.querySelectorAll('button')].find(b => b.textContent === {json.dumps(text)}).click()")


def selected(page: Page) -> int:
    return int(page.text(".tree-side h3").split()[1].removesuffix("the"))


@pytest.mark.parametrize("name", ["mcts", "search"])
def test_csv_has_every_step_of_the_trace(page: Page, viewer: LiveViewer, name: str) -> None:
    open_tree(page, viewer, name)
    click_button(page, "CSV")
    ((_, text),) = page.evaluate("viewer.saved")
    rows = list(csv.DictReader(io.StringIO(text)))
    trace = trace_of(name, 1)
    assert len(rows) == len(trace.steps)
    path = set() if trace.chosen is None else set(trace.path(trace.chosen))
    for i, (row, step) in enumerate(zip(rows, trace.steps, strict=True)):
        assert row["parent"] == ("" if step.parent is None else str(step.parent))
        assert (int(row["visits"]), int(row["tokens"])) == (step.visits, len(step.token_ids))
        assert float(row["value"]) == pytest.approx(step.value, abs=1e-6)
        assert bool(row["pruned"]) == bool(step.pruned) and (row["on_path"] == "1") == (i in path)


def test_arrow_keys_walk_along_the_tree(page: Page, viewer: LiveViewer) -> None:
    open_tree(page, viewer, "mcts")
    trace = trace_of("mcts", 1)
    press(page, "Home")
    assert selected(page) == 0
    press(page, "ArrowRight")
    child = selected(page)
    assert trace.steps[child].parent == 0
    press(page, "ArrowDown")
    beside = selected(page)
    assert beside != child and len(trace.path(beside)) == 2
    press(page, "ArrowUp", "ArrowLeft")
    assert selected(page) == 0
    if trace.chosen is not None:
        press(page, "End")
        assert selected(page) == trace.chosen


def test_selected_node_shows_its_text_and_scores(page: Page, viewer: LiveViewer) -> None:
    trace = trace_of("search", 1)
    i = next(i for i, step in enumerate(trace.steps) if step.scores)
    open_tree(page, viewer, "search", 1, f"?node={i}")
    page.wait_for("!!document.querySelector('.tree-side table.scores')")
    assert page.text(".tree-side > .model-text") == trace.steps[i].text
    assert [name in page.text(".tree-side .scores") for name in trace.steps[i].scores]
    assert f"node={i}" in page.evaluate("location.hash")


def test_pruned_node_shows_the_reason(page: Page, viewer: LiveViewer) -> None:
    trace = trace_of("search", 1)
    pruned = [i for i, step in enumerate(trace.steps) if step.pruned]
    assert pruned, "the search prunes nothing: the test needs another one"
    open_tree(page, viewer, "search", 1, f"?node={pruned[0]}")
    page.wait_for("!!document.querySelector('.tree-side .pruned-reason')")
    assert page.text(".pruned-reason") == f"Pruned: {trace.steps[pruned[0]].pruned}"


def test_slider_shows_the_tree_as_it_grew(page: Page, viewer: LiveViewer) -> None:
    open_tree(page, viewer, "mcts", 1, "?until=3")
    total = len(trace_of("mcts", 1).steps)
    page.wait_for(f"document.querySelector('.tree-grown').textContent === '3 of {total}'")
    click_button(page, "SVG")
    page.evaluate("(() => { const s = document.querySelector('.tree-time'); s.value = s.max;"
                  " s.dispatchEvent(new Event('input')); })()")  # fmt: skip
    page.wait_for(f"document.querySelector('.tree-grown').textContent === '{total} of {total}'")
    click_button(page, "SVG")
    small, large = (content for _, content in page.evaluate("viewer.saved"))
    assert small.startswith("<svg") and small.count("<path") < large.count("<path")


def test_png_is_an_image_of_the_canvas(page: Page, viewer: LiveViewer) -> None:
    open_tree(page, viewer, "search")
    click_button(page, "PNG")
    page.wait_for("viewer.saved.length === 1")
    assert page.evaluate("viewer.saved[0][1].type") == "image/png"
    assert page.evaluate("viewer.saved[0][1].size") > 1000


def test_click_on_the_canvas_selects_the_node_there(page: Page, viewer: LiveViewer) -> None:
    open_tree(page, viewer, "mcts", 1, "?node=1")
    assert selected(page) == 1
    page.click(".tree-canvas")  # the middle, where nothing need be
    box = page.evaluate("(() => { const b = document.querySelector('.tree-canvas').getBoundingClientRect();"
                        " return [b.x, b.y + b.height / 2]; })()")  # fmt: skip
    # The root is the leftmost node; its place is that of the first level.
    heading = page.evaluate(
        "(() => { const c = document.querySelector('.tree-canvas'); const out = [];"
        f" for (let y = -300; y < 300; y += 6) {{ const e = {{clientX: {box[0]} + 36, clientY: {box[1]} + y,"
        " pointerId: 7, bubbles: true, cancelable: true}; c.setPointerCapture = () => {};"
        " c.dispatchEvent(new PointerEvent('pointerdown', e)); c.dispatchEvent(new PointerEvent('pointerup', e)); }"
        " return document.querySelector('.tree-side h3').textContent; })()"
    )
    assert heading.startswith("Step 0")


def test_page_is_sound_in_every_size_and_theme(page: Page, viewer: LiveViewer) -> None:
    page.messages.clear()
    open_tree(page, viewer, "search")
    page.wait_for("!!document.querySelector('.tree-side table.scores, .tree-side .soft')")
    check_sizes_and_themes(page)
    page.resize(1300, 900)


# ---- the layout, against its definition

CHECK_LAYOUT = """(parents) => {
  const tree = viewer.treeLayout.layout(parents), faults = [];
  const levels = new Map();
  for (let i = 0; i < tree.count; i++) {
    if (!levels.has(tree.depth[i])) levels.set(tree.depth[i], []);
    levels.get(tree.depth[i]).push(tree.across[i]);
    const kids = tree.children.list.subarray(tree.children.start[i], tree.children.start[i + 1]);
    if (kids.length) {
      const middle = (tree.across[kids[0]] + tree.across[kids[kids.length - 1]]) / 2;
      if (Math.abs(middle - tree.across[i]) > 1e-6) faults.push(`${i} is not above the middle of its children`);
    }
    if (tree.low[i] > tree.across[i] || tree.high[i] < tree.across[i]) faults.push(`${i} is outside its own bounds`);
  }
  for (const places of levels.values()) {
    places.sort((a, b) => a - b);
    for (let k = 1; k < places.length; k++) if (places[k] - places[k - 1] < 1 - 1e-9) faults.push("two nodes overlap");
  }
  return faults.slice(0, 5);
}"""


def random_parents(count: int, seed: int) -> list[int | None]:
    draw = random.Random(seed)
    return [None, *(None if draw.random() < 0.02 else int(draw.random() ** 0.7 * i) for i in range(1, count))]


def test_layout_is_tidy(page: Page, viewer: LiveViewer) -> None:
    open_tree(page, viewer, "mcts")
    trees: list[list[int | None]] = [random_parents(n, seed) for seed, n in enumerate((1, 2, 3, 10, 40, 300, 3000))]
    trees += [[None, *range(2000)], [None] + [0] * 2000, [None] * 50]
    for parents in trees:
        assert page.evaluate(f"({CHECK_LAYOUT})({json.dumps(parents)})") == []


def test_tree_of_100000_nodes_draws_few_marks(page: Page, viewer: LiveViewer) -> None:
    """The work of a frame is bounded by the window: marks are counted, not timed."""
    open_tree(page, viewer, "mcts")
    parents = random_parents(100_000, 1)
    script = """((parents) => {
      const box = document.createElement("div");
      box.style.cssText = "width:1000px;height:600px";
      document.body.append(box);
      const tree = new viewer.TreeCanvas(box);
      tree.canvas.style.width = "1000px"; tree.canvas.style.height = "600px";
      const value = parents.map((_, i) => (i % 97) / 97);
      const zeros = parents.map(() => 0);
      tree.setData({ parent: parents, value, score: value, prior: zeros, visits: zeros, tokens: zeros, chosen: 99999 });
      const marks = () => {
        tree.draw();
        const { nodes, edges, bars } = tree.drawn;
        return [...bars.values()].reduce((sum, boxes) => sum + boxes.length / 4, nodes.length + edges.length / 2);
      };
      const out = { whole: marks(), levels: tree.tree.levels, path: tree.drawn.pathEdges.length / 2 };
      tree.select(99999); tree.zoom(30); out.near = marks(); tree.setUntil(10); out.early = marks();
      out.svg = tree.toSvg().length;
      tree.close(); box.remove();
      return out;
    })"""
    counts: dict[str, Any] = page.evaluate(f"{script}({json.dumps(parents)})")
    depth, i = 0, 99_999
    while (above := parents[i]) is not None:
        depth, i = depth + 1, above
    assert counts["path"] == depth
    most = 2 * 600 * counts["levels"]  # a node and an edge on each row of pixels, at each depth
    assert 500 < counts["whole"] < most and 10 < counts["near"] < most
    assert counts["early"] <= 20 and counts["svg"] < 5_000_000
