"""The viewer and strangers: foreign pages are refused, script payloads stay text, a bad run directory is a sentence."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from browser import Page, open_browser
from fake_runs import right_answer, write_run, wrong_answer
from ponder.viewer.export import export_view
from viewer.hostile_runs import BROKEN, PAYLOADS, break_file, write_payload_run
from viewer.live_viewer import LiveViewer, live_viewer


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_CACHE", str(tmp_path_factory.mktemp("cache")))


def good_run(folder: Path) -> Path:
    write_run(folder, [[right_answer(p), wrong_answer(p)] for p in range(3)])
    (folder / "metrics.jsonl").write_text('{"step":0,"time":1.0,"reward":0.5}\n')
    return folder


# Whom it answers


def raw_request(viewer: LiveViewer, lines: list[str]) -> int:
    """The status of a request that is written by hand, or 0 where the connection is closed without one."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
    connection.connect()
    connection.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    try:
        reply = http.client.HTTPResponse(connection.sock)
        reply.begin()
        return reply.status
    except (http.client.HTTPException, OSError):
        return 0
    finally:
        connection.close()


def test_foreign_hosts_origins_and_paths_are_not_served(tmp_path: Path) -> None:
    good_run(tmp_path / "root" / "run")
    (tmp_path / "secret.txt").write_text("secret")
    with live_viewer(tmp_path / "root") as viewer:
        port = viewer.port
        own = f"127.0.0.1:{port}"
        names = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost", "0.0.0.0",
                 "[::]", "127.0.0.2", "127.1", "2130706433", "0x7f.1", "localhost.", "127.0.0.1.", "[::ffff:127.0.0.1]",
                 "user@127.0.0.1", "127.0.0.1@evil.example")  # fmt: skip
        hosts = [*(f"{name}:{port}" for name in names), *names, "", "127.0.0.1", "localhost", f"127.0.0.1:{port + 1}",
                 f"127.0.0.1:0{port}", f"127.0.0.1:{port}/", f" {own} x", f"{own},{own}", "null", "*"]  # fmt: skip
        origins = [*(f"http://{name}:{port}" for name in names), f"https://{own}", "null", "", "file://", f"http://{own}/",
                   f"http://{own}.evil.example", f"http://127.0.0.1:{port + 1}", "http://127.0.0.1", "*",
                   f"http://{own} http://evil.example", f"ws://{own}", f"HTTP://x@{own}"]  # fmt: skip
        outside = ("../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "%2e%2e%2fsecret.txt", "....//secret.txt",
                   "..;/secret.txt", "..\\secret.txt", "%5c..%5csecret.txt", "vendor/../../../__init__.py", "api.py",
                   "index.html/../../app.py", "/etc/passwd", "%00", "index.html%00.js", "page/index.html", "vendor",
                   "vendor/", "vendor/README", "__init__.py", ".", "..", "//etc/passwd", "file:///etc/passwd",
                   "data/index.js", "index.html/", "INDEX.HTML", "core.js/", "runs/run/job.json",
                   f"{tmp_path}/secret.txt")  # fmt: skip
        api = ("runs/../../secret.txt", "runs/run", "runs/..", "runs/%2e%2e/metrics", f"runs/{'0' * 12}",
               "runs/zzz/traces", "runs//metrics", "events", "events?run=..", "events?run=/etc", "compare",
               f"search?run={'0' * 12}&q=a",
               f"compare?runs=..,{tmp_path}", "fronts?runs=/etc/passwd", "metrics/preview?runs=..", "ask", "ask/models",
               "x" * 5000)  # fmt: skip
        asked = ["GET /api/runs HTTP/1.1", f"Host: {own}"]
        served = [h for h in hosts if raw_request(viewer, ["GET /api/runs HTTP/1.1", f"Host: {h}"]) == 200]
        served += [o for o in origins if raw_request(viewer, [*asked, f"Origin: {o}"]) == 200]
        paths = [*(f"/{each}" for each in outside), *(f"/api/{each}" for each in api)]
        served += [p for p in paths if raw_request(viewer, [f"GET {p} HTTP/1.1", f"Host: {own}"]) == 200]
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
            lines = [f"{method} /api/runs HTTP/1.1", f"Host: {own}", "Content-Length: 0"]
            served += [method] if raw_request(viewer, lines) == 200 else []
        served += [
            s for s in ("cross-site", "same-site") if raw_request(viewer, [*asked, f"Sec-Fetch-Site: {s}"]) == 200
        ]
        assert len(hosts) + len(origins) + len(outside) + len(api) >= 100
        assert served == []
        assert raw_request(viewer, [*asked, f"Host: {own}"]) != 200, "two hosts"
        assert raw_request(viewer, [*asked, f"Origin: http://{own}"]) == 200
        assert raw_request(viewer, ["GET / HTTP/1.1", f"Host: LOCALHOST:{port}", "Sec-Fetch-Mode: navigate",
                                    "Sec-Fetch-Site: cross-site"]) == 200, "a link to the page"  # fmt: skip


