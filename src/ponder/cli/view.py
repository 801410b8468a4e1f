"""`ponder view`: run directories in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ponder.errors import UsageError

HOST = "127.0.0.1"


def view(
    runs: Annotated[Path, "a folder of run directories, or one run directory"] = Path("runs"),
    /,
    *,
    port: Annotated[int, "0: any free one"] = 0,
    serve: Annotated[str, "the address of a `ponder serve`, as http://127.0.0.1:8000: adds a page that asks it"] = "",
    open: Annotated[bool, "open the page in the web browser"] = False,
    export: Annotated[Path | None, "write a copy that needs no server into this new folder, and exit"] = None,
) -> int:
    """Look at runs in a browser: curves, rollouts token by token, search trees, comparisons. Ctrl-C ends it.

    Only this machine can reach the page. Runs are read while they are written, and never changed.
    """
    from ponder.local_http import bind
    from ponder.viewer.server import check_extra, run_server

    if not runs.is_dir():
        raise UsageError(f"{runs} is no folder: name the one that your run directories are in")
    if serve and not serve.startswith(("http://", "https://")):
        raise UsageError(f"--serve is {serve!r}; it is the address of a server, such as http://127.0.0.1:8000")
    if export is not None:
        return _export(runs, export, open)
    check_extra()
    from ponder.viewer.app import make_app
    from ponder.viewer.guard import ViewerGuardSettings
    from ponder.viewer.run_listing import RunLibrary

    with bind(HOST, port) as listener:
        address = f"http://{HOST}:{listener.getsockname()[1]}/"

        def ready() -> None:
            print(f"{runs} at {address} (Ctrl-C ends it)", flush=True)
            if open:
                _open_browser(address)

        app = make_app(RunLibrary(runs, serve), ViewerGuardSettings(listener.getsockname()[1]))
        run_server(app, listener, ready)
    return 0


def _export(runs: Path, folder: Path, open: bool) -> int:
    from ponder.viewer.export import export_view

    count = export_view(runs, folder)
    page = (folder / "index.html").absolute()
    print(f"{count} runs in {page}")
    if open:
        _open_browser(page.as_uri())
    return 0


def _open_browser(address: str) -> None:
    import webbrowser

    webbrowser.open(address)
