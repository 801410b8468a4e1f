"""The files of the page, by their path on the server. Nothing else is served as a file."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_files(licences: bool = False) -> dict[str, Traversable]:
    """Every file of the page by its name, such as `index.html` or `vendor/uPlot.iife.min.js`. `licences`: also those of
    vendored files, which go with a copy and are not served."""
    out: dict[str, Traversable] = {}
    waiting = [("", resources.files("ponder.viewer") / "page")]
    while waiting:
        prefix, folder = waiting.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                waiting.append((f"{prefix}{entry.name}/", entry))
            elif licences or content_type(entry.name):
                out[prefix + entry.name] = entry
    return out


def content_type(name: str) -> str:
    """Empty for files that are not part of the page, such as licences."""
    return CONTENT_TYPES.get("." + name.rpartition(".")[2], "")
