"""The pages of rollouts in a real browser: the list, one trace, and one completion token by token."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.pictures.message_parts import data_url
from ponder.pictures.picture import Picture
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


@pytest.fixture(scope="module")
def traces() -> list[tuple[int, Trace]]:
    return list(read_traces(real_runs() / "rl"))


def go(page: Page, viewer: LiveViewer, path: str, ready: str) -> None:
    page.open("about:blank")
    page.open(f"{viewer.url}#/{path.format(rl=viewer.run_id('rl'))}")
    page.wait_for(f"!!document.querySelector({json.dumps(ready)})")


def press(page: Page, selector: str, key: str) -> None:
    event = f"new KeyboardEvent('keydown', {{key: {json.dumps(key)}, bubbles: true, cancelable: true}})"
    page.evaluate(f"document.querySelector({json.dumps(selector)}).dispatchEvent({event})")


def column(page: Page, place: int) -> list[str]:
    return str(page.text(f"tbody tr td:nth-child({place})")).split("|")


# the list


def test_list_has_every_trace_and_its_facts(page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    page.wait_for("!document.querySelector('td.waiting')")  # the server answers in part while it reads
    assert column(page, 1) == [str(i + 1) for i in range(len(traces))]
    assert column(page, 2) == [str(step) for step, _ in traces]
    assert column(page, 7) == [str(sum(len(s.token_ids) for s in t.steps if s.sampled)) for _, t in traces]


def test_list_filters_by_step_and_reward_and_keeps_them_in_the_link(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts/{rl}?step=2&sort=-reward", "tbody tr td a")
    page.wait_for("[...document.querySelectorAll('tbody tr td:nth-child(2)')].every(e => e.textContent === '2')")
    rewards = [float(x) for x in column(page, 4)]
    assert rewards == sorted(rewards, reverse=True)
    page.evaluate("(() => { const e = document.querySelector('[name=min_reward]'); e.value = '2';"
                  " e.dispatchEvent(new Event('input')); })()")  # fmt: skip
    page.wait_for("document.querySelector('tbody').textContent.includes('No trace matches')")
    assert "min_reward=2" in page.evaluate("location.hash") and "step=2" in page.evaluate("location.hash")


def test_list_sorts_when_a_heading_is_clicked(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    page.evaluate("[...document.querySelectorAll('button.sort')].find(b => b.textContent.startsWith('Reward')).click()")
    page.wait_for("location.hash.includes('sort=-reward')")
    page.wait_for(
        "(() => { const r = [...document.querySelectorAll('tbody tr td:nth-child(4)')].map(e => Number(e.textContent));"
        " return r.length > 3 && r.every((x, i) => !i || x <= r[i - 1]); })()"
    )


def test_row_opens_its_trace(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    page.click("tbody tr:nth-child(2) td:nth-child(3)")
    page.wait_for("document.querySelector('h2')?.textContent === 'Trace 2'")


# one trace


def test_trace_shows_prompt_completions_and_scores(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    _, trace = traces[0]
    go(page, viewer, "rollouts/{rl}/1", ".completion")
    assert page.text(".message .model-text") == "|".join(str(m["content"]) for m in trace.problem.messages)
    texts = [trace.text(i) or "(empty)" for i in trace.leaves() if i]
    assert page.text(".completion > .model-text") == "|".join(texts)
    for name, score in trace.steps[1].scores.items():
        assert f"{name} {score.value:g}" in page.text(".completion .rewards")


def test_prompt_as_sent_is_the_text_of_its_tokens(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    go(page, viewer, "rollouts/{rl}/1", ".completion")
    page.click("details > summary")
    page.wait_for("document.querySelector('details .model-text').textContent !== '…'")
    assert traces[0][1].problem.question in page.text("details .model-text")


def test_difference_of_two_completions_restores_both(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    number, pair = next(
        (n, (a, b)) for n, (_, t) in enumerate(traces, 1) for leaves in [[i for i in t.leaves() if i]]
        for a in range(len(leaves)) for b in range(a) if t.text(leaves[a]) != t.text(leaves[b])
    )  # fmt: skip
    go(page, viewer, f"rollouts/{{rl}}/{number}?a={pair[0]}&b={pair[1]}", ".diff")
    trace = traces[number - 1][1]
    leaves = [i for i in trace.leaves() if i]
    sides = [page.evaluate(f"[...document.querySelectorAll('.diff {kind}')].map(e => e.textContent).join('')")
             for kind in ("> :not(ins)", "> :not(del)")]  # fmt: skip
    assert [side.replace("⏎", "") for side in sides] == [trace.text(leaves[k]) for k in pair]


def test_buttons_and_keys_lead_only_to_traces_that_are_there(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    for number, has, has_not, key in ((1, "Next", "Previous", "p"), (len(traces), "Previous", "Next", "n")):
        go(page, viewer, f"rollouts/{{rl}}/{number}", ".completion")
        assert page.evaluate(f"!!document.querySelector('a[title^={has}]')")
        assert not page.evaluate(f"!!document.querySelector('a[title^={has_not}]')")
        press(page, "body", key)
        assert page.evaluate("location.hash").endswith(f"/{number}")
    press(page, "body", "p")
    page.wait_for(f"document.querySelector('h2').textContent === 'Trace {len(traces) - 1}'")


@pytest.mark.parametrize(
    ("path", "ready"),
    [
        ("rollouts", "tbody td a"),
        ("rollouts/{rl}", "tbody td a"),
        ("rollouts/{rl}/1", ".diff"),
        ("trace/{rl}/1", ".token"),
    ],
)
def test_pages_are_sound_in_every_size_and_theme(page: Page, viewer: LiveViewer, path: str, ready: str) -> None:
    page.messages.clear()
    go(page, viewer, path, ready)
    check_sizes_and_themes(page)
    page.resize(1300, 900)


def test_difference_is_a_longest_common_subsequence(page: Page, viewer: LiveViewer) -> None:
    """Myers's algorithm against the quadratic table, on random texts."""
    go(page, viewer, "rollouts", "h2")
    draw = np.random.default_rng(0)

    def common(a: list[str], b: list[str]) -> int:
        table = np.zeros((len(a) + 1, len(b) + 1), int)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
        return int(table[-1, -1])

    pairs = [[list(draw.choice(list("ab.!?"), draw.integers(0, 14))) for _ in range(2)] for _ in range(200)]
    texts = [[" ".join(side) for side in pair] for pair in pairs]
    parts = page.evaluate(f"{json.dumps(texts)}.map(([a, b]) => viewer.wordDiff.diff(a, b))")
    for (a, b), out in zip(texts, parts, strict=True):
        assert out["isWhole"]
        assert "".join(text for kind, text in out["parts"] if kind <= 0) == a
        assert "".join(text for kind, text in out["parts"] if kind >= 0) == b
        both = "".join(text for kind, text in out["parts"] if kind == 0)
        assert len(both) == common(list(a), list(b))


