"""The chat at `/`, in a real browser: it streams, stops, asks for a key, and never turns a model's text into HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.models.ponder_policy import PonderPolicy
from ponder.serve.chat_files import CHAT_PAGE_PATHS
from ponder.serve.guard import GuardSettings
from ponder.serve.served_models import ServedModel, ThinkMarkers
from serve.live_server import LiveServer, live_server, small_models, small_policy, wait_until

FOLDER = Path(__file__).parents[2] / "src/ponder/serve/chat_page"
KEY = "open-sesame"
DONE = "!document.getElementById('send').disabled && document.querySelectorAll('.assistant').length === {turns}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1000, 700)
        yield page


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Two usual models, and one that thinks until it is stopped."""
    models = small_models()
    policy = small_policy(context=1 << 15)
    endless = PonderPolicy(policy.net, replace(policy.tokenizer, eos=()), cache_bytes=64 << 20)
    models.models["endless"] = ServedModel("endless", endless, ThinkMarkers("<", ">" * 8))
    with live_server(models) as server:
        yield server


def open_chat(page: Page, server: LiveServer, model: str = "thinker") -> None:
    page.open(f"http://127.0.0.1:{server.port}/")
    page.wait_for("document.getElementById('model').options.length === 3")
    page.evaluate(f"document.getElementById('model').value = {json.dumps(model)}")
    page.messages.clear()


def ask(page: Page, question: str, turns: int = 1) -> None:
    page.evaluate("document.getElementById('question').focus()")
    page.type(question)
    page.press("Enter")
    page.wait_for(DONE.format(turns=turns), 60)


def body_of_the_last_request(page: Page) -> dict[str, object]:
    return json.loads(page.evaluate("window.lastBody"))


def watch_requests(page: Page) -> None:
    """Keep the body of each request, as the page sends it."""
    page.evaluate(
        "(() => { const send = window.fetch; window.fetch = (path, options) => {"
        " if (options.body) window.lastBody = options.body; return send(path, options); }; })()"
    )


def test_page_shows_thought_answer_and_cost(page: Page, server: LiveServer) -> None:
    for _ in range(8):  # a model that was not trained may end its thought at once
        open_chat(page, server)
        watch_requests(page)
        page.evaluate("document.getElementById('effort').value = 'minimal'")
        ask(page, "What is 2+2?")
        if page.text(".assistant .thought .text") and page.text(".assistant .answer"):
            break
    assert page.text(".user .answer") == "What is 2+2?" and page.text(".assistant .answer")
    assert page.text(".assistant .thought .text") and page.text(".assistant summary") == "Thought"
    assert not page.visible(".assistant .thought .text"), "the thought is folded"
    page.click(".assistant summary")
    assert page.visible(".assistant .thought .text")
    assert re.search(
        r"^(cut at its bound on tokens · )?[\d,]+ tokens written \([\d,]+ thinking\)", page.text(".cost").strip("|")
    )
    sent = body_of_the_last_request(page)
    assert sent["reasoning_effort"] == "minimal" and sent["model"] == "thinker" and sent["stream"] is True
    ask(page, "And 3+3?", turns=2)
    roles = [m["role"] for m in body_of_the_last_request(page)["messages"]]  # type: ignore[attr-defined]
    assert roles == ["user", "assistant", "user"]
    page.click("#clear")
    assert page.text(".turn") == "" and page.visible("#welcome")
    assert page.messages == []


def test_page_never_makes_html_of_text(page: Page, server: LiveServer) -> None:
    """Whatever a model or a person writes stays text, and the page's policy forbids the rest."""
    open_chat(page, server)
    hostile = "<img src=x onerror='window.hit=1'><script>window.hit=1</script><style>*{display:none}</style>"
    reply = "".join(
        f"data: {json.dumps({'id': 'c', 'choices': [{'index': 0, 'delta': delta}]})}\n\n"
        for delta in ({"reasoning_content": hostile}, {"content": hostile})
    )
    page.evaluate(
        "window.fetch = async () => new Response("
        f"{json.dumps(reply + 'data: [DONE]' + chr(10) * 2)}, {{headers: {{'content-type': 'text/event-stream'}}}})"
    )
    ask(page, hostile)
    assert page.text(".user .answer") == page.text(".assistant .answer") == hostile
    assert page.text(".assistant .thought .text") == hostile
    assert page.evaluate("document.querySelectorAll('main img, main script, main style').length") == 0
    assert page.evaluate("window.hit") is None
    blocked = page.evaluate(
        "new Promise(done => { document.addEventListener('securitypolicyviolation', e => done(e.violatedDirective));"
        " const s = document.createElement('script'); s.src = 'https://example.com/x.js'; document.body.append(s); })"
        ".catch(error => String(error))"
    )
    assert "script" in blocked or "Trusted" in blocked, blocked