def test_frames_are_allowed_only_where_embedding_is_on(tmp_path: Path) -> None:
    for embed in (False, True):
        with live_viewer(tmp_path, embed=embed) as viewer:
            policy = viewer.send("GET", "/").headers["content-security-policy"]
            assert ("frame-ancestors 'none'" in policy) is not embed
            assert "evil" not in policy and "*;" not in policy


# What it shows


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1200, 900)
        yield page


NUM_TRACES = len(PAYLOADS) // 5


@pytest.fixture(scope="module")
def payload_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("payloads")
    write_payload_run(root / "<img src=x onerror=window.pwned=1>", PAYLOADS, NUM_TRACES)
    write_payload_run(root / "other", PAYLOADS, NUM_TRACES)
    return root


def visit_every_page(page: Page, address: str, runs: list[str]) -> None:
    """Open each view; wherever a script of a payload ran, `pwned` is set, or a dialog would have stopped the page."""
    hashes = ["/runs", f"/run/{runs[0]}", f"/rollouts/{runs[0]}", f"/tree/{runs[0]}/1", f"/trace/{runs[0]}/2",
              *(f"/rollouts/{runs[0]}/{number}" for number in range(1, NUM_TRACES + 1, 2)),
              f"/compare?runs={','.join(runs)}", f"/fronts?runs={','.join(runs)}"]  # fmt: skip
    page.messages.clear()
    page.open(address)
    for where in hashes:
        page.evaluate(f"location.hash = {json.dumps(where)}")
        page.wait_for("document.getElementById('main').textContent.length > 40 && !document.querySelector('.waiting')")
        assert page.evaluate("window.pwned === undefined && ({}).pwned === undefined"), where
        made = "#main script, #main iframe, #main object, #main img"
        assert page.evaluate(f"document.querySelectorAll('{made}').length") == 0, where
    assert page.messages == []


def test_payloads_are_many() -> None:
    assert len(set(PAYLOADS)) >= 150


def test_payloads_over_the_api_stay_json(payload_runs: Path) -> None:
    with live_viewer(payload_runs) as viewer:
        run = viewer.run_id("other")
        paths = ["/api/runs", f"/api/runs/{run}", f"/api/runs/{run}/metrics", f"/api/runs/{run}/traces",
                 f"/api/runs/{run}/traces/1", f"/api/runs/{run}/traces/1/tree", f"/api/runs/{run}/traces/1/tokens",
                 f"/api/runs/{run}/traces/1/node/3", f"/api/search?run={run}&q=script"]  # fmt: skip
        for path in paths:
            reply = viewer.send("GET", path)
            assert reply.status == 200, (path, reply.body[:300])
            assert reply.headers["content-type"] == "application/json" and reply.json
            assert reply.headers["x-content-type-options"] == "nosniff"
        error = viewer.send("GET", "/api/<script>alert(1)</script>")
        assert error.status == 404 and error.headers["content-type"] == "application/json"


def test_no_payload_runs_in_the_live_page(payload_runs: Path, page: Page) -> None:
    with live_viewer(payload_runs) as viewer:
        runs = [run["id"] for run in viewer.get("/api/runs")["runs"]]
        visit_every_page(page, viewer.url, runs)


def test_no_payload_runs_in_the_exported_page(payload_runs: Path, page: Page, tmp_path: Path) -> None:
    assert export_view(payload_runs, tmp_path / "copy") == 2
    index = (tmp_path / "copy" / "index.html").absolute()
    page.open(index.as_uri())
    runs = page.evaluate("viewer.data.get('/api/runs').then(a => a.runs.map(r => r.id))")
    visit_every_page(page, index.as_uri(), runs)


# What it reads


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_run_directory_is_one_sentence(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    good_run(root / "good")
    good_run(root / "bad")
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text('{"step":0,"reward":12345,"secret":54321}\n')
    break_file(root / "bad", kind, secret)
    before = sorted((path, path.lstat().st_mtime_ns) for path in root.rglob("*"))
    with live_viewer(root) as viewer:
        good, bad = viewer.run_id("good"), viewer.run_id("bad")
        assert viewer.get(f"/api/runs/{good}/traces")["total"] == 3, "others are shown"
        for path in ("", "/metrics", "/metrics/preview", "/traces", "/traces?sort=reward", "/traces/1",
                     "/traces/1/tree", "/traces/1/tokens", "/traces/1/node/0"):  # fmt: skip
            assert_sentence_or_data(viewer.send("GET", f"/api/runs/{bad}{path}"))
        for path in (f"/api/search?run={bad}&q=1", f"/api/compare?runs={good},{bad}", f"/api/fronts?runs={bad}",
                     f"/api/metrics/preview?runs={good},{bad}&names=reward,secret"):  # fmt: skip
            assert_sentence_or_data(viewer.send("GET", path))
    assert not Path(f"{secret}.run").exists(), "nothing was executed"
    assert before == sorted((path, path.lstat().st_mtime_ns) for path in root.rglob("*")), "nothing was written"


def assert_sentence_or_data(reply: Any) -> None:
    assert reply.status in (200, 400, 404), reply.body[:300]
    assert b"12345" not in reply.body and b"54321" not in reply.body, "a file outside was read"
    if reply.status != 200:
        assert set(reply.json) == {"error"} and 10 < len(reply.json["error"]) < 600 and "\n" not in reply.json["error"]
