"""`ponder.view` in a notebook: a frame that a page of this machine may show, and an end."""

from __future__ import annotations

import http.server
import threading
import urllib.request
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

import ponder
from browser import open_browser
from fake_runs import right_answer, write_run
from ponder.errors import UsageError


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def test_frame_shows_the_runs_in_a_page_of_this_machine(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "first", [[right_answer(0)]])
    viewer = ponder.view(tmp_path / "runs", height=500)
    (tmp_path / "index.html").write_text(f"<!doctype html><title>notebook</title>{viewer._repr_html_()}")
    notebook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path)))
    threading.Thread(target=notebook.serve_forever, args=(0.01,), daemon=True).start()
    try:
        assert 'height="500"' in viewer._repr_html_() and viewer.url in repr(viewer)
        with urllib.request.urlopen(f"{viewer.url}api/runs") as reply:
            assert b'"first"' in reply.read()
        with open_browser(tmp_path / "profile") as page:
            page.open(f"http://127.0.0.1:{notebook.server_address[1]}/")
            (frame,) = page.call("Page.getFrameTree")["frameTree"]["childFrames"]
            assert frame["frame"]["url"].startswith(viewer.url), "not an error page: its policy allows this frame"
            assert not [message for message in page.messages if "frame-ancestors" in message]
    finally:
        notebook.shutdown()
        viewer.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(viewer.url, timeout=2)


def test_wrong_folder_or_height_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        ponder.view(tmp_path / "none")
    with pytest.raises(UsageError, match="height is '1'"):
        ponder.view(tmp_path, height="1")  # type: ignore[arg-type]
