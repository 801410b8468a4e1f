"""The page Ask in a real browser, before a real server; and the proxy that it asks through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from ponder.errors import UsageError
from ponder.viewer.ask_proxy import MAX_BODY_BYTES, AskError, AskServer, read_question
from serve.live_server import LiveServer, live_server, pausing_engine, wait_until
from viewer.live_viewer import LiveViewer, live_viewer
from viewer.page_checks import check_sizes_and_themes

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def viewer(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveViewer]:
    with live_viewer(tmp_path_factory.mktemp("runs"), server.url) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1200, 900)
        yield page


def ask(viewer: LiveViewer, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return viewer.send("POST", "/api/ask", {**JSON, **headers}, data)


# the page


def fill(page: Page, name: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const e = document.querySelector('[name={name}]'); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')); })()"
    )


def test_question_grows_a_tree_and_ends_in_an_answer_and_its_cost(page: Page, viewer: LiveViewer) -> None:
    page.open(viewer.url + "#/ask")
    page.wait_for("document.querySelectorAll('select[name=model] option').length === 2")
    fill(page, "effort", "3")
    fill(page, "strategy", "beam-search")
    fill(page, "settings", "n=4 beam_width=2 cut=tokens:6")
    assert page.text(".effort-name") == "low"
    page.click("[name=question]")
    page.type("2+2?")
    page.press("Enter")
    page.wait_for("document.querySelector('.ask-cost')?.textContent.includes('written')", 60)
    assert page.text(".ask-answer .model-text")
    assert "step" in page.text(".ask-cost") and page.text(".failure") == ""
    assert page.visible(".ask-thought") and page.visible(".ask-tree canvas")
    assert page.evaluate("location.hash") == (
        "#/ask?effort=low&strategy=beam-search&settings=n%3D4+beam_width%3D2+cut%3Dtokens%3A6"
    )
    page.evaluate("document.querySelector('.tree-canvas').focus()")
    page.evaluate(
        "document.querySelector('.tree-canvas').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'End', bubbles: true, cancelable: true}))"
    )
    page.wait_for("document.querySelector('.ask-node strong')?.textContent.startsWith('Step ')")
    check_sizes_and_themes(page)
    page.resize(1200, 900)


def test_page_shows_the_servers_refusal(page: Page, viewer: LiveViewer) -> None:
    page.open("about:blank")
    page.open(viewer.url + "#/ask?strategy=no-such-strategy")
    page.wait_for("document.querySelectorAll('select[name=model] option').length === 2")
    page.click("[name=question]")
    page.type("2+2?")
    page.press("Enter")
    page.wait_for("document.querySelector('.failure').textContent.includes('no strategy named')")


def test_stop_ends_the_request_on_the_server(page: Page, viewer: LiveViewer, server: LiveServer) -> None:
    page.open("about:blank")
    page.open(viewer.url + "#/ask?effort=max")
    page.wait_for("document.querySelectorAll('select[name=model] option').length === 2")
    page.click("[name=question]")
    page.type("2+2?")
    with pausing_engine():
        page.press("Enter")
        wait_until(lambda: len(server.service.running) == 1)
        page.wait_for("!document.querySelector('.ask-form button[type=button]').hidden")
        page.click(".ask-form button[type=button]")
        page.wait_for("document.querySelector('.ask-cost').textContent.startsWith('stopped')")
        page.wait_for("!document.querySelector('.ask-form button.main').disabled")
        wait_until(lambda: not len(server.service.running))


# the proxy


def test_models_lists_those_that_answer(viewer: LiveViewer) -> None:
    models = viewer.get("/api/ask/models")["models"]
    assert [(model["id"], model["thinks"]) for model in models] == [("plain", False), ("thinker", True)]


def test_reply_is_the_servers_stream(viewer: LiveViewer) -> None:
    reply = ask(viewer, {"question": "2+2?", "model": "plain", "effort": "none"})
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body.endswith(b"data: [DONE]\n\n") and b'"search":' in reply.body and b'"usage":{' in reply.body


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        ([], 400, "JSON object"),
        ({}, 400, "question must be a text"),
        ({"question": "  "}, 400, "question must be a text"),
        ({"question": ["x"]}, 400, "question must be a text"),
        ({"question": "x", "url": "http://example.com"}, 400, "no field 'url'"),
        ({"question": "x", "messages": []}, 400, "no field 'messages'"),
        ({"question": "x", "effort": "enormous"}, 400, "effort is one of"),
        ({"question": "x", "strategy": 3}, 400, "strategy must be a name"),
        ({"question": "x", "strategy": "mcts", "settings": {"a": [1]}}, 400, "settings must be"),
        ({"question": "x", "max_tokens": True}, 400, "max_tokens must be"),
        ({"question": "x", "model": "nobody"}, 404, "the server says:"),
    ],
)
def test_bad_question_is_one_sentence(viewer: LiveViewer, body: Any, status: int, words: str) -> None:
    reply = ask(viewer, body)
    assert reply.status == status and words in reply.json["error"] and "\n" not in reply.json["error"]


def test_foreign_origin_form_and_large_body_are_refused(viewer: LiveViewer) -> None:
    question = {"question": "x"}
    assert ask(viewer, question, Origin="http://evil.example").status == 403
    assert ask(viewer, question, Origin="null").status == 403
    assert ask(viewer, question, Host="evil.example").status == 403
    assert ask(viewer, question, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert ask(viewer, question, **{"Content-Type": kind}).status == 415
    assert ask(viewer, b" " * (MAX_BODY_BYTES + 1)).status == 413
    assert viewer.send("GET", "/api/ask").status in (404, 405)
    assert viewer.send("POST", "/api/runs", JSON, b"{}").status == 405


def test_viewer_without_server_takes_no_post(tmp_path: Path) -> None:
    with live_viewer(tmp_path) as viewer:
        assert ask(viewer, {"question": "x"}).status == 405
        assert viewer.send("GET", "/api/ask/models").status == 404
        assert viewer.get("/api/info")["serve"] is False


def test_server_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    with live_viewer(tmp_path, "http://127.0.0.1:9") as viewer:
        reply = ask(viewer, {"question": "x"})
        assert reply.status == 502 and "no server answers at 127.0.0.1:9" in reply.json["error"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:key@host", "http://h/?a=b", "http://h:99999", "x"])
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        AskServer.parse(url)


def test_key_is_not_sent_in_the_clear_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_API_KEY", "secret")
    assert AskServer.parse("http://127.0.0.1:8000/v1/").api_key == "secret"
    assert AskServer.parse("https://models.example/ponder/v1").path == "/ponder"
    with pytest.raises(UsageError, match="in the clear"):
        AskServer.parse("http://models.example")


def test_question_becomes_a_streamed_chat() -> None:
    settings = {"n": 4, "cut": "tokens:6", "name": "other"}
    body = read_question(json.dumps({"question": "x", "model": "m", "strategy": "mcts", "settings": settings}).encode())
    assert body["messages"] == [{"role": "user", "content": "x"}] and body["stream"] is True
    assert body["strategy"] == {"name": "mcts", "n": 4, "cut": "tokens:6"}
    with pytest.raises(AskError):
        read_question(b'{"question": "x", "question": "y"}')
