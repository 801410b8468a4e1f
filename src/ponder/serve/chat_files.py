"""The chat page: its files, and the headers that keep it from loading or running anything else.

The page holds no secret, so it is served without a key; the key that a visitor types goes with each request that the
page makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    body: bytes
    headers: dict[str, str]


# By its path on the server, each file of the page.
_FILE_NAMES = {
    "/": "index.html",
    "/chat_page/chat.css": "chat.css",
    "/chat_page/chat.js": "chat.js",
    "/chat_page/icon.svg": "icon.svg",
}
CHAT_PAGE_PATHS = tuple(_FILE_NAMES)


def chat_page_files() -> dict[str, PageFile]:
    """The files of the page by their path on the server."""
    folder = resources.files("ponder.serve") / "chat_page"
    return {
        path: PageFile(
            (folder / name).read_bytes(), {"content-type": CONTENT_TYPES["." + name.rpartition(".")[2]], **HEADERS}
        )
        for path, name in _FILE_NAMES.items()
    }
