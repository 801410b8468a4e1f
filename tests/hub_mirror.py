"""A mirror of the Hugging Face hub on the loopback interface: the routes that the real client downloads with.

/api/models/ID/revision/REVISION      commit and names of files     (/api/datasets/... for data sets)
/api/models/ID/tree/COMMIT            names, sizes and hashes
/ID/resolve/COMMIT/FILE               a file, with ETag and X-Repo-Commit     (/datasets/ID/resolve/...)
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

_ROUTE = re.compile(
    r"/(?:api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/([^/]+)|(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+))"
)


@dataclass
class MirrorRepo:
    """Files by commit, commits by branch or tag."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False

    def commit(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Add a commit and move a branch to it."""
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha


@dataclass
class HubMirror:
    """Repositories by kind and id, and the paths of all requests."""

    url: str
    repos: dict[tuple[str, str], MirrorRepo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    cut_off: str = ""  # a file whose transfer breaks off in the middle

    def add(self, repo_id: str, folder: Path, kind: str = "models") -> str:
        """Publish all files of a folder. Returns the commit."""
        files = {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
        return self.repos.setdefault((kind, repo_id), MirrorRepo()).commit(files)

    @property
    def downloads(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.requests if path.startswith("GET ") and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    mirror: HubMirror
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.mirror.requests.append(f"{self.command} {path}")
        match = _ROUTE.fullmatch(path)
        if match is None:
            return self._send(404, b"", {})
        api, api_id, verb, revision, dataset, file_id, file_revision, name = match.groups()
        kind = api or ("datasets" if dataset else "models")
        repo = self.mirror.repos.get((kind, api_id or file_id))
        if repo is None:
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if repo.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        asked = revision or file_revision
        commit = repo.refs.get(asked, asked)
        files = repo.commits.get(commit)
        if files is None:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Revision not found"})
        if name is None:
            return self._send(200, json.dumps(self._listing(verb, api_id, commit, files)).encode(), {}, body)
        if name not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        headers = {"ETag": f'"{_git_blob(files[name])}"', "X-Repo-Commit": commit}
        self._send(200, files[name], headers, body, cut=name == self.mirror.cut_off)

    def _listing(self, verb: str, repo_id: str, commit: str, files: Mapping[str, bytes]) -> Any:
        if verb == "revision":
            siblings = [{"rfilename": name} for name in files]
            return {"id": repo_id, "_id": "0", "sha": commit, "private": False, "tags": [], "siblings": siblings}
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _git_blob(data)} for name, data in files.items()
        ]

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], body: bool = True, cut: bool = False) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = cut


def _git_blob(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def serve_mirror() -> Iterator[HubMirror]:
    """A mirror on a free port, until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.mirror = HubMirror(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield handler.mirror  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path, offline: bool = False) -> None:
    """Point the client at a hub and a cache. It reads its environment once, when it is imported; so both are set."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int(offline)))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
