"""The JSON interface: a path and its parameters in, plain data out. The server and the export both ask here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ponder.viewer.comparisons import compare_runs
from ponder.viewer.errors import NotFound
from ponder.viewer.fronts import front_figures
from ponder.viewer.metric_slices import MetricSlices, no_preview, preview, previews
from ponder.viewer.query import Query
from ponder.viewer.row_database import RowDatabase
from ponder.viewer.run_attempts import AttemptsLibrary
from ponder.viewer.run_listing import RunLibrary
from ponder.viewer.text_search import MAX_HITS, search_traces
from ponder.viewer.trace_library import TraceLibrary
from ponder.viewer.trace_rows import list_traces
from ponder.viewer.trace_view import node_json, tokens_json, trace_json
from ponder.viewer.tree_view import tree_json

Handler = Callable[..., Any]
MAX_RUNS = 500  # of one preview


class Api:
    """Answers requests about the runs of one library. `exported`: the answers go into files."""

    def __init__(self, library: RunLibrary, exported: bool = False) -> None:
        self.library, self.exported = library, exported
        self.slices, self.traces, self.attempts = MetricSlices(), TraceLibrary(), AttemptsLibrary()
        run, number = r"(?P<run>[0-9a-f]{12})", r"(?P<number>[0-9]{1,12})"
        self._routes: list[tuple[re.Pattern[str], Handler]] = [
            (re.compile(pattern), handler)
            for pattern, handler in (
                (r"/api/info", self.info),
                (r"/api/runs", self.runs),
                (rf"/api/runs/{run}", self.run),
                (rf"/api/runs/{run}/metrics", self.metrics),
                (rf"/api/runs/{run}/metrics/preview", self.preview),
                (r"/api/metrics/preview", self.previews),
                (rf"/api/runs/{run}/traces", self.list_traces),
                (rf"/api/runs/{run}/traces/{number}", self.trace),
                (rf"/api/runs/{run}/traces/{number}/tokens", self.tokens),
                (rf"/api/runs/{run}/traces/{number}/tree", self.tree),
                (rf"/api/runs/{run}/traces/{number}/node/(?P<node>[0-9]{{1,12}})", self.node),
                (r"/api/search", self.search),
                (r"/api/compare", self.compare),
                (r"/api/fronts", self.fronts),
            )
        ]

    def get(self, path: str, parameters: Mapping[str, str]) -> Any:
        for pattern, handler in self._routes:
            if match := pattern.fullmatch(path):
                return handler(Query(parameters), **match.groupdict())
        raise NotFound(f"there is nothing at {path[:200]}")

    def info(self, query: Query) -> Any:
        return {
            "version": _version(), "root": self.library.root.name, "serve": bool(self.library.serve_url),
            "exported": self.exported,
        }  # fmt: skip

    def runs(self, query: Query) -> Any:
        return {"runs": self.library.rows()}

    def run(self, query: Query, run: str) -> Any:
        return self.library.details(run)

    def metrics(self, query: Query, run: str) -> Any:
        folder = self.library.find(run).path
        return self.slices.slice(folder, query.whole("after", 0), frozenset(query.names("names")))

    def preview(self, query: Query, run: str) -> Any:
        folder = self.library.find(run).path
        return preview(folder, frozenset(query.names("names")), query.whole("points", 400, 2, 10_000))

    def previews(self, query: Query) -> Any:
        folders, gone = dict[str, Path](), dict[str, Any]()
        for run in query.names("runs")[:MAX_RUNS]:
            try:
                folders[run] = self.library.find(run).path
            except NotFound as why:  # the curves of the others can be drawn
                gone[run] = no_preview(str(why))
        if gone and not folders:
            raise NotFound(next(iter(gone.values()))["error"])
        drawn = previews(folders, frozenset(query.names("names")), query.whole("points", 400, 2, 10_000))
        return {"runs": drawn | gone}

    def list_traces(self, query: Query, run: str) -> Any:
        return list_traces(self.traces.index(self.library.find(run).path), query)

    def trace(self, query: Query, run: str, number: str) -> Any:
        index, place = self._index(run), int(number)
        step, trace = index.read(place)
        beside = {"previous": place - 1 if place > 1 else None, "next": place + 1 if place < index.total else None}
        return trace_json(place, step, trace, index.verifier, bool(query.text("whole"))) | beside

    def tokens(self, query: Query, run: str, number: str) -> Any:
        _, trace = self._index(run).read(int(number))
        texts = self.traces.token_texts(self.library.find(run).path)
        return tokens_json(trace, query.optional_whole("leaf"), texts)

    def tree(self, query: Query, run: str, number: str) -> Any:
        return tree_json(self._index(run).read_record(int(number)))

    def node(self, query: Query, run: str, number: str, node: str) -> Any:
        return node_json(self._index(run).read(int(number))[1], int(node))

    def search(self, query: Query) -> Any:
        index = self.traces.index(self.library.find(query.text("run")).path)
        return search_traces(index, query.text("q"), query.whole("limit", 50, 1, MAX_HITS), query.whole("start", 1, 1))

    def compare(self, query: Query) -> Any:
        return compare_runs(self.attempts.read([self.library.find(run) for run in query.names("runs")], 2))

    def fronts(self, query: Query) -> Any:
        runs, notes = self.attempts.read_most([self.library.find(run) for run in query.names("runs")])
        return front_figures(runs, notes)

    def _index(self, run: str) -> RowDatabase:
        """The traces of a run, with what was written since."""
        index = self.traces.index(self.library.find(run).path)
        index.refresh()
        return index


def _version() -> str:
    try:
        return version("ponder")
    except PackageNotFoundError:  # run from its source
        return ""
