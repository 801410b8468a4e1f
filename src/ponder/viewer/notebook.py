"""The viewer in a notebook: `ponder.view("runs")` serves from a thread and shows the page in a frame."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from ponder.errors import UsageError
from ponder.local_http import bind
from ponder.viewer.server import check_extra, make_uvicorn

_START_SECONDS, _STOP_SECONDS = 30.0, 10.0
_HOST = "127.0.0.1"


class NotebookViewer:
    """A viewer that runs until `close()`, or until Python ends. A notebook shows it as a frame of `height` pixels."""

    def __init__(self, runs: Path, height: int) -> None:
        from ponder.viewer.app import make_app
        from ponder.viewer.guard import ViewerGuardSettings
        from ponder.viewer.run_listing import RunLibrary

        self.runs, self.height = runs, height
        self._listener = bind(_HOST, 0)
        port = self._listener.getsockname()[1]
        self.url = f"http://{_HOST}:{port}/"
        self._server = make_uvicorn(make_app(RunLibrary(runs), ViewerGuardSettings(port, embed=True)))
        self._thread = threading.Thread(target=self._serve, name="ponder view", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._server.started:
            self.close()
            raise UsageError("the viewer did not start: `ponder view` in a terminal shows it as well")

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._listener.close()

    def __repr__(self) -> str:
        return f"<viewer of {self.runs} at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" title="ponder view" width="100%" height="{self.height}"></iframe>'


def view(runs: str | Path = "runs", height: int = 720) -> NotebookViewer:
    """Look at run directories in a notebook on this machine, or at the `url` of what this returns."""
    folder = Path(runs)
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: name the one that your run directories are in")
    if type(height) is not int or not 100 <= height <= 10_000:
        raise UsageError(f"height is {height!r}; it is a number of pixels, from 100 to 10000")
    check_extra()
    return NotebookViewer(folder, height)