def test_page_stops_an_answer(page: Page, server: LiveServer) -> None:
    begin_endless(page, server)
    page.press("Escape")
    page.wait_for("!document.getElementById('send').disabled")
    assert "stopped" in page.text(".assistant .cost") and not page.visible("#stop")
    assert page.text(".assistant .answer") == "" and page.text(".assistant .thought .text")
    wait_until(lambda: len(server.service.running) == 0)


def test_page_ends_the_thinking(page: Page, server: LiveServer) -> None:
    begin_endless(page, server)
    page.click("#end-thinking")
    page.wait_for("document.querySelector('.assistant .answer').textContent.length > 0", 60)
    assert page.text(".assistant summary") == "Thought" and not page.visible("#end-thinking")
    page.click("#stop")
    page.wait_for("!document.getElementById('send').disabled")
    assert page.text(".assistant .answer"), "what was written stays"


def begin_endless(page: Page, server: LiveServer) -> None:
    open_chat(page, server, "endless")
    page.evaluate("document.getElementById('effort').value = 'low'")
    page.evaluate("document.getElementById('question').focus()")
    page.type("Think for long")
    page.press("Enter")
    page.wait_for("document.querySelector('.assistant .thought .text')?.textContent.length > 0", 60)
    assert page.visible("#stop") and page.visible("#end-thinking")


def test_page_reports_a_refused_request(page: Page, server: LiveServer) -> None:
    open_chat(page, server)
    page.evaluate("document.getElementById('effort').append(new Option('enormous')),"
                  " document.getElementById('effort').value = 'enormous'")  # fmt: skip
    page.evaluate("document.getElementById('question').focus()")
    page.type("Hello")
    page.press("Enter")
    page.wait_for("!document.getElementById('alert').hidden")
    assert (
        "reasoning_effort" in page.text("#alert")
        and page.evaluate("document.getElementById('question').value") == "Hello"
    )
    assert page.text(".assistant") == ""


def test_page_works_by_keyboard(page: Page, server: LiveServer) -> None:
    """Every control can be reached with Tab, and has a name."""
    open_chat(page, server)
    names = []
    page.evaluate("document.body.focus(), document.activeElement.blur()")
    for _ in range(9):
        page.press("Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"model", "effort", "clear", "log", "question", "send"} <= set(names), names
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, textarea, input')]"
        ".filter(e => !e.textContent.trim() && !e.labels?.length).map(e => e.id)"
    )
    assert unnamed == []


def test_page_asks_for_the_key(page: Page) -> None:
    with live_server(guard=GuardSettings(api_keys=(KEY,))) as server:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait_for("document.getElementById('key-dialog').open")
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.getElementById('key-reason').textContent.includes('not accepted')")
        page.type(KEY)
        page.press("Enter")
        page.wait_for("document.getElementById('model').options.length === 2")
        assert page.evaluate("sessionStorage.getItem('ponder-key')") == KEY
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        ask(page, "Hello")
        assert page.text(".assistant .answer")
        page.click("#forget")
        page.wait_for("document.getElementById('key-dialog').open")
        assert page.evaluate("sessionStorage.getItem('ponder-key')") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_text_has_contrast(page: Page, server: LiveServer, scheme: str) -> None:
    """WCAG's 4.5 to 1, for the colours of text on those behind it."""
    open_chat(page, server)
    page.prefer(scheme)
    colours = page.evaluate(
        "(() => { const s = getComputedStyle(document.documentElement);"
        " return Object.fromEntries(['page', 'panel', 'ink', 'soft', 'accent', 'on-accent', 'mine', 'alert']"
        ".map(n => [n, s.getPropertyValue('--' + n).trim()])); })()"
    )
    pairs = [("ink", "page"), ("ink", "panel"), ("ink", "mine"), ("soft", "page"), ("soft", "panel"),
             ("on-accent", "accent"), ("alert", "panel")]  # fmt: skip
    assert min(contrast(colours[text], colours[behind]) for text, behind in pairs) >= 4.5
    page.prefer("light")


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# without a browser


def test_page_files_have_strict_headers(server: LiveServer) -> None:
    for path in CHAT_PAGE_PATHS:
        reply = server.get(path)
        assert reply.status == 200 and reply.body == (FOLDER / (path.rpartition("/")[2] or "index.html")).read_bytes()
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert {path.name for path in FOLDER.iterdir()} == {
        path.rpartition("/")[2] or "index.html" for path in CHAT_PAGE_PATHS
    }


def test_page_needs_nothing_from_elsewhere() -> None:
    """No CDN, no inline script or style, and no way to make HTML of text."""
    html, script, style = ((FOLDER / name).read_text() for name in ("index.html", "chat.js", "chat.css"))
    assert not re.search(r"https?://", html + script + style)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage", script
    )