def test_difference_of_very_different_texts_is_bounded(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts", "h2")
    out = page.evaluate(
        "viewer.wordDiff.diff(Array.from({length: 3000}, (_, i) => `a${i}`).join(' '),"
        " Array.from({length: 3000}, (_, i) => `b${i}`).join(' '))"
    )
    assert out["isWhole"] is False and [kind for kind, _ in out["parts"]] == [-1, 1]


# token by token


def test_tokens_have_their_text_and_all_their_numbers(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    _, trace = traces[0]
    leaf = trace.leaves()[-1]
    go(page, viewer, f"trace/{{rl}}/1?leaf={leaf}", ".token")
    page.evaluate("viewer.download = (name, text) => (viewer.saved = text)")
    page.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent === 'CSV').click()")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("viewer.saved"))))
    tokens = trace.token_ids(leaf)
    assert [int(row["id"]) for row in rows] == tokens.tolist()
    steps = [trace.steps[i] for i in trace.path(leaf)]
    assert [row["sampled"] for row in rows] == [str(int(s.sampled)) for s in steps for _ in s.token_ids]
    last, logprobs = steps[-1], steps[-1].logprobs
    assert logprobs is not None and last.advantages is not None
    tail = rows[-len(last.token_ids) :]
    assert [float(row["logprobs"]) for row in tail] == pytest.approx(logprobs.tolist(), abs=1e-5)
    assert [float(row["advantages"]) for row in tail] == pytest.approx(last.advantages.tolist(), abs=1e-5)
    assert [float(row["entropy"]) for row in tail] == pytest.approx(last.notes["entropy"].tolist(), abs=1e-5)
    assert len(page.text(".token").split("|")) >= len(tokens)


def test_masked_tokens_are_hatched_and_the_others_coloured(
    page: Page, viewer: LiveViewer, traces: list[tuple[int, Trace]]
) -> None:
    leaf = traces[0][1].leaves()[-1]
    go(page, viewer, f"trace/{{rl}}/1?leaf={leaf}&color=entropy", ".token")
    masked = page.evaluate("document.querySelectorAll('.token.masked').length")
    assert masked == len(traces[0][1].steps[0].token_ids)
    assert "gradient" in page.evaluate("getComputedStyle(document.querySelector('.token.masked')).backgroundImage")
    colours = page.evaluate("[...document.querySelectorAll('.token:not(.masked)')].map(e => e.style.backgroundColor)")
    assert colours and all(colours)
    assert page.text(".legend-title") == "entropy"


def test_ratio_says_what_it_is(page: Page, viewer: LiveViewer) -> None:
    """In the words of docs/viewing.md."""
    go(page, viewer, "trace/{rl}/1?color=ratio", ".token:not(.masked)")
    press(page, ".token-scroller", "End")
    words = "probability that the token was sampled with, divided by the reference's"
    assert page.evaluate("document.querySelector('.token-side dt.current').title") == words
    assert page.evaluate("document.querySelector('.legends > [title]').title") == words
    assert page.text(".token-side dt.current + dd").endswith("× reference")


def test_keys_move_between_tokens_and_change_the_colour(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "trace/{rl}/1?token=0", ".token.selected")
    press(page, ".token-scroller", "ArrowRight")
    assert page.text(".token-side h3") == "Token 1"
    press(page, ".token-scroller", "End")
    assert "token=" in page.evaluate("location.hash") and page.text(".token-side h3") != "Token 1"
    before = page.text(".legend-title")
    press(page, "body", "]")
    assert page.text(".legend-title") != before


def test_32000_tokens_put_few_elements_into_the_document(page: Page, viewer: LiveViewer) -> None:
    """Only lines in sight are drawn; all of them are there when one scrolls."""
    go(page, viewer, "trace/{rl}/1", ".token")
    page.evaluate(
        "(() => { const at = (f) => Array.from({length: 32000}, (_, i) => f(i)),"
        " texts = at(i => i % 11 ? ` t${i}` : '.\\n'),"
        " numbers = {logprobs: at(i => -(i % 7)), sampled: at(i => i > 50), step: at(() => 1)};"
        " viewer.shards['/api/runs/aaaaaaaaaaaa/traces/1/tokens'] = {ids: at(i => i), texts, ...numbers}; })()"
    )
    page.evaluate("location.hash = '#/trace/aaaaaaaaaaaa/1'")
    page.wait_for("document.querySelector('h2 + .soft')?.textContent.startsWith('32,000 tokens')")
    assert page.evaluate("document.querySelectorAll('.token').length") < 3000
    page.evaluate("document.querySelector('.token-scroller').scrollTop = 1e9")
    page.wait_for("document.querySelector('.token-inner').textContent.includes('t31998')")
    assert page.evaluate("document.querySelectorAll('.token').length") < 3000


def test_lines_hold_every_character_once(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts", "h2")
    texts = ["a", "\n", "bc\n\nd", "", "x" * 95, "数学" * 30, "\t", "🙂" * 25, " end\n"]
    lines = page.evaluate(f"viewer.tokenLines.breakLines({json.dumps(texts)}, 40)")
    joined = [""] * len(texts)
    for token, text in zip(lines["token"], lines["text"], strict=True):
        joined[token] += text.replace("⏎", "\n")
    assert joined == texts
    assert lines["starts"][-1] == len(lines["token"]) and lines["starts"] == sorted(lines["starts"])
    for line in range(lines["count"]):
        width = sum(
            2 if ord(c) > 0x2E7F else 4 if c == "\t" else 1
            for text in lines["text"][lines["starts"][line] : lines["starts"][line + 1]] for c in text
        )  # fmt: skip
        assert width <= 41


# pictures


def test_picture_shows_gold_and_given_boxes(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    url = data_url(Picture(64, 48, bytes(64 * 48 * 3)))
    texts = ["\\boxed{[5, 6.5, 20,30]} and (1,2),(40,41)", "[9, 9, 3, 3] inside out", "[1, 2, 3]"]
    counted = page.evaluate(f"""(() => {{
        const parts = viewer.rolloutParts, answer = {{ box: [10, 11, 30, 31], size: [64, 48] }};
        const boxes = parts.answerMarks(answer, {json.dumps(texts)});
        const image = {{ type: "image_url", image_url: {{ url: {json.dumps(url)} }} }};
        const content = [image, {{ type: "text", text: "Where?" }}];
        const [shown] = parts.messageList([{{ role: "user", content }}], boxes);
        const count = (selector) => shown.querySelectorAll(selector).length;
        return [shown.querySelector("svg").getAttribute("viewBox"), count("image"), count(".gold-box"),
          count(".given-box"), shown.querySelector(".model-text").textContent].join("|");
    }})()""")
    assert counted == "0 0 64 48|1|1|2|Where?"


def test_picture_shows_points_and_masks(page: Page, viewer: LiveViewer) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    url = data_url(Picture(8, 4, bytes(8 * 4 * 3)))
    texts = [
        '{"bbox":[1,1,5,3],"points_1":[2,2],"points_2":[3, 2.5]}', "<answer>[4, 1]</answer>",
        "[[1, 1], [5, 1], [3, 3]]", '{"size": [2, 4], "counts": [1, 3, 4]}',
        '{"size": [2, 4], "counts": [1]} and [7]', "[" * 50,
    ]  # fmt: skip
    shown = page.evaluate(f"""(() => {{
        const parts = viewer.rolloutParts, mask = {{ size: [4, 8], counts: [5, 2, 1, 3, 21] }};
        const marks = parts.answerMarks({{ mask, points: [[2, 2]], box: [1, 1, 3, 4] }}, {json.dumps(texts)});
        const content = [{{ type: "image_url", image_url: {{ url: {json.dumps(url)} }} }}];
        const [shown] = parts.messageList([{{ role: "user", content }}], marks);
        const count = (selector) => shown.querySelectorAll(selector).length;
        return {{ gold: ["box", "point", "mask"].map((kind) => count(`.gold-${{kind}}`)),
          given: ["box", "point", "mask"].map((kind) => count(`.given-${{kind}}`)),
          path: shown.querySelector("path.gold-mask").getAttribute("d"),
          label: shown.querySelector("svg").getAttribute("aria-label") }};
    }})()""")
    assert shown["gold"] == [1, 1, 1] and shown["given"] == [1, 3, 2]
    # column 1, rows 1 and 2; column 2, rows 0 to 2
    assert shown["path"] == "M1 1h1v2h-1zM2 0h1v3h-1z"
    assert shown["label"] == "Picture of 8 by 4 pixels with 2 boxes, 4 points and 3 masks"


@pytest.mark.parametrize(
    "url", ["https://example.org/a.png", "data:image/svg+xml;base64,PHN2Zz4=", "javascript:alert(1)", 7]
)
def test_no_other_address_is_loaded_as_a_picture(page: Page, viewer: LiveViewer, url: object) -> None:
    go(page, viewer, "rollouts/{rl}", "tbody tr td a")
    content = [{"type": "image_url", "image_url": {"url": url}}]
    shown = f"viewer.rolloutParts.messageList([{{ role: 'user', content: {json.dumps(content)} }}])[0]"
    assert page.evaluate(f"{shown}.querySelectorAll('svg, img').length") == 0
