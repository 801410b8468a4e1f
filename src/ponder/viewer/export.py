"""A copy of the viewer that needs no server and opens from `file://`: the page, and the API's answers in files.

The answers are scripts, since a page from `file://` may load scripts and nothing else: each parses texts that are JSON,
so that nothing in a run directory can become code. A policy in the page itself keeps it from loading anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from ponder.errors import PonderError, UsageError
from ponder.viewer.api import Api
from ponder.viewer.page_files import page_files
from ponder.viewer.plain_json import to_json
from ponder.viewer.run_listing import RunLibrary
from ponder.viewer.trace_facts import BAD_TRACE_ERRORS

MAX_TRACES = 500  # of a run: the last ones
MAX_TOKEN_PATHS = 64  # completions of a trace that are copied token by token
MAX_COMPARED_RUNS = 8
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
_DATA_MARK = "</head>"
_INDEX_FILE = "data/index.js"

Shards = dict[str, Any]  # answers by path


def export_view(root: Path, folder: Path, on_run: Callable[[str], None] = lambda name: None) -> int:
    """Write the copy into a new folder. Returns how many runs it holds. `on_run`: called with the name of each."""
    _check_target(folder)
    api = Api(RunLibrary(root), exported=True)
    rows = _all_rows(api)
    files: dict[str, str] = {}  # by path, the file that answers it
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for row in rows:
        on_run(row["name"])
        for name, shards in _run_shards(api, row):
            _write_shards(folder / name, shards)
            files |= dict.fromkeys(shards, name)
    compared = _compare_shards(api, rows)
    for i, (path, answer) in enumerate(compared.items()):
        _write_shards(folder / f"data/compare-{i}.js", {path: answer})
        files[path] = f"data/compare-{i}.js"
    first = {"/api/info": api.get("/api/info", {}), "/api/runs": {"runs": rows}}
    _write_shards(folder / _INDEX_FILE, first, files)
    _copy_page(folder)
    return len(rows)


def _check_target(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty: name a new folder for the copy")
    for parent in (folder.absolute(), *folder.absolute().parents):
        if (parent / "job.json").is_file():
            raise UsageError(f"{folder} lies in the run directory {parent}: name a folder outside of it")


def _all_rows(api: Api) -> list[dict[str, Any]]:
    """The list of runs, when all of their metrics are read."""
    while True:
        rows: list[dict[str, Any]] = api.get("/api/runs", {})["runs"]
        if all(row["complete"] for row in rows):
            return rows


def _run_shards(api: Api, row: Mapping[str, Any]) -> Iterator[tuple[str, Shards]]:
    """The files of one run: its details, metrics and list of traces; and one for each trace."""
    run = row["id"]
    place = f"/api/runs/{run}"
    shards = _answers(api, [place, f"{place}/metrics"])
    traces = _trace_rows(api, run) if row["has_traces"] else []
    shards[f"{place}/traces"] = {"total": len(traces), "indexed": len(traces), "rows": traces, "complete": True}
    shards |= _answers(api, [f"/api/fronts?runs={run}"]) if traces else {}
    yield f"data/{run}.js", shards
    for i, trace in enumerate(traces):
        each = _trace_shards(api, path := f"{place}/traces/{trace['number']}")
        if i == 0 and path in each:
            each[path]["previous"] = None  # the traces before it are not in the copy
        yield f"data/{run}-{trace['number']}.js", each


def _trace_rows(api: Api, run: str) -> list[dict[str, Any]]:
    while True:
        try:
            page = api.get(f"/api/runs/{run}/traces", {"sort": "-number", "size": str(MAX_TRACES)})
        except PonderError:
            return []
        if page["complete"] or page.get("damage"):
            rows: list[dict[str, Any]] = page["rows"]
            return rows[::-1]


def _trace_shards(api: Api, place: str) -> Shards:
    shards = _answers(api, [place, f"{place}/tree"])
    paths = shards.get(place, {}).get("completions", [])[:MAX_TOKEN_PATHS]
    return shards | _answers(api, [f"{place}/tokens?leaf={path[-1]}" for path in paths])


def _compare_shards(api: Api, rows: list[dict[str, Any]]) -> Shards:
    """Every run against every other, as far as they have problems in common."""
    newest = sorted((row for row in rows if row["has_traces"]), key=lambda row: -row["modified"])[:MAX_COMPARED_RUNS]
    pairs = permutations([row["id"] for row in newest], 2)
    return _answers(api, [f"/api/compare?runs={quote(f'{a},{b}', safe='')}" for a, b in pairs])


def _answers(api: Api, paths: list[str]) -> Shards:
    """The answers that there are: what cannot be shown is left out, and the page says that it is not there."""
    out: Shards = {}
    for path in paths:
        url = urlsplit(path)
        try:
            answer = api.get(url.path, dict(parse_qsl(url.query)))
            to_json(answer)
        except (PonderError, OSError, *BAD_TRACE_ERRORS):
            continue
        out[path] = answer
    return out


def _write_shards(path: Path, shards: Shards, files: Mapping[str, str] | None = None) -> None:
    """A script that hands texts to the page, which parses them as JSON. Written so, a key such as __proto__ is data."""
    lines = ['"use strict";']
    for name, answer in shards.items():
        lines.append(f"viewer.shard({json.dumps(name)}, JSON.parse({json.dumps(to_json(answer).decode())}));")
    if files is not None:
        lines.append(f"Object.assign(viewer.shardFiles, JSON.parse({json.dumps(json.dumps(files))}));")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def _copy_page(folder: Path) -> None:
    for name, source in page_files(licences=True).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    page = folder / "index.html"
    html = page.read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {policy}', 1)
    html = html.replace(_DATA_MARK, f'  <script src="{_INDEX_FILE}" defer></script>\n{_DATA_MARK}', 1)
    page.write_text(html, encoding="utf-8")
